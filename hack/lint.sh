#!/usr/bin/env bash
# Formatting, lints, and rules of the house that a search can check.
set -euo pipefail
cd "$(dirname "$0")/.."

cargo fmt --all --check
cargo clippy --workspace --all-targets -- -D warnings

# refuse WHAT PATTERN PATHSPEC..: no line of these files matches.
refuse() {
  local what=$1 pattern=$2
  shift 2
  if git grep --line-number --perl-regexp "$pattern" -- "$@" ':!hack/lint.sh'; then
    printf 'lint: %s\n' "$what" >&2
    exit 1
  fi
}

refuse 'the host of a package registry' '(static|index)\.crates\.io|proxy\.golang\.org|sum\.golang\.org|deb\.debian\.org' .
refuse 'a path of one machine' '/root/|/home/[a-z]+/' .
refuse 'processes are stopped by their id' '\b(pkill|killall)\b' .
refuse 'allow hides; expect says when it is no longer needed' '#!?\[allow\(' '*.rs'
