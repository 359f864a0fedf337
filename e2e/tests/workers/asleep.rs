//! A cluster with workers falls asleep and wakes up: its data, and the pods on its workers.

use std::net::{SocketAddr, TcpStream};

use keelway_api::{
    documents::SecretName,
    role::{API, Role},
    worker::API_SERVER_NAME,
};
use keelway_e2e::{
    deadline,
    https::{HttpsClient, HttpsResponse},
    worker_fleet::{TestCluster, WorkerFleet},
};

pub(crate) fn keeps_data_and_pods(worker_fleet: &WorkerFleet, cluster: &TestCluster) {
    let _ = cluster.kubectl.run(&["create", "configmap", "before-sleep", "--from-literal=a=b"]).succeeded();
    let started = started(cluster);
    worker_fleet.write(&["cluster", "sleep", "--name", cluster.name]);
    worker_fleet.reconcile();
    nothing_runs_but_ingresses(worker_fleet, cluster);
    for response in answers(worker_fleet, cluster) {
        assert_eq!(response.status, 503, "{}", response.text);
        let text = response.text.to_lowercase();
        assert!(text.contains("retry-after: 1\r\n") && text.contains("content-type: application/json"), "{text}");
        let body: serde_json::Value = serde_json::from_str(response.text.split_once("\r\n\r\n").unwrap().1).unwrap();
        assert_eq!((&body["kind"], &body["reason"]), (&"Status".into(), &"ServiceUnavailable".into()));
    }
    let refused = cluster.kubectl.run(&["get", "--raw", "/api/v1/nodes"]);
    assert!(refused.stderr.contains("(ServiceUnavailable): the cluster is asleep"), "{}", refused.stderr);
    let status = worker_fleet.keelway(&["status"]);
    assert!(status.text().contains(&format!("{} is asleep", cluster.name)), "{}", status.text());
    assert!(worker_fleet.keelway(&["plan"]).text().starts_with("Nothing to do"));

    worker_fleet.write(&["cluster", "wake", "--name", cluster.name]);
    worker_fleet.reconcile();
    assert_eq!(cluster.value("configmap/before-sleep", "{.data.a}"), "b");
    cluster.are_ready();
    deadline::until("pods answer through the API again", deadline::KUBERNETES, || {
        cluster.workers.iter().all(|worker| cluster.shell(&format!("six-{worker}"), "true").code() == 0)
    });
    assert_eq!(self::started(cluster), started, "no container of a pod was restarted");
}

/// Returns when the containers of the pods started.
fn started(cluster: &TestCluster) -> String {
    cluster.value("pods", "{.items[*].status.containerStatuses[*].state.running.startedAt}")
}

fn nothing_runs_but_ingresses(worker_fleet: &WorkerFleet, cluster: &TestCluster) {
    for role in Role::ALL {
        let running = worker_fleet.each(cluster, role, |component, machine| machine.of(component).is_some());
        assert!(running.iter().all(|runs| *runs == (role == Role::Ingress)), "{role}: {running:?}");
    }
}

/// Returns what each ingress answers to a client that verifies it.
fn answers(worker_fleet: &WorkerFleet, cluster: &TestCluster) -> Vec<HttpsResponse> {
    let documents = worker_fleet.documents();
    let found = cluster.document(&documents);
    let secret = &documents.secrets[&SecretName::of(found.id().unwrap(), "kubernetes-ca")];
    let client = HttpsClient::new(&secret.data.as_ref().unwrap()["bundle.crt"].0, API_SERVER_NAME, None);
    let ask = |address: SocketAddr| client.get(TcpStream::connect(address).unwrap(), "/api/v1/nodes").unwrap();
    let ingresses = worker_fleet.each(cluster, Role::Ingress, |component, _| {
        let machine = &documents.hypervisors[&component.spec.hypervisor];
        let public = machine.spec.addresses.public.first().unwrap();
        SocketAddr::new(public.parse().unwrap(), component.spec.port(API))
    });
    ingresses.into_iter().map(ask).collect()
}
