#!/usr/bin/env bash
# The programs, and beside them the images that they run. Those that only tests need are made by `make images` and `make test`.
set -euo pipefail
cd "$(dirname "$0")/.."
source hack/environment.sh

start_images --no-tests ${KEELWAY_PULL:+--pull}
cargo build --workspace
await_images
