//! Tests of which components are probed, and how long their responses may take.

use std::{io, net::SocketAddr, sync::Mutex};

use async_trait::async_trait;
use keelway_agent_api::client::ConfigDelivery;
use keelway_api::{
    Hypervisor,
    jiff::Timestamp,
    machine::{
        CgroupDriver, ContainerPhase, ContainerState, MachineState, RuntimeFacts, SandboxState, ServerAdmin,
        ServerState,
    },
};
use keelway_cri::proxy::connection::MachineConnection;
use keelway_machine::action::Action;
use keelway_planner::{identify, plan};
use rand::{SeedableRng, rngs::StdRng};

use super::*;
use crate::{
    ApplyOutcome, Minter, PkiMinter, RunControl,
    health::{is_not_ready, wait_for_recovery},
};

const DOCUMENTS: &str = "\
apiVersion: keelway.dev/v1alpha1
kind: Cluster
metadata: {name: c1, namespace: default}
spec:
  version: 1.37.0
  ingress: {replicas: 0}
---
apiVersion: keelway.dev/v1alpha1
kind: Hypervisor
metadata: {name: hv-1}
spec:
  role: Private
  endpoint: {unix: {path: /run/1.sock}}
  addresses: {private: [10.0.0.1]}
";

/// 2026-01-01.
const NOW: i64 = 1_767_225_600;

/// Returns documents with one cluster whose components are placed and were never ready.
pub(crate) fn placed() -> Documents {
    placed_of(DOCUMENTS)
}

/// Returns [`placed`] with an ingress.
fn placed_with_ingress() -> Documents {
    let public = "\
---
apiVersion: keelway.dev/v1alpha1
kind: Hypervisor
metadata: {name: hv-2}
spec:
  role: Public
  endpoint: {unix: {path: /run/2.sock}}
  addresses: {private: [10.0.0.2], public: [192.0.2.2]}
";
    placed_of(&(DOCUMENTS.replace("{replicas: 0}", "{replicas: 1}") + public))
}

fn placed_of(text: &str) -> Documents {
    let mut minter = PkiMinter::new(StdRng::seed_from_u64(1));
    let mut documents = Documents::read(text.as_bytes()).unwrap();
    identify(&mut documents, || minter.id()).unwrap();
    let machines = documents.hypervisors.keys().map(|name| (name.clone(), ObservedValue::Known(empty()))).collect();
    let seen = PassObservation { machines, ..PassObservation::default() };
    let now = Timestamp::from_second(NOW).unwrap();
    let mut plan = plan(documents, &seen, now).unwrap();
    minter.mint(&mut plan.documents, &plan.mint, now).unwrap();
    plan.documents
}

pub(crate) fn empty() -> MachineState {
    MachineState::empty(RuntimeFacts {
        name: "test".to_owned(),
        version: "1".to_owned(),
        cgroup_driver: CgroupDriver::Cgroupfs,
    })
}

/// Machines with a fixed state, to which no connection can be opened.
struct Away(ObservedValue<MachineState>);

#[async_trait]
impl Machines for Away {
    async fn observe(&self, _machine: &Hypervisor) -> ObservedValue<MachineState> {
        self.0.clone()
    }
    async fn apply(&self, _: &Hypervisor, _: ConfigDelivery, _: Vec<Action>, _: &RunControl) -> ApplyOutcome {
        ApplyOutcome::default()
    }
    async fn dial(&self, _: &Hypervisor, _: SocketAddr, _: Duration) -> io::Result<MachineConnection> {
        Err(io::ErrorKind::NotConnected.into())
    }
    async fn changed(&self, _: &[&Hypervisor]) {}
}

/// Components that are healthy, except one that never responds.
struct Silent {
    component: &'static str,
    asked_for_bindings: Mutex<usize>,
}

impl Silent {
    fn new(component: &'static str) -> Self {
        Self { component, asked_for_bindings: Mutex::default() }
    }
}

#[async_trait]
impl Components for Silent {
    async fn health(&self, _: &Documents, probe: &Probe) -> ComponentHealth {
        if probe.component.component.as_str() == self.component {
            return std::future::pending().await;
        }
        ComponentHealth::Healthy
    }
    async fn bindings(&self, _: &Documents, _: &ClusterId) -> ObservedValue<String> {
        *self.asked_for_bindings.lock().unwrap() += 1;
        ObservedValue::Known(String::new())
    }
    async fn bind(&self, _: &Documents, _: &ClusterId, _: Timestamp) -> Result<(), String> {
        Ok(())
    }
}

async fn seen_with(silent: &Silent) -> PassObservation {
    observe(&Away(ObservedValue::unreachable("away")), silent, &placed(), StoreSelection::Needed).await.unwrap()
}

#[tokio::test]
async fn a_starting_component_delays_no_observation() {
    let silent = Silent::new("kube-apiserver-0");
    let seen = seen_with(&silent).await;
    let well = seen.health.iter().filter(|(_, health)| **health == ComponentHealth::Healthy).count();
    assert_eq!((well, seen.health.len()), (3, 4));
    let silence = seen.health.values().filter(|health| matches!(health, ComponentHealth::NoAnswer(_))).count();
    assert_eq!(silence, 1, "it may work: {:?}", seen.health);
    assert!(matches!(seen.bindings.values().next(), Some(ObservedValue::Unreachable { .. })), "{:?}", seen.bindings);
    assert_eq!(*silent.asked_for_bindings.lock().unwrap(), 0, "its API is not there yet");
}

