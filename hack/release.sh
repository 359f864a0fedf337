#!/usr/bin/env bash
# Builds programs of an earlier release beside this tree: hack/release.sh VERSION COMMIT. They are in target/releases/VERSION/debug.
set -euo pipefail
cd "$(dirname "$0")/.."

version=$1 commit=$2
release=$PWD/target/releases/$version
mkdir -p "$release/tree"
[[ -e $release/tree/Cargo.toml ]] || git archive "$commit" | tar --extract --directory "$release/tree"
cd "$release/tree"
exec env CARGO_TARGET_DIR="$release" cargo build --workspace --bin keelway --bin keelway-hypervisor-agent
