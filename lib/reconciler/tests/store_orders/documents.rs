//! A driver with the documents of a store, whose members listen on loopback.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use async_trait::async_trait;
use keelway_agent_api::client::ConfigDelivery;
use keelway_api::{
    Documents, Hypervisor,
    jiff::Timestamp,
    machine::{MachineState, ObservedValue},
    store_observation::MemberId,
};
use keelway_cri::proxy::connection::MachineConnection;
use keelway_machine::action::Action;
use keelway_planner::{
    ComponentHealth, PassObservation, Probe, StoreObservation, StoreOrder, WaitBlocker, invariants, plan, probes,
};
use keelway_reconciler::{ApplyOutcome, Components, DialledComponents, Machines, RunControl};
use tokio::net::TcpStream;

use crate::{member::StoreProcesses, wait};

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

/// The status of a store of three members with these ids. Something was minted, so that no Secret counts as lost.
fn store_status(ids: &[MemberId; 3], cluster: MemberId) -> String {
    let members = ids.iter().enumerate();
    let members: Vec<String> =
        members.map(|(number, id)| format!("etcd-{number}: {{id: {id}, phase: Started}}")).collect();
    let urls =
        (0..3).map(|number| format!("etcd-{number}: ['https://127.0.0.1:{}']", crate::member::client_port(number) + 1));
    format!(
        "initialization: {{controlPlaneInitialized: true}}, minted: {{others: digest}}, etcd: {{bornAt: '2026-01-01T00:00:00Z', clusterId: {cluster}, \
         initialCluster: {{{}}}, members: {{{}}}}}",
        urls.collect::<Vec<_>>().join(", "),
        members.join(", ")
    )
}

/// One driver, with connections of its own.
pub(crate) struct TestDriver {
    documents: Documents,
    members: Vec<Probe>,
    components: DialledComponents,
}

impl TestDriver {
    pub(crate) fn new(processes: &StoreProcesses) -> Self {
        Self::of(processes, DOCUMENTS, 2)
    }

    /// Returns a driver that decides, too. It reads the ids of the members from the running store.
    pub(crate) async fn of_three(processes: &StoreProcesses) -> Self {
        let observer = Self::of(processes, DOCUMENTS, 3);
        let reported = async |member: usize| {
            let store = observer.store().await;
            let report = store.report(&format!("etcd-{member}").parse().unwrap()).cloned();
            report.filter(|report| report.leader.is_some()).map(|report| (report.id, report.cluster_id))
        };
        wait::until("all members work", async || {
            reported(0).await.is_some() && reported(1).await.is_some() && reported(2).await.is_some()
        })
        .await;
        let found = [reported(0).await.unwrap(), reported(1).await.unwrap(), reported(2).await.unwrap()];
        let status = store_status(&found.map(|(id, _)| id), found[0].1);
        let documents = DOCUMENTS
            .replace("spec: {version: 1.37.0}", "spec: {version: 1.37.0, etcd: {replicas: 3}}")
            .replace("ingressPort: 20000", &format!("ingressPort: 20000, {status}"));
        Self::of(processes, &documents, 3)
    }

    fn of(processes: &StoreProcesses, documents: &str, count: usize) -> Self {
        let [authority, certificate, key] = processes.identity().map(|text| serde_json::to_string(&text).unwrap());
        let secrets =
            SECRETS.replace("$authority", &authority).replace("$certificate", &certificate).replace("$key", &key);
        let components: String = (0..count).map(component).collect();
        let text = documents.to_owned() + &components + &secrets;
        let documents = Documents::read(text.as_bytes()).unwrap();
        let members = probes(&documents).unwrap();
        assert_eq!(members.len(), count);
        Self { documents, members, components: DialledComponents::new(Arc::new(Loopback)) }
    }

    /// Decides as a pass does, and executes the order. Only the store is observed. Returns the order, and what the members wait for.
    pub(crate) async fn pass(&mut self) -> (Option<StoreOrder>, Vec<WaitBlocker>) {
        let health = self.members.iter().map(|probe| (probe.component.clone(), ComponentHealth::Healthy)).collect();
        let id = self.members[0].component.cluster.clone();
        let stores = [(id, self.store().await)].into();
        let seen = PassObservation { health, stores, ..PassObservation::default() };
        let plan = plan(self.documents.clone(), &seen, Timestamp::now()).unwrap();
        assert_eq!(invariants::check_stores(&plan, &seen), []);
        let order = plan.stores.into_values().next();
        self.documents = plan.documents;
        if let Some(order) = &order
            && let Err(refused) = self.order(order).await
        {
            println!("{order}: {refused}");
        }
        (order, plan.waiting.into_iter().map(|waiting| waiting.blocker).collect())
    }

    pub(crate) async fn store(&self) -> StoreObservation {
        self.components.store(&self.documents, &self.members).await
    }

    pub(crate) async fn order(&self, order: &StoreOrder) -> Result<(), String> {
        self.components.order(&self.documents, &self.members, order).await
    }
}
