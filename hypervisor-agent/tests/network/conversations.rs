//! What the agent responds to a client with a valid certificate, and how long it keeps the connection.

use std::collections::BTreeMap;

use futures::StreamExt;
use keelway_agent_api::client::ConfigDelivery;
use keelway_api::machine::{Digest, MachineConfig, MachineState, sha256_hex};
use keelway_base::error_chain::chain_text;
use keelway_cri::{CriRuntime, Deadlines};
use keelway_hypervisor_agent::agent::ConnectionLimits;
use keelway_machine::converge::applied_by;
use tokio::time::timeout;

use crate::{
    WITHIN,
    installation::Installation,
    machine::{Machine, config},
    refusals::{greet, tls},
};

#[tokio::test]
async fn the_driver_is_served() {
    let mut installation = Installation::new(1);
    let machine = Machine::new(&mut installation, ConnectionLimits::default());
    let driver = installation.driver(|_| {});
    let client = machine.client(&driver);
    let finished = timeout(WITHIN, client.apply(&config(1, "a"), &|_| {})).await.unwrap().unwrap();
    assert_eq!(finished.failures, Vec::<String>::new());
    let state = client.state(WITHIN).await.unwrap();
    assert_eq!(state.applied.map(|applied| applied.generation), Some(1));
    // The same port serves the API of the runtime.
    let runtime = CriRuntime::on_channel(machine.channel(driver.path()), Deadlines::default());
    runtime.version().await.unwrap();
    let containers = runtime.list_containers(&std::collections::BTreeMap::new()).await.unwrap();
    assert_eq!(containers.len(), 1);
    assert_eq!(runtime.list_images().await.unwrap().len(), 2);
    // The runtime reports changes by other clients to the agent, and the agent reverts them.
    let (before, mut revisions) = (&containers[0].id, client.watch(WITHIN).await.unwrap());
    runtime.stop_container(before, std::time::Duration::ZERO).await.unwrap();
    runtime.remove_container(before).await.unwrap();
    let replaced = async {
        loop {
            let now = runtime.list_containers(&std::collections::BTreeMap::new()).await.unwrap();
            if now.iter().any(|container| container.id != *before) {
                return;
            }
            revisions.next().await.unwrap();
        }
    };
    timeout(WITHIN, replaced).await.unwrap();
}

#[tokio::test]
async fn every_client_receives_the_last_observation() {
    let mut installation = Installation::new(1);
    let machine = Machine::new(&mut installation, ConnectionLimits::default());
    let client = machine.client(&installation.driver(|_| {}));
    timeout(WITHIN, client.apply(&config(1, "a"), &|_| {})).await.unwrap().unwrap();
    let mut revisions = client.watch(WITHIN).await.unwrap();
    let revision = timeout(WITHIN, revisions.next()).await.unwrap().unwrap();
    let looks = || machine.calls("ListPodSandbox");
    let before = looks();
    let told = client.state_of(revision, WITHIN).await.unwrap();
    assert_eq!((told.sandboxes.len(), looks()), (1, before), "nobody looks again at what was seen");
    assert_eq!(client.state(WITHIN).await.unwrap().sandboxes, told.sandboxes);
    assert_eq!(looks(), before + 1);
    client.state_of(revision + 1000, WITHIN).await.unwrap();
    assert_eq!(looks(), before + 2, "of a revision that it never told");

    timeout(WITHIN, client.apply(&config(2, "b"), &|_| {})).await.unwrap().unwrap();
    let told = client.state_of(revision, WITHIN).await.unwrap();
    assert_eq!(told.applied.map(|applied| applied.generation), Some(2), "what it tells is never older");
    let key = told.files.iter().find(|(path, file)| path.contains("/files/") && file.sha256.is_some());
    assert_eq!(key.unwrap().1.sha256, Some(sha256_hex(&config(2, "b").pods.values().next().unwrap().files[0].content)));
}

#[tokio::test]
async fn a_failure_is_reported_for_as_long_as_it_lasts() {
    let mut installation = Installation::new(1);
    let machine = Machine::new(&mut installation, ConnectionLimits::default());
    let client = machine.client(&installation.driver(|_| {}));
    let mut config = config(1, "a");
    let image = "example.test/missing:1";
    config.pods.values_mut().next().unwrap().containers[0].image = image.to_owned();
    let mut revisions = client.watch(WITHIN).await.unwrap();
    let finished = timeout(WITHIN, client.apply(&config, &|_| {})).await.unwrap().unwrap();
    assert!(finished.failures[0].contains(image), "{finished:?}");
    let told = client.state(WITHIN).await.unwrap().failures;
    assert_eq!(told, finished.failures);
    machine.fake.add_image(image);
    let mended = async {
        while !client.state(WITHIN).await.unwrap().failures.is_empty() {
            revisions.next().await.unwrap();
        }
    };
    let finished = timeout(WITHIN, client.apply(&config, &|_| {})).await.unwrap().unwrap();
    timeout(WITHIN, mended).await.unwrap();
    assert_eq!(client.state(WITHIN).await.unwrap().containers.len(), 1, "{finished:?}");
}

