#!/usr/bin/env bash
# The programs, and beside them the images that they run.
set -euo pipefail
cd "$(dirname "$0")/.."
source hack/environment.sh

start_images ${KEELWAY_PULL:+--pull}
cargo build --workspace
await_images
