#!/bin/sh
# Makes sure that there is a PgBouncer to start: in ONCEMILL_PGBOUNCER_BIN (a
# directory), on PATH, or where packages put it. Quiet when there is one.
set -eu

scripts=$(dirname "$0")
. "$scripts/install.sh"

if [ -n "${ONCEMILL_PGBOUNCER_BIN:-}" ]; then
  [ -x "$ONCEMILL_PGBOUNCER_BIN/pgbouncer" ] && exit 0
  echo "ONCEMILL_PGBOUNCER_BIN: no pgbouncer in that directory: correct it or unset it" >&2
  exit 1
fi

PATH=$PATH:/usr/sbin:/usr/local/sbin:/usr/local/bin:/opt/homebrew/bin
command -v pgbouncer >/dev/null && exit 0

install_packages PgBouncer pgbouncer
# The tests start their own: the package's service would only hold a port.
as_root service pgbouncer stop >/dev/null 2>&1 || true
as_root update-rc.d pgbouncer disable >/dev/null 2>&1 || true
