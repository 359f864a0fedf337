#!/usr/bin/env bash
# Runs the conformance tests of Kubernetes against a cluster with two workers, and writes docs/conformance.md. See e2e/tests/conformance/suite.rs for
# the variables that select tests.
set -euo pipefail
cd "$(dirname "$0")/.."
source hack/environment.sh

[[ $(id -u) == 0 ]] || { echo "conformance: local hypervisors are network namespaces, which only root makes: sudo make conformance" >&2; exit 1; }

hack/setup.sh conformance
cargo build --quiet --package xtask
xtask images --others --missing --plain
xtask images --conformance --missing --plain
export KEELWAY_CONFORMANCE_PAGE=$PWD/docs/conformance.md
exec cargo test --workspace --test conformance -- --ignored --nocapture
