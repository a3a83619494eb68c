package testbed

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"sync"
	"time"
)

// Direction is one of the two ways bytes take through a proxy.
type Direction int

// The directions.
const (
	ToServer Direction = iota // what clients send
	ToClient                  // what the server sends
)

// Proxy is a TCP proxy on a loopback port in front of one server, which
// injects faults into the connections that pass through it. Its methods may be
// called concurrently, also while traffic flows.
type Proxy struct {
	target   *url.URL
	listener net.Listener
	valves   [2]*valve
	open     opener

	mu        sync.Mutex
	links     map[*link]struct{}
	lastID    int
	down      bool // by Down
	restoring bool // while Restore runs
	closed    bool
	ended     sync.WaitGroup
}

// opener makes the two sources of a new link: what to read from the client,
// and what to read from the server.
type opener func(l *link) (fromClient, fromServer source)

// StartProxy starts a proxy in front of the TCP server in serverURL, such as
// nats://127.0.0.1:4222. It knows nothing of the protocol; see
// [StartPostgresProxy] for one that does.
func StartProxy(serverURL string) (*Proxy, error) {
	return startProxy(serverURL, func(l *link) (source, source) {
		return &rawSource{conn: l.client}, &rawSource{conn: l.server}
	})
}

func startProxy(serverURL string, open opener) (*Proxy, error) {
	target, err := url.Parse(serverURL)
	if err != nil || target.Port() == "" {
		return nil, errors.New("testbed: starting a proxy: the server's URL must have a host and a port")
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("testbed: starting a proxy: %w", err)
	}
	p := &Proxy{target: target, listener: listener, open: open, links: map[*link]struct{}{}}
	p.valves = [2]*valve{newValve(), newValve()}
	p.ended.Add(1)
	go p.accept()
	return p, nil
}

// URL is the server's URL with the proxy's address in it.
func (p *Proxy) URL() string { return p.via(*p.target) }

// URLFor puts the proxy's address into another URL of the same server, such as
// that of another database or role.
func (p *Proxy) URLFor(serverURL string) (string, error) {
	u, err := url.Parse(serverURL)
	if err != nil || u.Host != p.target.Host {
		return "", errors.New("testbed: proxy: URLFor wants a URL with the host and port of the proxy's own server")
	}
	return p.via(*u), nil
}

func (p *Proxy) via(u url.URL) string {
	u.Host = p.listener.Addr().String()
	return u.String()
}

// Links is the number of connections that pass through the proxy now.
func (p *Proxy) Links() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.links)
}

// Cut closes all connections, on both sides, and waits for that. New ones are
// still taken.
func (p *Proxy) Cut() {
	for _, l := range p.snapshot() {
		l.cut()
		<-l.ended
	}
}

// Down cuts all connections and closes each new one at once, until Up.
func (p *Proxy) Down() {
	p.setDown(true)
	p.Cut()
}

// Up takes connections again after Down.
func (p *Proxy) Up() { p.setDown(false) }

// Stall holds back all bytes of a direction, of existing and new connections,
// until Resume. Nothing is lost.
func (p *Proxy) Stall(d Direction) { p.valves[d].stall() }

// Resume ends a Stall.
func (p *Proxy) Resume(d Direction) { p.valves[d].resume() }

// Delay gives a direction a fixed latency; zero takes it away. It does not
// limit throughput. Bytes that were read before keep the latency of then.
func (p *Proxy) Delay(d Direction, latency time.Duration) { p.valves[d].setDelay(latency) }

// Drop throws away all bytes of a direction until Restore. With ToClient,
// requests are executed and their answers lost.
func (p *Proxy) Drop(d Direction) { p.valves[d].setDrop(true) }

// Restore ends a Drop. All connections are cut before, since what followed on
// one that lost bytes would make no sense; nothing that was on its way when
// Restore was called still arrives.
func (p *Proxy) Restore(d Direction) {
	p.setRestoring(true)
	p.Cut()
	p.valves[d].setDrop(false)
	p.setRestoring(false)
}

// Close cuts all connections and ends the proxy. Closing again does nothing.
func (p *Proxy) Close() error {
	p.mu.Lock()
	was := p.closed
	p.closed = true
	p.mu.Unlock()
	if was {
		return nil
	}
	err := p.listener.Close()
	p.Cut()
	p.ended.Wait()
	return err
}

func (p *Proxy) setDown(down bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.down = down
}

func (p *Proxy) setRestoring(restoring bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.restoring = restoring
}

func (p *Proxy) snapshot() []*link {
	p.mu.Lock()
	defer p.mu.Unlock()
	links := make([]*link, 0, len(p.links))
	for l := range p.links {
		links = append(links, l)
	}
	return links
}

func (p *Proxy) accept() {
	defer p.ended.Done()
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return // closed
		}
		p.ended.Add(1)
		go func() {
			defer p.ended.Done()
			p.serve(client)
		}()
	}
}

// serve joins one client with the server until either side is done.
func (p *Proxy) serve(client net.Conn) {
	server, err := net.DialTimeout("tcp", p.target.Host, 10*time.Second)
	if err != nil {
		_ = client.Close() // a server that is down looks like one that hangs up
		return
	}
	l := newLink(client, server)
	if !p.admit(l) {
		l.cut()
		return
	}
	fromClient, fromServer := p.open(l)
	l.run(fromClient, fromServer, p.valves)
	p.mu.Lock()
	delete(p.links, l)
	p.mu.Unlock()
	close(l.ended)
}

// admit enters a link, unless the proxy takes none.
func (p *Proxy) admit(l *link) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.down || p.restoring || p.closed {
		return false
	}
	p.lastID++
	l.id = p.lastID
	p.links[l] = struct{}{}
	return true
}
