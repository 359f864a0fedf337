#!/usr/bin/env bash
# Formatting, lints, rules of the house; licences, bans and sources where cargo-deny is installed.
set -euo pipefail
cd "$(dirname "$0")/.."

hack/rules.sh
cargo fmt --all --check
cargo clippy --workspace --all-targets --features keelway-vpn/simulated-clock -- -D warnings
if command -v cargo-deny >/dev/null; then
  cargo deny --log-level error --workspace check bans licenses sources
else
  echo "lint: cargo-deny is not there, so dependencies' licences are not checked: make lint-deny" >&2
fi
