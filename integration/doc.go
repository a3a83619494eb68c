// Package integration tests the whole path with real servers: JetStream, the
// Subscriber, Watermill's Router, the Consumer, PostgreSQL, the outbox, the
// relay, and JetStream again. It holds no code of its own.
//
// What one package can show alone is tested there. Here are the cases that
// only the whole shows: crashes between two of its steps, outages, several
// processes, several roles. Every test ends with the same judgement over what
// is in the database and in the stream; see stack.judge.
//
// The tests of the pooler need the build tag testall and PgBouncer:
//
//	go test -race -tags testall -run C107 ./integration
package integration
