//! What who may speak is answered, and for how long.

use futures::StreamExt;
use keelway_cri::{Deadlines, Runtime};
use keelway_hypervisor_agent::agent::Bounds;
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
    let machine = Machine::new(&mut installation, Bounds::default());
    let driver = installation.driver(|_| {});
    let client = machine.client(&driver);
    let finished = timeout(WITHIN, client.apply(&config(1, "a"), &|_| {})).await.unwrap().unwrap();
    assert_eq!(finished.failures, Vec::<String>::new());
    let state = client.state(WITHIN).await.unwrap();
    assert_eq!(state.applied.map(|applied| applied.generation), Some(1));
    // On the same port, what is passed on to the runtime.
    let runtime = Runtime::on_channel(machine.channel(driver.path()), Deadlines::default());
    runtime.version().await.unwrap();
    let containers = runtime.list_containers(&std::collections::BTreeMap::new()).await.unwrap();
    assert_eq!(containers.len(), 1);
    assert_eq!(runtime.list_images().await.unwrap().len(), 2);
    // The agent is told by the runtime of what others change, and puts it right.
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
async fn certificates_are_replaced_under_a_conversation() {
    let mut installation = Installation::new(1);
    let machine = Machine::new(&mut installation, Bounds::default());
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
    let machine = Machine::new(&mut installation, Bounds::default());
    let driver = installation.driver(|_| {});
    let mut revisions = machine.client(&driver).watch(WITHIN).await.unwrap();
    revisions.next().await.unwrap();
    machine.stop.cancel();
    while timeout(WITHIN, revisions.next()).await.unwrap().is_some() {}
}

/// With so many, some are cut off before their config is read, some while it is written, and some after that.
const ROUNDS: u32 = 100;

/// Each driver goes away a little later than the one before. Its config is taken, on disk and in memory, or in neither.
#[tokio::test]
async fn a_driver_that_is_cut_off_leaves_disk_and_memory_the_same() {
    let mut installation = Installation::new(1);
    let machine = Machine::new(&mut installation, Bounds::default());
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

/// Lets others go first, so many times.
async fn turns(count: u32) {
    for _ in 0..count {
        tokio::task::yield_now().await;
    }
}
