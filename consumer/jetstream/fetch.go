package jetstream

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
)

const (
	// pullExpires is how long one request for messages stays at the server. A
	// new one costs a message each way; this is nats.go's default.
	pullExpires = 30 * time.Second
	// pullHeartbeat is how often the server shows that it knows the request
	// when there are no messages. Missing twice, the request is lost.
	pullHeartbeat = 5 * time.Second
	// statusSlack is room in the inbox for statuses beside the messages asked for.
	statusSlack = 64
)

// inbox receives messages for one subscription. It has at most one request at
// the server, so that what is still to come is known. After a fault it is
// replaced: without interest in its subject the server drops the old request.
type inbox struct {
	sub     *nats.Subscription
	ch      chan *nats.Msg
	subject string // of pull requests
	batch   int    // largest request
	expires time.Duration
	asked   int // messages asked for and not received
}

type pullRequest struct {
	Batch     int           `json:"batch"`
	Expires   time.Duration `json:"expires"`
	Heartbeat time.Duration `json:"idle_heartbeat"`
}

func openInbox(nc *nats.Conn, d *durable, inFlight int) (*inbox, error) {
	in := &inbox{
		ch:      make(chan *nats.Msg, inFlight+statusSlack),
		subject: "$JS.API.CONSUMER.MSG.NEXT." + d.stream + "." + d.name,
		batch:   inFlight,
		expires: pullExpires,
	}
	if d.maxBatch > 0 {
		in.batch = min(in.batch, d.maxBatch)
	}
	if d.maxExpires > 0 {
		in.expires = min(in.expires, d.maxExpires)
	}
	var err error
	in.sub, err = nc.ChanSubscribe(nc.NewInbox(), in.ch)
	return in, err
}

// pull asks for up to room messages, unless some are still to come.
func (in *inbox) pull(nc *nats.Conn, room int) error {
	if in.asked > 0 || room < 1 {
		return nil
	}
	n := min(room, in.batch)
	body, err := json.Marshal(pullRequest{n, in.expires, in.heartbeat()})
	if err != nil {
		return err
	}
	if err := nc.PublishRequest(in.subject, in.sub.Subject, body); err != nil {
		return err
	}
	in.asked = n
	return nil
}

// heartbeat is at most half of expires: the server refuses more.
func (in *inbox) heartbeat() time.Duration {
	return min(pullHeartbeat, in.expires/2)
}

// classify tells messages from statuses, and counts. It returns the metadata of
// a message, or the error if the request is gone and the durable may be, too; a
// status that only shows that all is well gives neither.
//
// Only messages have an ack subject to reply to, from which their metadata
// comes: nothing that a publisher writes makes a message look like a status.
func (in *inbox) classify(nm *nats.Msg) (*nats.MsgMetadata, error) {
	if meta, err := nm.Metadata(); err == nil {
		in.asked = max(in.asked-1, 0)
		return meta, nil
	}
	status := nm.Header.Get("Status")
	switch status {
	case "100": // idle heartbeat
		return nil, nil
	case "408": // the request expired
		in.asked = 0
		return nil, nil
	}
	return nil, fmt.Errorf("the server ended the request for messages: %s %s", status, nm.Header.Get("Description"))
}
