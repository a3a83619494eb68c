package consumer

import (
	"errors"
	"slices"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/oncemill/oncemill/outbox"
)

// Headers that link a message to the one that caused it.
const (
	// headerCorrelation is Watermill's middleware.CorrelationIDMetadataKey.
	headerCorrelation = "correlation_id"
	// W3C Trace Context and Baggage. A trace state belongs to its parent.
	headerTraceParent = "traceparent"
	headerTraceState  = "tracestate"
	headerBaggage     = "baggage"
)

// inherit returns msg as it goes out: with the links of the incoming message
// that it does not carry itself, whose names are returned, too, and without
// the reserved headers that came in with it, which describe the incoming copy
// (a handler may pass its message on). msg itself stays as it is.
func inherit(msg *message.Message, incoming message.Metadata) (out *message.Message, inherited []string) {
	var stale []string
	for name, value := range incoming {
		switch {
		case outbox.IsReserved(name):
			if own, ok := msg.Metadata[name]; ok && own == value {
				stale = append(stale, name)
			}
		case isLink(name, msg.Metadata):
			inherited = append(inherited, name)
		}
	}
	if len(stale)+len(inherited) == 0 {
		return msg, nil
	}
	out = msg.CopyWithContext()
	for _, name := range stale {
		delete(out.Metadata, name)
	}
	for _, name := range inherited {
		out.Metadata[name] = incoming[name]
	}
	return out, inherited
}

// isLink reports whether a message with metadata own takes over the header, of
// any letter case.
func isLink(name string, own message.Metadata) bool {
	switch strings.ToLower(name) {
	case headerCorrelation, headerTraceParent, headerBaggage:
		return !carries(own, name)
	case headerTraceState:
		return !carries(own, name) && !carries(own, headerTraceParent)
	}
	return false
}

func carries(own message.Metadata, name string) bool {
	for has := range own {
		if strings.EqualFold(has, name) {
			return true
		}
	}
	return false
}

// dropRefused takes the inherited header out that was refused, since nobody's
// message fails for it, and reports whether err was about one.
func dropRefused(out *message.Message, inherited []string, err error) bool {
	var refused *outbox.RefusedError
	if !errors.As(err, &refused) || refused.Header == "" || !slices.Contains(inherited, refused.Header) {
		return false
	}
	delete(out.Metadata, refused.Header)
	return true
}
