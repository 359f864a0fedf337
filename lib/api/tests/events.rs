//! Each change produces one event, and settled documents produce none.
#![expect(clippy::unwrap_used, reason = "this is all test")]

use keelway_api::{
    ByteString, Cluster, Component, Condition, Documents, Time,
    cluster::Initialization,
    component::ComponentStage,
    condition::{self, ConditionStatus, ConditionValue, reason::ConditionReason},
    document::DocumentName,
    documents::SecretName,
    event::{of_change, reason},
    jiff::Timestamp,
    name::PodName,
};

const WORLD: &str = "\
apiVersion: keelway.dev/v1alpha1
kind: Hypervisor
metadata: {name: hv-1, uid: of-the-machine}
spec: {role: Private, endpoint: {unix: {path: /run/containerd/containerd.sock}}, addresses: {private: [10.0.0.1]}}
status: {installation: 00000000000000ff}
---
apiVersion: keelway.dev/v1alpha1
kind: Cluster
metadata: {name: c1, namespace: team, uid: of-the-cluster}
spec: {version: 1.37.0}
status: {id: 0123456789abcdef, ingressPort: 20000}
";
const COMPONENT: &str = "\
---
apiVersion: keelway.dev/v1alpha1
kind: Component
metadata: {name: etcd-0, namespace: keelway-0123456789abcdef, labels: {keelway.dev/cluster-id: 0123456789abcdef, keelway.dev/component: etcd-0}}
spec:
  cluster: {namespace: team, name: c1}
  clusterId: 0123456789abcdef
  role: etcd
  index: 0
  version: 1.37.0
  hypervisor: hv-1
  ports: {client: 20001, peer: 20002}
  user: 1900000000
  placement: it is the only one
";

fn empty() -> Documents {
    Documents::read(WORLD.as_bytes()).unwrap()
}

fn placed() -> Documents {
    Documents::read([WORLD, COMPONENT].concat().as_bytes()).unwrap()
}

fn cluster(documents: &mut Documents) -> &mut Cluster {
    documents.clusters.values_mut().next().unwrap()
}

fn etcd(documents: &mut Documents) -> &mut Component {
    documents.components.values_mut().next().unwrap()
}

fn initialize(documents: &mut Documents) {
    cluster(documents).status.as_mut().unwrap().initialization =
        Some(Initialization { control_plane_initialized: true });
}

fn says(
    conditions: &mut Vec<Condition>,
    kind: &str,
    (status, reason): (ConditionStatus, ConditionReason),
    message: &str,
) {
    let verdict = ConditionValue { status, reason: reason.as_str().to_owned(), message: message.to_owned() };
    condition::set(conditions, kind, verdict, None, &Time(Timestamp::UNIX_EPOCH));
}

fn of_cluster(documents: &mut Documents, kind: &str, what: (ConditionStatus, ConditionReason), message: &str) {
    says(&mut cluster(documents).status.as_mut().unwrap().conditions, kind, what, message);
}

fn of_etcd(documents: &mut Documents, what: (ConditionStatus, ConditionReason), message: &str) {
    says(&mut etcd(documents).status.as_mut().unwrap().conditions, "Ready", what, message);
}

/// Returns each event as `TYPE NAME REASON: NOTE`.
fn told(before: &Documents, after: &Documents) -> Vec<String> {
    let each = of_change(before, after).into_iter().map(|event| {
        let kind = if event.warning { "Warning" } else { "Normal" };
        format!("{kind} {} {}: {}", event.regarding.name(), event.reason, event.note)
    });
    each.collect()
}

#[test]
fn unchanged_documents_cause_no_events() {
    let mut documents = placed();
    of_cluster(&mut documents, "Progressing", (ConditionStatus::True, ConditionReason::Starting), "waits for etcd-0");
    assert_eq!(told(&documents, &documents), [""; 0]);
    let mut later = documents.clone();
    of_cluster(&mut later, "Progressing", (ConditionStatus::True, ConditionReason::Starting), "waits for another one");
    assert_eq!(told(&documents, &later), [""; 0], "progress is no turn");
}

#[test]
fn events_follow_each_step_of_a_creation() {
    let (before, mut after) = (empty(), placed());
    of_cluster(&mut after, "Progressing", (ConditionStatus::True, ConditionReason::Starting), "waits for etcd-0");
    of_cluster(&mut after, "Degraded", (ConditionStatus::True, ConditionReason::NotReady), "not ready: etcd-0");
    of_cluster(&mut after, "Available", (ConditionStatus::False, ConditionReason::NotServing), "it does not serve");
    assert_eq!(
        told(&before, &after),
        [
            "Normal c1 Starting: waits for etcd-0",
            "Normal c1 ComponentPlaced: etcd-0 is placed on hv-1: it is the only one"
        ]
    );
    let event = of_change(&before, &after).pop().unwrap();
    assert_eq!(event.uid.as_deref(), Some("of-the-cluster"));
    assert_eq!(event.related.unwrap().name(), "etcd-0");

    let mut ready = after.clone();
    etcd(&mut ready).status.get_or_insert_default().stage = ComponentStage::Serving;
    initialize(&mut ready);
    of_cluster(&mut ready, "Available", (ConditionStatus::True, ConditionReason::Serving), "it serves");
    of_cluster(
        &mut ready,
        "Progressing",
        (ConditionStatus::False, ConditionReason::Settled),
        "it is as its document says",
    );
    assert_eq!(
        told(&after, &ready),
        [
            "Normal c1 ControlPlaneInitialized: an API server is ready for the first time",
            "Normal c1 Serving: it serves",
            "Normal c1 Settled: it is as its document says",
            "Normal c1 ComponentJoined: etcd-0 on hv-1 is ready for the first time",
        ]
    );
}

