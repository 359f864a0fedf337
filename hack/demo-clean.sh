#!/usr/bin/env bash
# Takes the demo away, whole or half done.
set -euo pipefail
cd "$(dirname "$0")/.."
source hack/environment.sh

[[ -d $demo ]] || { echo "demo-clean: there is no demo" >&2; exit 0; }
[[ -x $target/debug/keelway ]] || cargo build --package keelway-cli
cd "$demo"
umask 077

# Local hypervisors go with all that is on them, so a cluster that cannot be deleted does not keep them.
if [[ -s c1.yaml ]]; then
  step '$ keelway cluster delete --name c1 < c1.yaml | keelway reconcile --timeout 1m > empty.yaml'
  keelway cluster delete --name c1 < c1.yaml | keelway reconcile --timeout 1m > empty.yaml ||
    echo "demo-clean: the cluster is not gone; its machines go all the same" >&2
fi

step '$ keelway hypervisor local destroy --fleet demo'
keelway hypervisor local destroy --fleet demo
rm -rf "$demo"
