# shellcheck shell=bash
# Sourced by the other scripts: paths, and images of other projects, which are made beside a build.

target=$PWD/${CARGO_TARGET_DIR:-target}
[[ ${CARGO_TARGET_DIR:-} == /* ]] && target=$CARGO_TARGET_DIR
cache=${KEELWAY_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/keelway}
demo=${XDG_STATE_HOME:-$HOME/.local/state}/keelway/demo
export PATH=$target/debug:$cache/bin:$PATH

step() { printf '\n%s\n' "$*" >&2; }

# The images' own process group is what ends with this script, with all compilers in it.
start_images() {
  cargo build --quiet --package xtask
  set -m
  xtask images --others --missing --plain "$@" &
  images=$!
  set +m
  trap 'kill -- "-$images" 2>/dev/null || true' EXIT
}

# Keelway's own images have the programs that the build left.
await_images() {
  wait "$images"
  trap - EXIT
  xtask images --own --missing --plain
}
