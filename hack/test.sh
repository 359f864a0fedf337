#!/usr/bin/env bash
# Every check and every test. Images are made while the workspace is compiled.
set -euo pipefail
cd "$(dirname "$0")/.."
source hack/environment.sh

hack/rules.sh
cargo fmt --all --check
start_images
cargo build --workspace --bins --tests
await_images
exec xtask test
