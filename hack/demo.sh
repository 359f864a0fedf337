#!/usr/bin/env bash
# One highly available cluster on five local hypervisors, left running. Run again, it goes on from where it was.
set -euo pipefail
cd "$(dirname "$0")/.."
source hack/environment.sh

[[ $(id -u) == 0 ]] || { echo "demo: local hypervisors are network namespaces, which only root makes: sudo make demo" >&2; exit 1; }

umask 077
mkdir -p "$demo"
cd "$demo"

if [[ ! -s world.yaml ]]; then
  step '$ keelway hypervisor local create --fleet demo --public 2 --private 3 > world.yaml'
  keelway hypervisor local create --fleet demo --public 2 --private 3 > world.yaml.new
  mv world.yaml.new world.yaml
fi

# Documents come out of a reconcile that failed too, and hold the keys that it made.
reconcile() {
  local status=0
  keelway reconcile > c1.yaml.new || status=$?
  [[ ! -s c1.yaml.new ]] || mv c1.yaml.new c1.yaml
  return "$status"
}

if [[ -s c1.yaml ]]; then
  step '$ keelway reconcile < c1.yaml > c1.yaml.new && mv c1.yaml.new c1.yaml'
  reconcile < c1.yaml
else
  size='--etcd-replicas 3 --control-plane-replicas 3 --ingress-replicas 2'
  step "\$ keelway cluster inject --name c1 $size < world.yaml | keelway reconcile > c1.yaml"
  # shellcheck disable=SC2086  # a list of words
  keelway cluster inject --name c1 $size < world.yaml | reconcile
fi

step '$ keelway cluster kubeconfig --name c1 < c1.yaml > c1.kubeconfig'
keelway cluster kubeconfig --name c1 < c1.yaml > c1.kubeconfig

step '$ kubectl --kubeconfig c1.kubeconfig get --raw /readyz'
kubectl --kubeconfig c1.kubeconfig get --raw /readyz
echo

step '$ keelway status < c1.yaml'
keelway status < c1.yaml

cat <<EOF

The cluster is running. To go on playing:

  export PATH=$target/debug:$cache/bin:\$PATH
  export KUBECONFIG=$demo/c1.kubeconfig
  kubectl get namespaces
  kubectl --context c1-ingress-1 get namespaces       # the other way in
  kubectl create configmap hello --from-literal=from=keelway
  keelway hypervisor local stop --fleet demo demo-private-1    # a machine loses its power; start gives it back
  keelway status -o wide < $demo/c1.yaml
  keelway logs c1/kube-apiserver-0 --tail 5 < $demo/c1.yaml
  keelway events c1 < $demo/c1.yaml
  keelway plan < $demo/c1.yaml
  make demo-clean       # takes everything away
EOF
