// Package watermillsql lets services that publish with watermill-sql v3 write
// to the outbox instead: give their Publisher a SchemaAdapter of this package.
//
//	o, err := outbox.New(outbox.Config{})
//	pub, err := sql.NewPublisher(tx, sql.PublisherConfig{SchemaAdapter: watermillsql.NewSchemaAdapter(o)}, logger)
//
// The Publisher's database handle must be *sql.DB or *sql.Tx over pgx/stdlib,
// or one of watermill-sql's wrappers of pgx. A message that could not be sent
// is refused by Publish with a *outbox.RefusedError; one larger than the
// broker takes by an error that outbox.AsRefused turns into one. The tables
// come from oncemill's migrations: AutoInitializeSchema creates nothing.
//
// The Publisher checks topics by its own rule too: letters, digits and -$:._
// only. Reading is the relay's: a Subscriber with this adapter fails.
package watermillsql

import (
	stdsql "database/sql"
	"errors"

	"github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/oncemill/oncemill/outbox"
)

// ErrNoSubscriber is what a Subscriber with this adapter fails with.
var ErrNoSubscriber = errors.New("outbox/watermillsql: the outbox is read by outbox.Relay, not by a Subscriber: run a relay and subscribe to where it sends")

// SchemaAdapter writes a Publisher's messages into an outbox.
type SchemaAdapter struct{ outbox *outbox.Outbox }

var _ sql.SchemaAdapter = SchemaAdapter{}

// NewSchemaAdapter returns an adapter that writes to o.
func NewSchemaAdapter(o *outbox.Outbox) SchemaAdapter { return SchemaAdapter{o} }

// InsertQuery returns the statement that writes messages to the outbox. It
// refuses messages as outbox.Write does.
func (a SchemaAdapter) InsertQuery(topic string, msgs message.Messages) (sql.Query, error) {
	query, args, err := a.outbox.InsertQuery(topic, msgs...)
	return sql.Query{Query: query, Args: args}, err
}

// SchemaInitializingQueries returns nothing: migrations create the tables.
func (a SchemaAdapter) SchemaInitializingQueries(string) []sql.Query { return nil }

// SelectQuery returns a query whose row UnmarshalMessage refuses.
func (a SchemaAdapter) SelectQuery(string, string, sql.OffsetsAdapter) sql.Query {
	return sql.Query{Query: "SELECT 1"}
}

// UnmarshalMessage fails with ErrNoSubscriber.
func (a SchemaAdapter) UnmarshalMessage(sql.Scanner) (sql.Row, error) {
	return sql.Row{}, ErrNoSubscriber
}

// SubscribeIsolationLevel returns READ COMMITTED.
func (a SchemaAdapter) SubscribeIsolationLevel() stdsql.IsolationLevel {
	return stdsql.LevelReadCommitted
}
