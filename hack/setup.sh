#!/bin/sh
# Says which packages of Debian the project lacks and, as root, installs them; checks that cargo and go are there.
# `setup.sh conformance` does so for the images of the conformance tests, too.
set -eu
cd "$(dirname "$0")/.."
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin

# Package, and the command or file that shows that it is there, however it was installed.
packages='
ca-certificates   /etc/ssl/certs/ca-certificates.crt
conntrack         conntrack
g++               g++
gcc               gcc
haproxy           haproxy
iproute2          ip
iptables          iptables
libc6-dev         /usr/include/stdlib.h
libprotobuf-dev   /usr/include/google/protobuf/descriptor.proto
nftables          nft
prometheus        promtool
protobuf-compiler protoc
runc              runc
systemd           /lib/systemd/systemd
util-linux        nsenter
wireguard-tools   wg
'
[ "${1:-}" != conformance ] || packages="$packages
bind9-dnsutils    dig
busybox           /bin/busybox
curl              curl
netcat-openbsd    /bin/nc.openbsd
nginx-light       nginx
"

say() { printf 'setup: %s\n' "$*" >&2; }
die() { say "$@"; exit 1; }

there() {
  case $1 in
    /*) [ -e "$1" ] ;;
    *) command -v "$1" >/dev/null ;;
  esac
}

missing_packages() {
  printf '%s' "$packages" | while read -r package proof; do
    [ -z "$package" ] || there "$proof" || printf ' %s' "$package"
  done
}

# Debian starts and enables the services of haproxy, nginx and prometheus with their packages; only the programs are wanted here.
install_packages() {
  policy=/usr/sbin/policy-rc.d
  if [ ! -e "$policy" ]; then
    trap 'rm -f "$policy"' EXIT
    trap 'exit 1' HUP INT TERM
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod +x "$policy"
  fi
  new_services=
  for service in haproxy nginx prometheus; do
    command -v "$service" >/dev/null || new_services="$new_services $service"
  done
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq >&2
  # shellcheck disable=SC2086  # a list of words
  apt-get install -qq -y --no-install-recommends $1 >&2
  for service in $new_services; do
    if command -v "$service" >/dev/null && command -v update-rc.d >/dev/null; then
      update-rc.d "$service" disable >&2
    fi
  done
}

missing=$(missing_packages)
if [ -n "$missing" ]; then
  say "these packages are missing:$missing"
  command -v apt-get >/dev/null || die "install what has these programs in your distribution, and come back"
  [ "$(id -u)" = 0 ] || die 'as root they are installed: sudo env "PATH=$PATH" make setup'
  install_packages "$missing"
  missing=$(missing_packages)
  [ -z "$missing" ] || die "still missing after the installation:$missing"
fi

wanted=$(sed -n 's/^rust-version *= *"\(.*\)"/\1/p' Cargo.toml)
command -v cargo >/dev/null || die "cargo is missing: install Rust $wanted or newer, with rustfmt and clippy (https://rustup.rs)"
found=$(cargo --version | cut -d' ' -f2)
[ "$(printf '%s\n' "$wanted" "$found" | sort -V | head -n 1)" = "$wanted" ] ||
  die "cargo is of version $found, and $wanted or newer is needed: run rustup update stable"
for part in cargo-fmt cargo-clippy; do
  command -v "$part" >/dev/null || die "$part is missing: run rustup component add rustfmt clippy"
done