#[tokio::test]
async fn bindings_are_read_as_soon_as_the_api_responds() {
    let silent = Silent::new("kube-scheduler-0");
    let seen = seen_with(&silent).await;
    assert!(matches!(seen.bindings.values().next(), Some(ObservedValue::Known(_))), "{:?}", seen.bindings);
}

#[tokio::test]
async fn a_recovery_is_observed_beside_a_silent_component() {
    wait_for_recovery(&Silent::new("kube-apiserver-0"), &placed(), is_not_ready, Duration::from_millis(10)).await;
}

fn pod(documents: &Documents, component: &str) -> PodName {
    documents.components.keys().find(|pod| pod.component.as_str() == component).unwrap().clone()
}

/// Records that the component was ready at the last pass.
fn was_ready(documents: &mut Documents, pod: &PodName) {
    let status = documents.components.get_mut(pod).unwrap().status.as_mut().unwrap();
    let ready = status.conditions.iter_mut().find(|condition| condition.type_ == "Ready").unwrap();
    ready.status = "True".to_owned();
}

/// Returns a machine on which this component runs. `answered`: whether its agent probed it successfully.
fn with_agent(documents: &Documents, component: &str, answered: bool) -> MachineState {
    let pod = pod(documents, component);
    let sandbox = SandboxState { id: "s".to_owned(), pod, attempt: 0, digest: String::new(), ready: true };
    let container = ContainerState {
        id: "c".to_owned(),
        sandbox: "s".to_owned(),
        name: component.to_owned(),
        attempt: 0,
        phase: ContainerPhase::Running,
        stop_seconds: None,
    };
    let healthy = answered.then(|| "c".to_owned()).into_iter().collect();
    MachineState { sandboxes: vec![sandbox], containers: vec![container], healthy, ..empty() }
}

#[tokio::test]
async fn a_component_that_an_agent_reports_as_healthy_is_not_probed() {
    let documents = placed();
    let of_scheduler = |seen: &PassObservation| {
        let of_it = |(pod, _): &(&PodName, &ComponentHealth)| pod.component.as_str() == "kube-scheduler-0";
        seen.health.iter().find(of_it).unwrap().1.clone()
    };
    for answered in [true, false] {
        let silent = Silent::new("kube-scheduler-0");
        let machines = Away(ObservedValue::Known(with_agent(&documents, "kube-scheduler-0", answered)));
        let seen = observe(&machines, &silent, &documents, StoreSelection::Needed).await.unwrap();
        assert_eq!(of_scheduler(&seen) == ComponentHealth::Healthy, answered, "{:?}", seen.health);
    }
    // An agent probes whether an API server is live, which does not show whether it is ready.
    let machines = Away(ObservedValue::Known(with_agent(&documents, "kube-apiserver-0", true)));
    let seen = observe(&machines, &Silent::new("kube-apiserver-0"), &documents, StoreSelection::Needed).await.unwrap();
    assert_eq!(seen.health.values().filter(|health| **health == ComponentHealth::Healthy).count(), 3);
}

/// Returns the state of a machine with a running component, and with a haproxy that reports the API server as ready or not; none: no haproxy.
fn with_haproxy(documents: &Documents, component: &str, lives: bool, ready: Option<bool>) -> MachineState {
    let state = with_agent(documents, component, lives);
    let address = "10.0.0.1:1".parse().unwrap();
    let server = |ready| ServerState { address, admin: ServerAdmin::Serves, sessions: 0, ready };
    let server =
        |ready| (pod(documents, "ingress-0"), [("kube-apiserver/kube-apiserver-0".to_owned(), server(ready))].into());
    MachineState { servers: ready.map(server).into_iter().collect(), ..state }
}

/// Returns whether a component that does not respond counts as healthy.
async fn is_vouched(documents: &Documents, component: &'static str, lives: bool, ready: Option<bool>) -> bool {
    let machines = Away(ObservedValue::Known(with_haproxy(documents, component, lives, ready)));
    let silent = Silent::new(component);
    // A component that was ready gets more time to respond than this timeout.
    let seen =
        timeout(Duration::from_millis(200), observe(&machines, &silent, documents, StoreSelection::Needed)).await;
    seen.is_ok_and(|seen| seen.unwrap().health[&pod(documents, component)] == ComponentHealth::Healthy)
}

#[tokio::test]
async fn a_component_that_haproxy_reports_as_healthy_is_not_probed() {
    for component in ["kube-apiserver-0", "ingress-0"] {
        let mut documents = placed_with_ingress();
        assert!(!is_vouched(&documents, component, true, Some(true)).await, "it was never ready, and is asked");
        let pod = pod(&documents, component);
        was_ready(&mut documents, &pod);
        assert!(is_vouched(&documents, component, true, Some(true)).await, "{component}");
        assert!(!is_vouched(&documents, component, true, Some(false)).await, "haproxy calls no API server ready");
        assert!(!is_vouched(&documents, component, false, Some(true)).await, "its agent does not vouch for it");
        assert!(!is_vouched(&documents, component, true, None).await, "no haproxy tells of any");
    }
}
