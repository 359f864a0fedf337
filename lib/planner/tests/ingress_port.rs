//! The port of ingresses that a Cluster names.

use keelway_api::{
    Documents,
    document::DocumentName,
    jiff::Timestamp,
    machine::{ObservedValue, PortFacts},
    role::{API, Role},
};
use keelway_planner::{PassObservation, Plan, invariants, plan};

use crate::model::{hypervisors, identified};

fn cluster(name: &str, port: u16) -> String {
    format!(
        "---\napiVersion: keelway.dev/v1alpha1\nkind: Cluster\nmetadata: {{name: {name}, namespace: default}}\nspec: {{version: 1.37.0, \
         ingress: {{port: {port}}}}}\n"
    )
}

/// Plans these clusters on one private and one public machine with these ports. Without `unprivileged_from`, its agent does not report it.
fn planned(clusters: &[(&str, u16)], unprivileged_from: Option<u16>, listening: &[u16]) -> Plan {
    let text: String = hypervisors(&["Private", "Public"]).collect();
    let clusters: String = clusters.iter().map(|(name, port)| cluster(name, *port)).collect();
    let (documents, machines) = identified(&(text + &clusters));
    let ports = PortFacts { unprivileged_from, listening: listening.iter().copied().collect(), ..PortFacts::default() };
    let machines = machines.into_iter().map(|(name, mut state)| {
        state.ports = ports.clone();
        (name, ObservedValue::Known(state))
    });
    let seen = PassObservation { machines: machines.collect(), ..PassObservation::default() };
    let plan = plan(documents.clone(), &seen, Timestamp::UNIX_EPOCH).unwrap();
    assert_eq!(invariants::check(&documents, &plan.documents, &seen), []);
    plan
}

/// The ports of ingresses.
fn ports(documents: &Documents) -> Vec<u16> {
    let ingresses = documents.components.values().filter(|component| component.spec.role == Role::Ingress);
    ingresses.map(|component| component.spec.port(API)).collect()
}

/// What the ingresses of a cluster wait for.
fn blocker(plan: &Plan, name: &str) -> String {
    let waits = plan.waiting.iter().map(ToString::to_string);
    waits.into_iter().find(|text| text.starts_with(&format!("{name}/ingress waits"))).unwrap()
}

#[test]
fn an_ingress_gets_the_named_port_outside_of_the_range_of_its_machine() {
    for unprivileged_from in [None, Some(0), Some(443)] {
        let plan = planned(&[("c1", 443)], unprivileged_from, &[]);
        assert_eq!(ports(&plan.documents), [443]);
        let cluster = plan.documents.clusters.values().next().unwrap();
        assert_eq!(cluster.status.as_ref().unwrap().ingress_port, Some(443));
    }
}

#[test]
fn an_unusable_port_is_reported_with_a_remedy() {
    let privileged = planned(&[("c1", 443)], Some(1024), &[]);
    assert_eq!(ports(&privileged.documents), [0; 0]);
    let text = blocker(&privileged, "c1");
    assert!(text.contains("hv-1: run `sysctl -w net.ipv4.ip_unprivileged_port_start=443` there"), "{text}");

    let taken = planned(&[("c1", 443)], Some(443), &[443]);
    let text = blocker(&taken, "c1");
    assert!(text.contains("port 443 of every public hypervisor, which is in use on hv-1"), "{text}");

    let both = planned(&[("c1", 443), ("c2", 443)], Some(443), &[]);
    assert_eq!(ports(&both.documents), [443]);
    let text = blocker(&both, "c2");
    assert!(text.contains("port 443 of public hypervisors, which another cluster has"), "{text}");
}

#[test]
fn the_port_stays_once_it_is_reserved() {
    let mut documents = planned(&[("c1", 443)], Some(443), &[]).documents;
    let name = documents.clusters.keys().next().unwrap().clone();
    let faults = |documents: &Documents| -> Vec<String> {
        let is_it = |document: &DocumentName| *document == DocumentName::Cluster(name.clone());
        documents
            .faults_of_changes(is_it)
            .into_iter()
            .map(|(_, fault)| format!("{}: {}", fault.field, fault.problem))
            .collect()
    };
    documents.clusters.get_mut(&name).unwrap().spec.ingress.port = None;
    assert_eq!(faults(&documents), [""; 0]);
    documents.clusters.get_mut(&name).unwrap().spec.ingress.port = Some(8443);
    let expected = "spec.ingress.port: is immutable: the ingresses of the cluster have port 443, not 8443";
    assert_eq!(faults(&documents), [expected]);
}
