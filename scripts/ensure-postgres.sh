#!/bin/sh
# Makes sure that the tests find a PostgreSQL server to start (initdb and
# postgres), in the places where the test bed looks. Quiet when there is one.
set -eu

scripts=$(dirname "$0")
. "$scripts/install.sh"

has_server() {
  [ -x "$1/initdb" ] && [ -x "$1/postgres" ]
}

# find_server looks where the test bed looks (integration/testbed/pgbin.go).
find_server() {
  configured=$(pg_config --bindir 2>/dev/null) || configured=
  initdb=$(command -v initdb) || initdb=
  initdb=$(readlink -f "$initdb" 2>/dev/null) || initdb=
  for dir in "$configured" "${initdb%/initdb}" \
    /usr/lib/postgresql/*/bin \
    /usr/pgsql-*/bin \
    /usr/local/pgsql/bin \
    /opt/homebrew/opt/postgresql*/bin \
    /usr/local/opt/postgresql*/bin \
    /home/linuxbrew/.linuxbrew/opt/postgresql*/bin \
    /Applications/Postgres.app/Contents/Versions/*/bin; do
    if has_server "$dir"; then
      return 0
    fi
  done
  return 1
}

# The tests start servers of their own, so the package need not create and
# start its default cluster. The setting lasts for this installation only.
install_server() {
  conf=/etc/postgresql-common/createcluster.d/oncemill-tests.conf
  if can_install; then
    trap 'as_root rm -f "$conf"' EXIT
    as_root mkdir -p "$(dirname "$conf")"
    echo "create_main_cluster = false" | as_root tee "$conf" >/dev/null
  fi
  install_packages PostgreSQL postgresql
}

if [ -n "${ONCEMILL_DATABASE_URL:-}" ]; then
  exit 0
fi
if [ -n "${ONCEMILL_PG_BIN:-}" ]; then
  has_server "$ONCEMILL_PG_BIN" && exit 0
  echo "ONCEMILL_PG_BIN: no initdb and postgres in that directory: correct it or unset it" >&2
  exit 1
fi
find_server || install_server
