package outbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// DefaultAckTimeout bounds the wait for an acknowledgement of JetStream.
const DefaultAckTimeout = 5 * time.Second

// JetStreamConfig configures JetStream. Its zero value works.
type JetStreamConfig struct {
	// AckTimeout bounds the wait for an acknowledgement, after which the
	// outcome is in doubt. 0 means DefaultAckTimeout. A short one costs copies
	// when the broker is slow; keep it well below the duplicate window.
	AckTimeout time.Duration
	// Domain is the JetStream domain, if any.
	Domain string
}

// JetStream is a Sink on a NATS connection. The connection must have no
// reconnect buffer (nats.ReconnectBufSize(-1)): with one, a publish that was
// reported as failed is sent after the reconnect, behind later messages.
func JetStream(nc *nats.Conn, cfg JetStreamConfig) (Sink, error) {
	if nc == nil {
		return nil, errors.New("outbox: JetStream: connection is nil")
	}
	if nc.Opts.ReconnectBufSize != -1 {
		return nil, errors.New("outbox: JetStream: the connection has a reconnect buffer, which would send a failed publish later and out of order: connect with nats.ReconnectBufSize(-1)")
	}
	if cfg.AckTimeout < 0 {
		return nil, fmt.Errorf("outbox: JetStream: AckTimeout: %s is negative", cfg.AckTimeout)
	}
	if cfg.AckTimeout == 0 {
		cfg.AckTimeout = DefaultAckTimeout
	}
	s := &jetStreamSink{nc: nc, pub: publisher{nc: nc, timeout: cfg.AckTimeout}}
	var err error
	if cfg.Domain != "" {
		s.js, err = jetstream.NewWithDomain(nc, cfg.Domain)
	} else {
		s.js, err = jetstream.New(nc)
	}
	if err != nil {
		return nil, fmt.Errorf("outbox: JetStream: %w", err)
	}
	return s, nil
}

type jetStreamSink struct {
	nc  *nats.Conn
	js  jetstream.JetStream
	pub publisher
}

func (s *jetStreamSink) Send(_ context.Context, m *Message, done func(error)) {
	msg, sendErr := s.message(m)
	if sendErr != nil {
		done(sendErr)
		return
	}
	s.pub.publish(msg, func(err error) {
		if err != nil {
			err = classifyJetStream(err)
		}
		done(err)
	})
}

// message builds the NATS message and refuses what the server would: it drops
// the connection, with all that is in flight, of a client that sends too much.
func (s *jetStreamSink) message(m *Message) (*nats.Msg, *SendError) {
	if rule := topicRule(m.Topic); rule != "" {
		return nil, &SendError{Unsendable, "the topic " + rule, nil}
	}
	h := make(nats.Header, usualHeaders)
	values := make([]string, 0, usualHeaders)
	block := headerFrame
	var refused *SendError
	add := func(name, value string) {
		if rule := nameRule(name); rule != "" && refused == nil {
			refused = &SendError{Unsendable, "header " + quoteShort(name) + ": " + rule, nil}
		}
		if rule := valueRule(value); rule != "" && refused == nil {
			refused = &SendError{Unsendable, "value of header " + quoteShort(name) + " " + rule, nil}
		}
		values = append(values, value)
		h[name] = values[len(values)-1 : len(values) : len(values)]
		block += lineSize(name, len(value))
	}
	add(HeaderBrokerID, m.BrokerID)
	if err := m.eachHeader(add); err != nil {
		return nil, &SendError{Unsendable, "the stored headers cannot be decoded", err}
	}
	if refused != nil {
		return nil, refused
	}
	if block > maxHeaderBlock {
		return nil, &SendError{Unsendable, fmt.Sprintf("the headers take %d bytes, JetStream stores %d at most", block, maxHeaderBlock), nil}
	}
	if size, limit := block+len(m.Payload), s.MaxBytes(); limit > 0 && size > limit {
		return nil, &SendError{Unsendable, fmt.Sprintf("payload and headers are %d bytes, the server takes %d (max_payload)", size, limit), nil}
	}
	return &nats.Msg{Subject: m.Topic, Header: h, Data: m.Payload}, nil
}

// Error codes of nats-server (server/errors.json) that decide the outcome.
const (
	codeUnavailable     jetstream.ErrorCode = 10008 // JetStream system temporarily unavailable
	codeNotLeader       jetstream.ErrorCode = 10009 // JetStream cluster can not handle request
	codeTooManyRequests jetstream.ErrorCode = 10167
	codeMessageTooLarge jetstream.ErrorCode = 10054 // over the stream's MaxMsgSize
	codeHeaderTooLarge  jetstream.ErrorCode = 10097
)

func classifyJetStream(err error) *SendError {
	var api *jetstream.APIError
	switch {
	case errors.As(err, &api):
		return &SendError{outcomeOf(api.ErrorCode), fmt.Sprintf("JetStream refused the message: %s (%d)", api.Description, api.ErrorCode), err}
	case errors.Is(err, errNoStream):
		return &SendError{Rejected, "no stream takes the subject", err}
	case errors.Is(err, errNotAnAck):
		return &SendError{Rejected, "the answer is not one of a stream: another subscriber of the subject answers", err}
	case errors.Is(err, nats.ErrMaxPayload):
		return &SendError{Unsendable, "larger than the server takes (max_payload)", err}
	case errors.Is(err, nats.ErrBadSubject), errors.Is(err, nats.ErrBadHeaderMsg), errors.Is(err, nats.ErrHeadersNotSupported):
		return &SendError{Unsendable, "NATS refused the message: " + err.Error(), err}
	case errors.Is(err, errNoAnswer):
		return &SendError{InDoubt, "no answer in time; does only a plain subscriber take the subject?", err}
	}
	return &SendError{InDoubt, fmt.Sprintf("the connection failed (%T)", err), err}
}

func outcomeOf(code jetstream.ErrorCode) Outcome {
	switch code {
	case codeUnavailable, codeNotLeader, codeTooManyRequests, jetstream.JSErrCodeJetStreamNotEnabled, jetstream.JSErrCodeJetStreamNotEnabledForAccount:
		return InDoubt
	case codeMessageTooLarge, codeHeaderTooLarge:
		return Unsendable
	}
	return Rejected
}

func (s *jetStreamSink) Ready() error {
	if status := s.nc.Status(); status != nats.CONNECTED {
		return fmt.Errorf("outbox: NATS connection is %s", status)
	}
	return nil
}

func (s *jetStreamSink) MaxBytes() int { return int(s.nc.MaxPayload()) }

// onWake calls fn when another process rings on the subject.
func (s *jetStreamSink) onWake(subject string, fn func(Lanes)) (stop func(), err error) {
	sub, err := s.nc.Subscribe(subject, func(msg *nats.Msg) { fn(lanesOfWake(msg.Data)) })
	if err != nil {
		return nil, fmt.Errorf("outbox: listen on %s: %w", subject, err)
	}
	return func() { _ = sub.Unsubscribe() }, nil
}
