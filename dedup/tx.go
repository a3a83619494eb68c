package dedup

import "github.com/oncemill/oncemill/internal/pg"

// Tx runs statements in a transaction that the caller owns (or, where it says
// so, on a pool). Make one with [Pgx] or [SQL]; neither begins, commits or
// rolls back anything.
type Tx = pg.DB

// Pgx returns a Tx on a pgx.Tx, or on anything else of pgx that runs
// statements, such as a *pgxpool.Pool.
func Pgx(tx pg.Pgx) Tx { return pg.FromPgx(tx) }

// SQL returns a Tx on a *sql.Tx, or on a *sql.DB, over pgx/stdlib.
func SQL(tx pg.SQL) Tx { return pg.FromSQL(tx) }
