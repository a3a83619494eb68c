package outbox

import (
	"cmp"
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/binary"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/nats-io/nats.go"

	"github.com/oncemill/oncemill/internal/header"
	"github.com/oncemill/oncemill/internal/pg"
	"github.com/oncemill/oncemill/internal/schema"
	"github.com/oncemill/oncemill/internal/uuid"
)

// Tx is the caller's transaction: pgx.Tx and the transaction of a consumer's
// handler are one. A pool fits as well, where a transaction is not wanted.
type Tx interface {
	Exec(ctx context.Context, query string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, query string, args ...any) (pgx.Rows, error)
}

// SQLTx is Tx for database/sql over pgx/stdlib: a *sql.Tx, or a *sql.DB where a
// transaction is not wanted.
type SQLTx interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// Config configures an Outbox. Its zero value works.
type Config struct {
	// Schema is the name of the schema with the tables, "oncemill" if empty.
	Schema string
	// MaxBytes bounds payload and headers of a message together. 0 means what
	// a relay last saw the broker take, which the database checks, and
	// DefaultMaxBytes before any relay ran.
	MaxBytes int
	// OrderingKey returns the ordering key of a message that has none from
	// SetOrderingKey; "" means no order is asked for. nil: no message has one.
	OrderingKey func(topic string, msg *message.Message) string
	// Wake, if set, lets Notify wake relays of other processes by a message
	// of eight bytes on the subject WakeSubject, at most one a millisecond.
	Wake *nats.Conn
}

// Outbox writes messages into the outbox tables of one schema. It is safe for
// concurrent use.
type Outbox struct {
	cfg    Config
	schema schema.Name
	sql    statements
	bell   bell
}

// New returns an Outbox. It does no I/O.
func New(cfg Config) (*Outbox, error) {
	name, err := schema.ParseName(cfg.Schema)
	if err != nil {
		return nil, fmt.Errorf("outbox: %w", err)
	}
	if cfg.MaxBytes < 0 {
		return nil, fmt.Errorf("outbox: MaxBytes: %d is negative; 0 means what the broker takes", cfg.MaxBytes)
	}
	return &Outbox{cfg: cfg, schema: name, sql: expand(name), bell: bell{conn: cfg.Wake, subject: wakeSubject(name)}}, nil
}

// Schema returns the name of the schema with the tables.
func (o *Outbox) Schema() string { return o.schema.String() }

var defaultOutbox = &Outbox{sql: expand(schema.Name{}), bell: bell{subject: wakeSubject(schema.Name{})}}

// Write is (*Outbox).Write with the default configuration.
func Write(ctx context.Context, tx Tx, topic string, msgs ...*message.Message) error {
	return defaultOutbox.Write(ctx, tx, topic, msgs...)
}

// WriteSQL is (*Outbox).WriteSQL with the default configuration.
func WriteSQL(ctx context.Context, tx *sql.Tx, topic string, msgs ...*message.Message) error {
	return defaultOutbox.WriteSQL(ctx, tx, topic, msgs...)
}

// Write writes messages in the caller's transaction: they will be sent when it
// commits, and never if it does not. A message that cannot be sent is refused
// with a *RefusedError, and none of msgs is written. Each message gets a
// logical id of its own; message.UUID travels, but identifies nothing.
//
// Call Notify after the commit to have them sent at once. In a handler's
// consumer.Tx nobody needs to.
func (o *Outbox) Write(ctx context.Context, tx Tx, topic string, msgs ...*message.Message) error {
	lanes, err := o.write(ctx, pg.FromPgx(tx), topic, msgs)
	if w, ok := tx.(interface{ WroteTo(Lanes) }); ok && err == nil {
		w.WroteTo(lanes)
	}
	return err
}

// WriteSQL is Write for database/sql over pgx/stdlib.
func (o *Outbox) WriteSQL(ctx context.Context, tx *sql.Tx, topic string, msgs ...*message.Message) error {
	_, err := o.write(ctx, pg.FromSQL(tx), topic, msgs)
	return err
}

func (o *Outbox) write(ctx context.Context, db pg.DB, topic string, msgs []*message.Message) (Lanes, error) {
	rows, err := o.prepare(topic, msgs)
	if err != nil {
		return 0, err
	}
	return o.WriteRows(ctx, db, rows)
}

func (o *Outbox) prepare(topic string, msgs []*message.Message) ([]Row, error) {
	rows := make([]Row, len(msgs))
	for i, msg := range msgs {
		if msg == nil {
			return nil, refuse("message", fmt.Sprintf("number %d of %d, counted from 0, is nil", i, len(msgs)))
		}
		row, err := o.Prepare(topic, msg, Stamp{})
		if err != nil {
			return nil, err
		}
		rows[i] = row
	}
	return rows, nil
}

// InsertQuery returns the statement that Write runs, for code that runs it
// itself in a transaction over pgx; see package watermillsql.
func (o *Outbox) InsertQuery(topic string, msgs ...*message.Message) (query string, args []any, err error) {
	rows, err := o.prepare(topic, msgs)
	if err != nil {
		return "", nil, err
	}
	query, args = o.writeStatement(rows)
	return query, args, nil
}

// Stamp is what identifies a message to its receivers.
type Stamp struct {
	// LogicalID is the same for every copy of the message, at most MaxID
	// bytes. Empty: a random UUID is minted. It carries no time: the writer's
	// clock would be compared with the consumer's horizon.
	LogicalID string
	// ProviderKey is sent as HeaderProviderKey, unless empty.
	ProviderKey string
}

