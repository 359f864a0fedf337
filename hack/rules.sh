#!/usr/bin/env bash
# Rules of the house that a search of the tree can check.
set -euo pipefail
cd "$(dirname "$0")/.."

# refuse WHAT PATTERN PATHSPEC..: no line of these files matches.
refuse() {
  local what=$1 pattern=$2
  shift 2
  local status=0
  git grep --untracked --line-number --perl-regexp "$pattern" -- "$@" ':!hack/rules.sh' >&2 || status=$?
  case $status in
    0) printf 'rules: %s\n' "$what" >&2; exit 1 ;;
    1) ;;
    *) exit "$status" ;;
  esac
}

refuse 'the host of a package registry does not belong in the tree' \
  '(static|index)\.crates\.io|(proxy|sum)\.golang\.org|deb\.debian\.org' .
refuse 'a path of one machine does not belong in the tree' '/root/|/home/[a-z]+/' .
refuse 'processes are stopped by their id' '\b(pkill|killall)\b' .
refuse 'a fleet decides without clocks, files and environment' '\bstd::|\bHash(Map|Set)\b' 'lib/fleet/src/*.rs'
refuse 'one TLS stack, one YAML library' \
  '^name = "(openssl|openssl-sys|native-tls|aws-lc-rs|aws-lc-sys|serde_yaml)"' Cargo.lock
refuse 'dependencies come from crates.io' '^source = (?!"registry\+https://github\.com/rust-lang/crates\.io-index")' Cargo.lock

# Every test that docs/security.md names is there.
named=$(grep -oE '[a-z0-9/_-]+\.rs: [a-z0-9_]+' docs/security.md)
while IFS= read -r test; do
  git grep --untracked --quiet --perl-regexp "\bfn ${test#*: }\b" -- "${test%%: *}" ||
    { printf 'rules: docs/security.md names what is not there: %s\n' "$test" >&2; exit 1; }
done <<<"$named"

# One name is one thing: a search for the name of a type finds that type. Modules of tests are crates of their own.
twice=$(git grep --untracked -h --only-matching --perl-regexp \
  '^(pub(\([^)]*\))? )?(unsafe )?(struct|enum|trait|union|type) \K[A-Z]\w*' -- '*/src/*.rs' ':!*/tests.rs' ':!*/tests/*' ':!*/properties.rs' |
  sort | uniq --repeated)
[ -z "$twice" ] || { printf 'rules: more than one type has this name: %s\n' $twice >&2; exit 1; }
refuse 'a module is name.rs beside name/' '.' '*/src/*/mod.rs' '*/src/mod.rs'
