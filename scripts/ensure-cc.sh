#!/bin/sh
# Makes sure that there is the C compiler which Go's race detector needs to
# link. Quiet when there is one.
set -eu

scripts=$(dirname "$0")
. "$scripts/install.sh"

# CC may carry flags; the program comes first.
cc=$("${GO:-go}" env CC)
command -v "${cc%% *}" >/dev/null || install_packages "a C compiler" gcc libc6-dev
