//! The agent with two real control planes: one of a fleet, and one of a workload cluster.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test's functions fail by panicking, and print their timings"
)]

mod agent;
mod authorities;
mod cases;
mod delegated;
mod fleet;
#[path = "../../../cluster-controller/tests/live/host.rs"]
mod host;
mod plane;
mod revoked;
#[path = "../../../cluster-controller/tests/live/wait.rs"]
mod wait;

use agent::Agent;
use fleet::{Works, is_forbidden};
use k8s_openapi::api::{coordination::v1::Lease, core::v1::Secret};
use keelway_fleet::names::{AGENTS_GROUP, agent_user};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use plane::Plane;

/// How long the fleet's certificates are valid. The signer backdates them by five minutes, so that an agent renews one after 20 seconds.
const SIGNED: &str = "3m";
/// The oldest minor version that the API servers of the test can emulate.
const OLDEST: &str = "1.34";

/// All cases use the same two control planes, because their start takes longer than any case. That of the fleet has an older API.
#[test]
fn a_fleet_and_its_cluster() {
    host::on_own_host("a_fleet_and_its_cluster", || {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(serve());
    });
}

/// The cluster has an older API than the fleet.
#[test]
fn a_fleet_and_an_older_cluster() {
    host::on_own_host("a_fleet_and_an_older_cluster", || {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(serve_an_older_cluster());
    });
}

/// The agent applies nothing.
#[test]
fn a_fleet_and_another_orchestrator() {
    host::on_own_host("a_fleet_and_another_orchestrator", || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(delegated::an_agent_tracks_what_another_orchestrator_submits());
    });
}

async fn serve_an_older_cluster() {
    let (fleet_plane, workload_plane) = start(None, Some(OLDEST)).await;
    let (fleet, workload) = (fleet_plane.admin().await, workload_plane.admin().await);
    prepare(&fleet, &workload).await;
    let agent = Agent::start(&fleet_plane, &workload_plane);
    heartbeat(&fleet).await;
    let works = Works::new(&fleet, "west");
    cases::apply_and_update(&works, &workload).await;
    cases::conflict(&works, &workload).await;
    cases::adoption(&works, &workload).await;
    cases::autoscaler(&works, &workload).await;
    cases::drift_is_corrected(&works, &workload).await;
    cases::custom_resource(&works, &workload).await;
    cases::deletion(&works, &workload).await;
    agent.stop();
}

/// Starts both control planes, with the APIs of these minor versions.
async fn start(fleet: Option<&str>, workload: Option<&str>) -> (Plane, Plane) {
    let signer = "certificatesigningrequest-signing-controller";
    tokio::join!(Plane::start("fleet", Some(signer), fleet), Plane::start("workload", None, workload))
}

/// Registers two clusters, and grants the agent its rights.
async fn prepare(fleet: &Client, workload: &Client) {
    fleet::define(fleet).await;
    fleet::register(fleet, "west").await;
    fleet::register(fleet, "east").await;
    fleet::token(fleet, "west").await;
    agent::grant(workload).await;
    let own = serde_json::json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "keelway-fleet" } });
    fleet::apply(&Api::<k8s_openapi::api::core::v1::Namespace>::all(workload.clone()), own).await;
    tokio::spawn(fleet::approve_agents(fleet.clone()));
}

async fn serve() {
    let (mut fleet_plane, workload_plane) = start(Some(OLDEST), None).await;
    let (fleet, workload) = (fleet_plane.admin().await, workload_plane.admin().await);
    prepare(&fleet, &workload).await;
    let agent = Agent::start(&fleet_plane, &workload_plane);
    heartbeat(&fleet).await;
    let first = certificate(&workload).await.unwrap();
    cases::inventory(&fleet, &workload).await;
    let works = Works::new(&fleet, "west");
    cases::apply_and_update(&works, &workload).await;
    cases::the_largest_object(&works, &workload).await;
    cases::conflict(&works, &workload).await;
    cases::adoption(&works, &workload).await;
    cases::autoscaler(&works, &workload).await;
    cases::drift_is_corrected(&works, &workload).await;
    cases::drift_is_reported(&works, &workload).await;
    cases::custom_resource(&works, &workload).await;
    cases::deletion(&works, &workload).await;
    cases::deletion_without_the_definition(&works, &workload).await;
    another_cluster_is_refused(&fleet_plane, &fleet).await;
    let authorities = (fleet_plane.authority(), workload_plane.authority());
    authorities::only_what_verifies_is_adopted(&fleet, authorities).await;
    println!("{:>7} KiB of anonymous memory", agent.memory());
    metrics(&agent).await;
    wait::until("the certificate is renewed", async || certificate(&workload).await.is_some_and(|now| now != first))
        .await;

    // The fleet is away: the agent goes on, also after a restart.
    fleet_plane.stop_api();
    cases::goes_on(&workload, "edited while the fleet is away").await;
    agent.kill();
    let agent = Agent::start(&fleet_plane, &workload_plane);
    cases::goes_on(&workload, "edited after a restart").await;
    agent.stop();

    // The fleet is back, and the agent follows.
    fleet_plane.start_api().await;
    cases::order_while_away(&works).await;
    let agent = Agent::start(&fleet_plane, &workload_plane);
    cases::catches_up(&works, &workload).await;

    // A restarted agent writes nothing about what is settled.
    agent.stop();
    let settled = works.versions().await;
    let agent = Agent::start(&fleet_plane, &workload_plane);
    works
        .put(
            "last",
            serde_json::json!({
                "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "last", "namespace": "shop" },
            }),
            serde_json::json!({}),
        )
        .await;
    works.reports("last", "True", "Applied").await;
    works.0.delete("last", &DeleteParams::default()).await.unwrap();
    works.is_gone("last").await;
    assert_eq!(works.versions().await, settled);
    revoked::an_agent_without_rights_changes_nothing(&fleet, &works, &workload, &agent).await;
    agent.stop();
}

