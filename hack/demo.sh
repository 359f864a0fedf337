#!/usr/bin/env bash
# One highly available cluster on five local hypervisors, and two workers behind NATs, left running. Run again, it goes on from where it was.
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

# Both have the address 192.168.1.2, each behind a NAT of its own.
agnhost=registry.k8s.io/e2e-test-images/agnhost:2.66.1
for worker in 1 2; do
  step "\$ keelway node local create --fleet demo --name w$worker --behind nat-$worker --image $agnhost"
  keelway node local create --fleet demo --name "w$worker" --behind "nat-$worker" --image "$agnhost"
done

step '$ keelway join-token create --cluster c1 < c1.yaml > token'
keelway join-token create --cluster c1 < c1.yaml > token

# On a machine of your own: keelway node join --token-file token
for worker in 1 2; do
  on=(keelway node local exec --fleet demo "w$worker" --)
  "${on[@]}" keelway node status > /dev/null 2>&1 && continue
  step "\$ ${on[*]} keelway node join - --allow-cgroup-v1 --service detached < token"
  "${on[@]}" keelway node join - --allow-cgroup-v1 --service detached < token
done

kubectl=(kubectl --kubeconfig c1.kubeconfig)
step '$ kubectl --kubeconfig c1.kubeconfig apply -f hello.yaml'
cat > hello.yaml <<EOF
apiVersion: apps/v1
kind: Deployment
metadata: {name: hello}
spec:
  replicas: 2
  selector: {matchLabels: {app: hello}}
  template:
    metadata: {labels: {app: hello}}
    spec:
      topologySpreadConstraints:
        - {maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: DoNotSchedule, labelSelector: {matchLabels: {app: hello}}}
      containers: [{name: hello, image: '$agnhost', args: [netexec, --http-port=8080]}]
---
apiVersion: v1
kind: Service
metadata: {name: hello}
spec: {selector: {app: hello}, ports: [{port: 80, targetPort: 8080}]}
EOF
"${kubectl[@]}" apply -f hello.yaml
"${kubectl[@]}" rollout status deployment/hello --timeout 3m
"${kubectl[@]}" --namespace kube-system rollout status deployment/coredns --timeout 3m

# By its DNS name: each of the two answers with its own.
ask='for i in 1 2 3 4 5 6; do exec 3<>/dev/tcp/hello.default.svc.cluster.local/80; printf "GET /hostname HTTP/1.0\r\n\r\n" >&3; tail=$(cat <&3); echo "${tail##*$'"'"'\n'"'"'}"; done'
step '$ kubectl --kubeconfig c1.kubeconfig exec deployment/hello -- bash -c ".. hello.default.svc.cluster.local .."'
"${kubectl[@]}" exec deployment/hello -- bash -c "$ask"

step '$ kubectl --kubeconfig c1.kubeconfig get nodes,pods -o wide'
"${kubectl[@]}" get nodes,pods -o wide

cat <<EOF

The cluster is running. To go on playing:

  export PATH=$target/debug:$cache/bin:\$PATH
  export KUBECONFIG=$demo/c1.kubeconfig
  kubectl get namespaces
  kubectl --context c1-ingress-1 get namespaces       # the other way in
  kubectl create configmap hello --from-literal=from=keelway
  kubectl top nodes
  keelway node local exec --fleet demo w1 -- keelway node status
  keelway node local renumber --fleet demo nat-1               # its provider gives it another address
  keelway hypervisor local stop --fleet demo demo-private-1    # a machine loses its power; start gives it back
  keelway status -o wide < $demo/c1.yaml
  keelway logs c1/kube-apiserver-0 --tail 5 < $demo/c1.yaml
  keelway events c1 < $demo/c1.yaml
  keelway plan < $demo/c1.yaml
  make demo-clean       # takes everything away
EOF