#[tokio::test]
async fn a_config_may_omit_content_that_the_agent_has() {
    let mut installation = Installation::new(1);
    let machine = Machine::new(&mut installation, ConnectionLimits::default());
    let client = machine.client(&installation.driver(|_| {}));
    timeout(WITHIN, client.apply(&config(1, "a"), &|_| {})).await.unwrap().unwrap();
    // Other processes use the disk, too.
    let look = async || MachineState { disk: None, ..client.state(WITHIN).await.unwrap() };
    let before = look().await;

    let whole = config(2, "a");
    let same = |digest: Option<Digest>| {
        let digests =
            whole.pods.iter().map(|(name, pod)| (name.clone(), digest.unwrap_or_else(|| pod.content_digest())));
        let config = MachineConfig { pods: BTreeMap::new(), ..whole.clone() };
        ConfigDelivery { config, unchanged: digests.collect(), digest: Some(whole.digest()) }
    };
    let refused = timeout(WITHIN, client.apply(same(Some([0; 32])), &|_| {})).await.unwrap().unwrap_err();
    assert!(chain_text(&refused).contains("send all of them"), "{}", chain_text(&refused));
    assert_eq!(look().await, before, "a refused config changes nothing");

    let finished = timeout(WITHIN, client.apply(same(None), &|_| {})).await.unwrap().unwrap();
    assert_eq!(finished.failures, Vec::<String>::new());
    let state = client.state(WITHIN).await.unwrap();
    assert_eq!((state.sandboxes, state.containers), (before.sandboxes, before.containers), "what runs goes on");
    assert_eq!(state.applied.unwrap(), applied_by(&whole));
    let wrong = ConfigDelivery { digest: Some(config(3, "b").digest()), ..same(None) };
    assert!(timeout(WITHIN, client.apply(wrong, &|_| {})).await.unwrap().is_err(), "its digest is of something else");
}

#[tokio::test]
async fn certificates_are_replaced_under_a_conversation() {
    let mut installation = Installation::new(1);
    let machine = Machine::new(&mut installation, ConnectionLimits::default());
    let (driver, other) = (installation.driver(|_| {}), installation.driver(|_| {}));
    let client = machine.client(&driver);
    timeout(WITHIN, client.apply(&config(1, "a"), &|_| {})).await.unwrap().unwrap();
    let mut revisions = client.watch(WITHIN).await.unwrap();
    revisions.next().await.unwrap();

    let shown = async || greet(&machine, &tls(Some(&driver))).await.unwrap();
    let before = shown().await;
    installation.write_agent(&machine.tls());
    assert_ne!(shown().await, before, "who comes now is shown the new one");
    timeout(WITHIN, machine.client(&other).apply(&config(2, "b"), &|_| {})).await.unwrap().unwrap();
    timeout(WITHIN, revisions.next()).await.unwrap().unwrap();

    installation.revoke(&machine.tls(), &[&driver]);
    while timeout(WITHIN, revisions.next()).await.unwrap().is_some() {}
    assert!(!machine.serves(&driver).await);
    assert!(machine.serves(&other).await);
}

#[tokio::test]
async fn conversations_end_with_the_agent() {
    let mut installation = Installation::new(1);
    let machine = Machine::new(&mut installation, ConnectionLimits::default());
    let driver = installation.driver(|_| {});
    let mut revisions = machine.client(&driver).watch(WITHIN).await.unwrap();
    revisions.next().await.unwrap();
    machine.stop.cancel();
    while timeout(WITHIN, revisions.next()).await.unwrap().is_some() {}
}

/// With this many rounds, the connection is cut before, during and after the write of the config.
const ROUNDS: u32 = 100;

/// Each driver disconnects a little later than the one before. The agent has each config both on disk and in memory, or in neither.
#[tokio::test]
async fn a_driver_that_is_cut_off_leaves_disk_and_memory_the_same() {
    let mut installation = Installation::new(1);
    let machine = Machine::new(&mut installation, ConnectionLimits::default());
    let driver = installation.driver(|_| {});
    let client = machine.client(&driver);
    let config = |generation: u64| config(generation, &format!("content {generation}."));
    timeout(WITHIN, client.apply(&config(1), &|_| {})).await.unwrap().unwrap();
    let (mut taken, mut last) = (0, 1);
    for round in 0..ROUNDS {
        let (asked, turns) = (config(last + 1), turns(round * round));
        tokio::select! {
            biased;
            _ = client.apply(&asked, &|_| {}) => {}
            () = turns => {}
        }
        let agreeing = async {
            loop {
                let state = client.state(WITHIN).await.unwrap();
                let generation = state.applied.unwrap().generation;
                let kept = std::fs::read(machine.state_file("config")).unwrap();
                if String::from_utf8_lossy(&kept).contains(&format!("content {generation}.")) {
                    return generation;
                }
            }
        };
        let in_effect = timeout(WITHIN, agreeing).await.unwrap();
        taken += u32::from(in_effect > last);
        last = in_effect;
    }
    assert!((1..ROUNDS).contains(&taken), "{taken} were taken: none was cut off early enough, or none late enough");
}

/// Yields to other tasks this many times.
async fn turns(count: u32) {
    for _ in 0..count {
        tokio::task::yield_now().await;
    }
}