#[test]
fn a_failure_is_a_warning() {
    let mut well = placed();
    initialize(&mut well);
    etcd(&mut well).status.get_or_insert_default().stage = ComponentStage::Serving;
    of_etcd(&mut well, (ConditionStatus::True, ConditionReason::Healthy), "it answers its health check");
    of_cluster(&mut well, "Degraded", (ConditionStatus::False, ConditionReason::AllReady), "every component is ready");
    let mut ill = well.clone();
    of_etcd(&mut ill, (ConditionStatus::False, ConditionReason::Exited), "its restart: it ended with exit code 1");
    of_cluster(&mut ill, "Degraded", (ConditionStatus::True, ConditionReason::NotReady), "not ready: etcd-0");
    assert_eq!(
        told(&well, &ill),
        [
            "Warning c1 NotReady: not ready: etcd-0",
            "Warning c1 Exited: etcd-0 on hv-1 waits for its restart: it ended with exit code 1",
        ]
    );
    let mut starting = ill.clone();
    of_etcd(&mut starting, (ConditionStatus::False, ConditionReason::Unhealthy), "its health check to succeed");
    assert_eq!(told(&ill, &starting), [""; 0], "it is as ill as before");
    assert_eq!(
        told(&starting, &well),
        ["Normal c1 AllReady: every component is ready", "Normal c1 Healthy: etcd-0 on hv-1 is ready again"]
    );
}

#[test]
fn events_follow_machines() {
    let (before, mut after) = (empty(), empty());
    let machine = after.hypervisors.values_mut().next().unwrap();
    let conditions = &mut machine.status.as_mut().unwrap().conditions;
    says(conditions, "Ready", (ConditionStatus::Unknown, ConditionReason::NotObserved), "nobody looked yet");
    assert_eq!(told(&before, &after), [""; 0]);
    let before = after.clone();
    let machine = after.hypervisors.values_mut().next().unwrap();
    let conditions = &mut machine.status.as_mut().unwrap().conditions;
    says(conditions, "Ready", (ConditionStatus::False, ConditionReason::Unreachable), "no route");
    says(conditions, "DiskPressure", (ConditionStatus::True, ConditionReason::DiskFull), "waits for room");
    assert_eq!(told(&before, &after), ["Warning hv-1 DiskFull: waits for room", "Warning hv-1 Unreachable: no route"]);
    assert_eq!(
        told(&after, &before),
        ["Normal hv-1 DiskHasRoom: its disk has free space again"],
        "what nobody looked at tells nothing"
    );
}

#[test]
fn certificates_are_named_and_nothing_of_them_is_shown() {
    let name = SecretName::of(&"0123456789abcdef".parse().unwrap(), "etcd-0");
    let bytes = |text: &str| ByteString(text.as_bytes().to_vec());
    let mut before = placed();
    before.put_secret_values(&name, [("peer.crt".to_owned(), bytes("old")), ("peer.key".to_owned(), bytes("old key"))]);
    let mut after = before.clone();
    after.put_secret_values(&name, [("peer.crt".to_owned(), bytes("new")), ("peer.key".to_owned(), bytes("new key"))]);
    after.put_secret_values(&name, [("server.crt".to_owned(), bytes("first"))]);
    assert_eq!(told(&before, &after), ["Normal c1 CertificatesRenewed: etcd-0 has new certificates: peer"]);
    assert!(matches!(of_change(&before, &after)[0].related, Some(DocumentName::Component(PodName { .. }))));
    assert_eq!(told(&placed(), &before), [""; 0], "the first ones come with the component");
}

#[test]
fn a_deletion_is_one_event() {
    let mut going = placed();
    cluster(&mut going).metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
    of_cluster(&mut going, "Available", (ConditionStatus::True, ConditionReason::Serving), "it serves");
    let mut gone = going.clone();
    of_cluster(&mut gone, "Available", (ConditionStatus::False, ConditionReason::Deleting), "it is being deleted");
    assert_eq!(told(&going, &gone), ["Normal c1 Deleting: it is being deleted"]);
    gone.clusters.clear();
    gone.components.clear();
    assert_eq!(told(&going, &gone), ["Normal c1 ClusterDeleted: no machine holds any part of it"]);
    let mut smaller = placed();
    smaller.components.clear();
    assert_eq!(told(&placed(), &smaller), ["Normal c1 ComponentRemoved: etcd-0 is removed from hv-1"]);
}

#[test]
fn a_pause_has_an_event_at_its_begin_and_end() {
    let (before, mut after) = (placed(), placed());
    of_cluster(&mut after, "Paused", (ConditionStatus::True, ConditionReason::Paused), "nothing is done about it");
    assert_eq!(told(&before, &after), ["Normal c1 Paused: nothing is done about it"]);
    assert_eq!(told(&after, &before), ["Normal c1 Resumed: reconciliation has resumed"]);
}

#[test]
fn every_reason_is_explained_under_its_name() {
    for (happening, _, meaning) in reason::ALL {
        assert_eq!(format!("{happening:?}"), happening.as_str());
        assert!(!meaning.is_empty());
        assert_eq!(ConditionReason::of_name(happening.as_str()), None, "a condition has it, too");
    }
}
