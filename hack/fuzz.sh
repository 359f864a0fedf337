#!/usr/bin/env bash
# Goes on from where the tests with mutants end: hack/fuzz.sh lib/api documents 60. Any compiler will do; libFuzzer comes with its crate.
set -euo pipefail
cd "$(dirname "$0")/.."

crate=$1 target=$2 seconds=${3:-60}
name=${crate##*/}-$target
inputs=()
[[ -d $crate/tests/bad ]] && inputs=("$crate/tests/bad")
corpus=target/fuzz/corpus/$name
host=$(rustc -vV | sed -n 's/^host: //p')
coverage=(-Cpasses=sancov-module)
for part in level=4 inline-8bit-counters pc-table trace-compares; do
  coverage+=("-Cllvm-args=-sanitizer-coverage-$part")
done

# What is fuzzed is what is built: the versions of the workspace.
cp Cargo.lock "$crate/fuzz/Cargo.lock"
RUSTFLAGS="--cfg fuzzing -Cdebug-assertions -Coverflow-checks ${coverage[*]}" \
  cargo build --release --manifest-path "$crate/fuzz/Cargo.toml" --target "$host" --target-dir target/fuzz
mkdir -p "$corpus"
"target/fuzz/$host/release/$target" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=2048 \
  -artifact_prefix="target/fuzz/$name-" "$corpus" "${inputs[@]}"