/// The metrics show what the cases before did.
async fn metrics(agent: &Agent) {
    let name = |name: &str| format!("keelway_fleet_agent_{name}");
    wait::until("no Work waits", async || agent.metric(&name("queue_depth")).await == Some(0.0)).await;
    for metric in [
        "connected",
        "works{state=\"Applied\"}",
        "attempts_total{outcome=\"Conflict\"}",
        "attempts_total{outcome=\"Failed\"}",
        "drift_corrections_total",
        "last_contact_timestamp_seconds",
        "certificate_expiration_timestamp_seconds",
    ] {
        let value = agent.metric(&name(metric)).await;
        assert!(value.is_some_and(|value| value > 0.0), "{metric}: {value:?}");
    }
    assert_eq!(agent.metric(&name("works{state=\"Pending\"}")).await, Some(0.0));
}

async fn heartbeat(fleet: &Client) {
    let leases: Api<Lease> = Api::namespaced(fleet.clone(), "fleet-west");
    wait::until("the Lease of the agent", async || {
        let lease = leases.get_opt("agent").await.unwrap().and_then(|lease| lease.spec);
        lease.is_some_and(|spec| spec.renew_time.is_some() && spec.lease_duration_seconds == Some(40))
    })
    .await;
}

async fn certificate(workload: &Client) -> Option<Vec<u8>> {
    let secrets: Api<Secret> = Api::namespaced(workload.clone(), "keelway-fleet");
    let data = secrets.get_opt("keelway-fleet-agent").await.unwrap()?.data?;
    assert!(data.contains_key("tls.key"));
    data.get("tls.crt").map(|certificate| certificate.0.clone())
}

/// The credentials of one cluster's agent are refused for another cluster, and for everything else of the fleet.
async fn another_cluster_is_refused(plane: &Plane, admin: &Client) {
    let east = plane.client(&agent_user("east"), &[AGENTS_GROUP]).await;
    let (theirs, own) = (Works::new(&east, "west"), Works::new(&east, "east"));
    assert!(own.0.list(&ListParams::default()).await.is_ok());
    let nothing = Patch::Merge(serde_json::json!({}));
    let parameters = PatchParams::default();
    assert!(is_forbidden(theirs.0.list(&ListParams::default())).await);
    assert!(is_forbidden(theirs.0.get("plain")).await);
    assert!(is_forbidden(fleet::first_event(&theirs.0)).await);
    assert!(is_forbidden(theirs.0.patch("plain", &parameters, &nothing)).await);
    assert!(is_forbidden(theirs.0.patch_status("plain", &parameters, &nothing)).await);
    for works in [&theirs, &own] {
        assert!(is_forbidden(works.0.delete("plain", &DeleteParams::default())).await);
        assert!(is_forbidden(works.0.delete_collection(&DeleteParams::default(), &ListParams::default())).await);
    }
    let everywhere: Api<keelway_fleet::Work> = Api::all(east.clone());
    assert!(is_forbidden(everywhere.list(&ListParams::default())).await);
    let leases: Api<Lease> = Api::namespaced(east.clone(), "fleet-west");
    assert!(is_forbidden(leases.patch("agent", &parameters, &nothing)).await);
    let clusters: Api<keelway_fleet::WorkloadCluster> = Api::all(east.clone());
    assert!(is_forbidden(clusters.patch_status("west", &parameters, &nothing)).await);
    assert!(is_forbidden(clusters.patch("east", &parameters, &nothing)).await);
    let secrets: Api<Secret> = Api::all(east.clone());
    assert!(is_forbidden(secrets.list(&ListParams::default())).await);

    // Without the guard: the same role, bound in the namespace of another cluster.
    fleet::bind_in(admin, "fleet-west", "east").await;
    wait::until("the Works of another cluster are readable", async || theirs.0.get("plain").await.is_ok()).await;
    assert!(theirs.0.list(&ListParams::default()).await.is_ok());
    assert!(fleet::first_event(&theirs.0).await.is_ok());
}
