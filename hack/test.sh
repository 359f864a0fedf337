#!/usr/bin/env bash
# Every check and every test. Images are made while the workspace is checked and compiled.
set -euo pipefail
cd "$(dirname "$0")/.."
source hack/environment.sh

hack/rules.sh
cargo fmt --all --check
start_images
cargo clippy --workspace --all-targets -- -D warnings
cargo build --workspace --all-targets
await_images

exec cargo test --workspace