// Row is a message that passed all checks and can be written.
type Row struct {
	topic, logicalID, orderingKey string
	header, payload               []byte
	size                          int64
}

// Prepare checks a message, without I/O. It returns a *RefusedError for one
// that could not be sent or would not arrive as it is.
func (o *Outbox) Prepare(topic string, msg *message.Message, stamp Stamp) (Row, error) {
	if msg == nil {
		return Row{}, refuse("message", "is nil")
	}
	if stamp.LogicalID == "" {
		stamp.LogicalID = uuid.NewV4()
	}
	key := o.orderingKey(topic, msg)
	err := cmp.Or(
		refuse("topic", topicRule(topic)),
		refuse("logical id", idRule(stamp.LogicalID, MaxID)),
		refuse("provider key", idRule(stamp.ProviderKey, MaxID)),
		refuse("ordering key", idRule(key, MaxOrderingKey)),
		refuse("uuid", idRule(msg.UUID, MaxID)),
		checkMetadata(msg),
	)
	if err != nil {
		return Row{}, err
	}
	stored := storedHeaders(msg, stamp)
	block := headerBlockSize(stored, stamp.LogicalID, key)
	row := Row{topic, stamp.LogicalID, key, header.EncodeMap(stored), msg.Payload, int64(block + len(msg.Payload))}
	return row, o.checkSize(&row, block)
}

// checkSize leaves the check against the broker's limit to the database,
// which knows it, unless the limit is configured.
func (o *Outbox) checkSize(row *Row, block int) error {
	if block > maxHeaderBlock {
		return refuse("size", fmt.Sprintf("the headers take %d bytes, JetStream stores %d at most", block, maxHeaderBlock))
	}
	if o.cfg.MaxBytes == 0 {
		return nil
	}
	if row.size > int64(o.cfg.MaxBytes) {
		return refuse("size", fmt.Sprintf("payload and headers are %d bytes, Config.MaxBytes is %d", row.size, o.cfg.MaxBytes))
	}
	row.size = 0
	return nil
}

func storedHeaders(msg *message.Message, stamp Stamp) map[string]string {
	h := make(map[string]string, len(msg.Metadata)+2)
	for name, value := range msg.Metadata {
		h[name] = value
	}
	if msg.UUID != "" {
		h[HeaderUUID] = msg.UUID
	}
	if stamp.ProviderKey != "" {
		h[HeaderProviderKey] = stamp.ProviderKey
	}
	return h
}

// WriteRows writes prepared messages in the caller's transaction, in order,
// in one statement. It returns their lanes, for NotifyLanes.
func (o *Outbox) WriteRows(ctx context.Context, db pg.DB, rows []Row) (Lanes, error) {
	if len(rows) == 0 {
		return 0, nil
	}
	var lanes int64
	query, args := o.writeStatement(rows)
	if err := pg.QueryRow(ctx, db, query, args, &lanes); err != nil {
		return 0, fmt.Errorf("outbox: write messages: %w", AsRefused(err))
	}
	return Lanes(lanes), nil
}

// QueueWrite adds the statement that writes the rows to a batch, which must be
// sent in the caller's transaction; no rows, no statement. When the batch was
// closed, their lanes are among *lanes. An error of the batch should go through
// AsRefused.
func (o *Outbox) QueueWrite(b *pgx.Batch, rows []Row, lanes *Lanes) {
	if len(rows) == 0 {
		return
	}
	query, args := o.writeStatement(rows)
	b.Queue(query, args...).QueryRow(func(r pgx.Row) error {
		var set int64
		err := r.Scan(&set)
		*lanes |= Lanes(set)
		return err
	})
}

// writeStatement returns the statement that writes the rows, one or more, with
// arguments of types that pgx encodes in every exec mode.
func (o *Outbox) writeStatement(rows []Row) (query string, args []any) {
	if len(rows) == 1 {
		r := &rows[0]
		return o.sql.writeOne, []any{r.topic, r.logicalID, r.orderingKey, keyHash(r.orderingKey), r.header, notNil(r.payload), r.size}
	}
	n := len(rows)
	topics, ids, keys := make([]string, n), make([]string, n), make([]string, n)
	hashes, sizes := make([]int64, n), make([]int64, n)
	headers, payloads := make([][]byte, n), make([][]byte, n)
	for i, r := range rows {
		topics[i], ids[i], keys[i] = r.topic, r.logicalID, r.orderingKey
		hashes[i], sizes[i] = keyHash(r.orderingKey), r.size
		headers[i], payloads[i] = r.header, notNil(r.payload)
	}
	return o.sql.write, []any{topics, ids, keys, hashes, headers, payloads, sizes}
}

// notNil returns b, or empty bytes for nil, which would be NULL.
func notNil(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}

// keyHash is stored, so it must not change. Two keys with one hash are sent
// one after the other, nothing worse.
func keyHash(key string) int64 {
	sum := sha256.Sum256([]byte(key))
	return int64(binary.BigEndian.Uint64(sum[:8]))
}

type orderingKey struct{}

// SetOrderingKey asks that msg reach the stream after all messages of the same
// key whose transactions committed before msg is written. It keeps the key in
// the message's context; it wins over Config.OrderingKey. "" asks for no order.
func SetOrderingKey(msg *message.Message, key string) {
	msg.SetContext(context.WithValue(msg.Context(), orderingKey{}, key))
}

func (o *Outbox) orderingKey(topic string, msg *message.Message) string {
	if key, ok := msg.Context().Value(orderingKey{}).(string); ok {
		return key
	}
	if o.cfg.OrderingKey != nil {
		return o.cfg.OrderingKey(topic, msg)
	}
	return ""
}
