#!/usr/bin/env bash
# Every check and every test. Images are made while the workspace is checked and compiled.
set -euo pipefail
cd "$(dirname "$0")/.."
source hack/environment.sh

hack/rules.sh
cargo fmt --all --check
start_images
cargo clippy --workspace --all-targets --features keelway-vpn/simulated-clock -- -D warnings
cargo build --workspace --all-targets
await_images

# The feature stops the clock of the VPN's sessions, which all other tests need.
cargo test --package keelway-vpn --features simulated-clock --test simulated
exec cargo test --workspace
