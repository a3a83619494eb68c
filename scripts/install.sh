# shellcheck shell=sh
# Sourced by the ensure scripts. Needs nothing but a POSIX shell.

# as_root runs a command as root: directly, or by a sudo that asks nothing.
as_root() {
  if [ "$(id -u)" -eq 0 ]; then
    "$@"
  else
    sudo -n "$@"
  fi
}

# can_install tells whether install_packages has a chance.
can_install() {
  command -v apt-get >/dev/null 2>&1 && as_root true 2>/dev/null
}

# install_packages NAME PACKAGE... installs the packages with apt-get, or says
# in one line what is missing and ends the script. apt-get's own output is
# shown when it fails. A failed update alone is no reason to stop: the lists at
# hand may do.
install_packages() {
  name=$1
  shift
  if ! can_install; then
    echo "$name is missing: install it (on Debian or Ubuntu: apt-get install $*), or run as root there" >&2
    exit 1
  fi
  echo "installing $name with apt-get" >&2
  log=$(mktemp)
  if ! {
    as_root apt-get update || true
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y \
      --no-install-recommends -o DPkg::Lock::Timeout=300 "$@"
  } >"$log" 2>&1 </dev/null; then
    cat "$log" >&2
    rm -f "$log"
    echo "installing $name with apt-get failed: see above" >&2
    exit 1
  fi
  rm -f "$log"
}
