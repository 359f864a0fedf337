//! The store of documents makes no difference: through a pipe, in a directory and in Kubernetes, the same steps result in the same documents.
#![expect(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test binary fails by panic")]
#![expect(clippy::print_stdout, reason = "it prints what it counted")]

mod comparable;
#[path = "../../../cluster-controller/tests/live/host.rs"]
mod host;
#[expect(dead_code, reason = "machines of another test, which looks closer")]
#[path = "../interrupted_on_fake/machine.rs"]
mod machine;
#[expect(dead_code, reason = "a control plane of another crate's tests, of which only the API is used here")]
#[path = "../../../cluster-controller/tests/live/plane.rs"]
mod plane;
mod store_kind;
#[path = "../../../cluster-controller/tests/live/wait.rs"]
mod wait;
#[expect(dead_code, reason = "machines of another test, which interrupts what it does on them")]
#[path = "../interrupted_on_fake/world.rs"]
mod world;

use std::{collections::BTreeMap, time::Instant};

use comparable::{comparable, tell};
use keelway_api::{
    Cluster, Documents, Time,
    condition::{is_true, reason::ConditionReason},
    hypervisor::LOST_ANNOTATION,
    jiff::Timestamp,
};
use serde_json::Value;
use store_kind::{Directory, Kubernetes, Pipe, Way};
use world::World;

#[test]
fn all_stores_have_the_same_documents() {
    host::on_own_host("all_stores_have_the_same_documents", || {
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap().block_on(all());
    });
}

async fn all() {
    // Each store has machines of its own, in the same initial state.
    let world = World::start().await;
    let expected = lives(&mut Pipe::new(&world), &world, None).await;
    let world = World::start().await;
    let mut directory = Directory::start();
    lives(&mut directory, &world, Some(&expected)).await;
    loses_a_machine(&mut directory, &world).await;
    let world = World::start().await;
    let mut kubernetes = Kubernetes::start().await;
    lives(&mut kubernetes, &world, Some(&expected)).await;
    loses_a_machine(&mut kubernetes, &world).await;
}

/// The class of each cluster.
const CLASS: &str = "\
---
apiVersion: keelway.dev/v1alpha1
kind: ClusterClass
metadata: {name: small}
spec: {limits: {etcdReplicas: 1}}
";

/// Returns the initial documents.
async fn made(world: &World) -> Documents {
    let mut made = Documents::read((world.with_cluster().await + CLASS).as_bytes()).unwrap();
    made.clusters.values_mut().for_each(|cluster| cluster.spec.class_name = Some("small".to_owned()));
    made
}

/// Comparable documents by name.
type Essence = BTreeMap<String, Value>;

/// Creates, changes and deletes a cluster.
async fn lives(way: &mut impl Way, world: &World, expected: Option<&[Essence]>) -> Vec<Essence> {
    let mut moments = Vec::new();
    way.put(&made(world).await).await;
    moments.push(come_to(way, expected.map(|expected| &expected[0])).await);

    let mut changed = way.documents().await;
    let cluster = changed.clusters.values_mut().next().unwrap();
    cluster.spec.control_plane.kube_scheduler.replicas = Some(2);
    way.put(&changed).await;
    moments.push(come_to(way, expected.map(|expected| &expected[1])).await);

    let mut deleted = way.documents().await;
    let cluster = deleted.clusters.values_mut().next().unwrap();
    cluster.metadata.deletion_timestamp = Some(Time(Timestamp::now()));
    way.put(&deleted).await;
    moments.push(come_to(way, expected.map(|expected| &expected[2])).await);
    println!("        {} documents of {}", moments.iter().map(BTreeMap::len).sum::<usize>(), way.name());
    moments
}

/// Waits until the documents are the expected ones.
async fn come_to(way: &mut impl Way, expected: Option<&Essence>) -> Essence {
    let Some(expected) = expected else { return comparable(&way.documents().await) };
    let began = Instant::now();
    loop {
        let found = comparable(&way.documents().await);
        if found == *expected {
            return found;
        }
        if began.elapsed() > store_kind::LIMIT {
            tell(&found, expected);
            panic!("{}: not the same documents\n{}", way.name(), way.log());
        }
        tokio::time::sleep(store_kind::LOOK).await;
    }
}

/// A deletion waits for a machine that does not respond, until the machine is marked as lost.
async fn loses_a_machine(way: &mut impl Way, world: &World) {
    way.put(&made(world).await).await;
    let is_available =
        |cluster: &Cluster| cluster.status.as_ref().is_some_and(|status| is_true(&status.conditions, "Available"));
    let mut documents =
        until(way, "a cluster", |documents| documents.clusters.values().any(|cluster| is_available(cluster))).await;
    let [_, public] = &world.machines;
    kill(public.pid());
    let now = Some(Time(Timestamp::now()));
    documents.clusters.values_mut().for_each(|cluster| cluster.metadata.deletion_timestamp.clone_from(&now));
    way.put(&documents).await;
    let waits = |cluster: &Cluster| {
        let conditions = cluster.status.iter().flat_map(|status| &status.conditions);
        let mut deleting = conditions.filter(|condition| condition.type_ == "Deleting");
        deleting.any(|condition| condition.reason == ConditionReason::MachinesNotAnswering.as_str())
    };
    let mut documents =
        until(way, "it waits", |documents| documents.clusters.values().any(|cluster| waits(cluster))).await;
    let name = "hv-public".parse().unwrap();
    let lost = documents.hypervisors.get_mut(&name).unwrap();
    lost.metadata.annotations.get_or_insert_default().insert(LOST_ANNOTATION.to_owned(), "true".to_owned());
    way.put(&documents).await;
    let is_gone = |documents: &Documents| !documents.is_empty() && documents.clusters.is_empty();
    let mut documents = until(way, "the cluster is gone", is_gone).await;
    documents.hypervisors.get_mut(&name).unwrap().metadata.deletion_timestamp = now;
    way.put(&documents).await;
    until(way, "the machine is gone", |documents| documents.hypervisors.len() == 1).await;
}

fn kill(pid: u32) {
    let pid = rustix::process::Pid::from_raw(pid.try_into().unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}

async fn until(way: &mut impl Way, what: &str, holds: impl Fn(&Documents) -> bool) -> Documents {
    let began = Instant::now();
    loop {
        let found = way.documents().await;
        if holds(&found) {
            println!("{:>7} ms  {}: {what}", began.elapsed().as_millis(), way.name());
            return found;
        }
        assert!(began.elapsed() < store_kind::LIMIT, "{}: {what}: {:?}\n{}", way.name(), found.clusters, way.log());
        tokio::time::sleep(store_kind::LOOK).await;
    }
}
