package consumer

import "github.com/oncemill/oncemill/internal/pg"

// PoolerError says that the connections go through a pooler in transaction
// mode (PgBouncer, for example) with an exec mode of pgx that such a pooler
// breaks, and what to set. [Consumer.Check] returns it, so that a Router does
// not start.
//
// QueryExecModeExec, QueryExecModeCacheDescribe and QueryExecModeSimpleProtocol
// work through every pooler; the first is the one to take, since it keeps
// nothing that a change of the schema makes wrong. QueryExecModeCacheStatement,
// pgx's default, works with PgBouncer from 1.21 on if max_prepared_statements
// is set. QueryExecModeDescribeExec works through none.
type PoolerError = pg.PoolerError
