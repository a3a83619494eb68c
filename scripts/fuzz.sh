#!/bin/sh
# Runs every fuzz target of the main module for the given time (60s): Go fuzzes
# one target at a time.
set -eu

go=${GO:-go}
fuzztime=${1:-60s}

packages=$("$go" list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.Dir}}{{end}}' ./...)
found=
for dir in $packages; do
  grep -q '^func Fuzz' "$dir"/*_test.go || continue
  listed=$("$go" test -list '^Fuzz' "$dir")
  for target in $(echo "$listed" | grep '^Fuzz'); do
    found=yes
    echo "==> $target in $dir"
    "$go" test -run '^$' -fuzz "^$target\$" -fuzztime "$fuzztime" "$dir"
  done
done
if [ -z "$found" ]; then
  echo "no fuzz target found" >&2
  exit 1
fi
