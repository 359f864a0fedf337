//! A driver with the documents of a store, whose members listen on loopback.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use async_trait::async_trait;
use keelway_agent_api::client::ConfigDelivery;
use keelway_api::{
    Documents, Hypervisor,
    machine::{MachineState, ObservedValue},
};
use keelway_cri::proxy::connection::MachineConnection;
use keelway_machine::action::Action;
use keelway_planner::{Probe, StoreObservation, StoreOrder, probes};
use keelway_reconciler::{ApplyOutcome, Components, DialledComponents, Machines, RunControl};
use tokio::net::TcpStream;

use crate::member::StoreProcesses;

/// Two members of a store on one machine.
const DOCUMENTS: &str = "\
apiVersion: keelway.dev/v1alpha1
kind: Hypervisor
metadata: {name: hv-1}
spec: {role: Private, endpoint: {unix: {path: /run/containerd/containerd.sock}}, addresses: {private: [10.0.0.1]}, portRange: {from: 25000, to: 25999}}
---
apiVersion: keelway.dev/v1alpha1
kind: Cluster
metadata: {name: c1, namespace: default}
spec: {version: 1.37.0}
status: {id: 0123456789abcdef, ingressPort: 20000}
";

const SECRETS: &str = "\
---
apiVersion: v1
kind: Secret
metadata: {name: etcd-ca, namespace: keelway-0123456789abcdef, labels: {keelway.dev/cluster-id: 0123456789abcdef}}
type: Opaque
stringData: {bundle.crt: $authority}
---
apiVersion: v1
kind: Secret
metadata: {name: driver, namespace: keelway-0123456789abcdef, labels: {keelway.dev/cluster-id: 0123456789abcdef}}
type: Opaque
stringData: {etcd-client.crt: $certificate, etcd-client.key: $key}
";

fn component(member: usize) -> String {
    format!(
        "\
---
apiVersion: keelway.dev/v1alpha1
kind: Component
metadata: {{name: etcd-{member}, namespace: keelway-0123456789abcdef, labels: {{keelway.dev/cluster-id: 0123456789abcdef, keelway.dev/component: etcd-{member}}}}}
spec:
  cluster: {{namespace: default, name: c1}}
  clusterId: 0123456789abcdef
  role: etcd
  index: {member}
  version: 1.37.0
  hypervisor: hv-1
  ports: {{client: {port}, peer: {peer}}}
  user: 1900000000
  placement: it is the only one
",
        port = crate::member::client_port(member),
        peer = crate::member::client_port(member) + 1,
    )
}

/// Dials loopback, whatever the address.
struct Loopback;

#[async_trait]
impl Machines for Loopback {
    async fn observe(&self, _: &Hypervisor) -> ObservedValue<MachineState> {
        ObservedValue::unreachable("only its network is used")
    }
    async fn apply(&self, _: &Hypervisor, _: ConfigDelivery, _: Vec<Action>, _: &RunControl) -> ApplyOutcome {
        ApplyOutcome::default()
    }
    async fn dial(&self, _: &Hypervisor, address: SocketAddr, _: Duration) -> io::Result<MachineConnection> {
        TcpStream::connect(("127.0.0.1", address.port())).await.map(MachineConnection::from)
    }
    async fn changed(&self, _: &[&Hypervisor]) {}
}

/// One driver, with connections of its own.
pub(crate) struct TestDriver {
    documents: Documents,
    members: Vec<Probe>,
    components: DialledComponents,
}

impl TestDriver {
    pub(crate) fn new(processes: &StoreProcesses) -> Self {
        let [authority, certificate, key] = processes.identity().map(|text| serde_json::to_string(&text).unwrap());
        let secrets =
            SECRETS.replace("$authority", &authority).replace("$certificate", &certificate).replace("$key", &key);
        let text = DOCUMENTS.to_owned() + &component(0) + &component(1) + &secrets;
        let documents = Documents::read(text.as_bytes()).unwrap();
        let members = probes(&documents).unwrap();
        assert_eq!(members.len(), 2);
        Self { documents, members, components: DialledComponents::new(Arc::new(Loopback)) }
    }

    pub(crate) async fn store(&self) -> StoreObservation {
        self.components.store(&self.documents, &self.members).await
    }

    pub(crate) async fn order(&self, order: &StoreOrder) -> Result<(), String> {
        self.components.order(&self.documents, &self.members, order).await
    }
}
