//! Two managers over one API server, of which one holds the Lease. The test kills it, and stops its successor for longer than the Lease. Then the
//! documents are moved to a directory and back, and restored from a backup.
//!
//! The machines are fake, and the core of their agents is real.
#![expect(clippy::unwrap_used, reason = "a test binary fails by panic")]
#![expect(clippy::print_stdout, reason = "it prints what it measured")]

#[path = "../../../cluster-controller/tests/live/host.rs"]
mod host;
#[expect(dead_code, reason = "what an API server refuses is asked by the tests of the manager")]
#[path = "../../../manager/tests/kubernetes/kubectl.rs"]
mod kubectl;
#[expect(dead_code, reason = "machines of another test, which looks at them more closely")]
#[path = "../interrupted_on_fake/machine.rs"]
mod machine;
mod managers;
mod moves;
#[expect(dead_code, reason = "a control plane of another crate's tests, of which only the API is used here")]
#[path = "../../../cluster-controller/tests/live/plane.rs"]
mod plane;
mod restored;
#[path = "../../../cluster-controller/tests/live/wait.rs"]
mod wait;
mod world;

use rustix::process::Signal;

use managers::{LEASE, Manager};
use plane::Plane;
use world::World;

/// The limit for a takeover, in durations of the Lease: three times the stated limit of one.
const MOST: u32 = 3;

#[test]
fn one_of_two_managers_works() {
    host::on_own_host("one_of_two_managers_works", || {
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap().block_on(all());
    });
}

async fn all() {
    let plane = Plane::start().await;
    let world = World::start(&plane).await;
    let mut leader = world.manager("first");
    leader.leads().await;
    let mut other = world.manager("second");
    world.ask_for("c0");
    world.is_available("c0");
    other.stands_by().await;
    assert_eq!((leader.metric("keelway_leading"), other.metric("keelway_leading")), (1, 0));

    // The leader is killed while it creates a cluster.
    world.ask_for("c1");
    world.until_something_of(2).await;
    leader.kill();
    takes_over(&mut other, "the leader was killed").await;
    world.is_available("c1");

    // The leader is stopped while it creates another cluster, for longer than the Lease, and continued later.
    let mut stopped = other;
    let mut next = world.manager("third");
    next.stands_by().await;
    world.ask_for("c2");
    world.until_something_of(3).await;
    stopped.signal(Signal::STOP);
    takes_over(&mut next, "the leader stood still").await;
    world.is_available("c2");
    next.settles().await;
    let before = world.calls();
    stopped.signal(Signal::CONT);
    assert!(!stopped.ends().await, "who has lost the Lease ends with a failure");
    // A config of the second leader that arrives late: an empty config for each machine.
    let refused = world.hear_of_leader(2).await;
    println!("        {refused} machines refused a config for who led before alone");
    assert_eq!(world.calls(), before, "nothing more is done on any machine");
    world.obey_the_newest();

    world.is_as_asked_for(&["c0", "c1", "c2"]).await;

    // After an orderly exit, no manager has to wait for the Lease to expire.
    let mut last = world.manager("fourth");
    last.stands_by().await;
    next.signal(Signal::TERM);
    let took = last.leads().await;
    println!("{:>7} ms  until another one led after an orderly end", took.as_millis());
    assert!(next.ends().await);

    let last = moves::there_and_back(&world, last).await;
    let _last = restored::from_a_backup(&world, last).await;
    world.delete_all(&["c0", "c1", "c2"]);
    world.is_empty().await;
}

async fn takes_over(other: &mut Manager, why: &str) {
    let took = other.leads().await;
    println!("{:>7} ms  until the other one led: {why} (a Lease of {} ms)", took.as_millis(), LEASE.as_millis());
    assert!(took < LEASE * MOST, "{why}: another one leads after {took:?}");
}
