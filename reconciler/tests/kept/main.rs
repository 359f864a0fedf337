//! Documents that are kept while nothing happens: nobody is asked, and nothing is written. Time is simulated.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test's functions fail by panicking")]

mod world;

use std::{collections::BTreeSet, time::Duration};

use keelway_api::{
    Documents,
    condition::{self, is_true},
    jiff::SignedDuration,
    machine::{MachineState, ObservedValue},
    name::{ClusterRef, HypervisorName, PodName},
    release::KEELWAY,
};
use keelway_reconciler::{ApplyOutcome, PassError, PassOutcome, StoreError, Task, Watcher};
use tokio::time::{Instant, sleep};
use world::{UP_TO_DATE, World};

const MACHINES: usize = 5;
const CLUSTERS: usize = 8;
/// As many as one manager is to keep.
const MANY: usize = 1000;
/// Long enough for whatever is done once in a while.
const IDLE: Duration = Duration::from_secs(6 * 3600);
/// Two thirds of what `world` has certificates live, and a while for what is spread over time.
const RENEWED: Duration = Duration::from_secs(34 * 3600);

/// No write and no call in hours; the certificates' time comes all the same.
#[tokio::test(start_paused = true)]
async fn settled_clusters_take_nothing_of_anybody() {
    let world = World::new(MACHINES, CLUSTERS);
    undisturbed(&world, async {
        world.settles().await;
        let before = world.counts();
        sleep(IDLE).await;
        assert_eq!(world.counts(), before, "writes and calls of settled clusters");
        world.store.touch("c0");
        sleep(Duration::from_secs(60)).await;
        let touched = world.counts();
        assert!(touched.calls > before.calls, "a cluster that was changed has a pass");
        sleep(RENEWED).await;
        assert!(world.counts().saves >= touched.saves + CLUSTERS, "certificates are minted anew at their time");
        world.settles().await;
    })
    .await;
}

/// The same of as many as one manager is to keep.
#[tokio::test(start_paused = true)]
#[ignore = "long: it makes the keys of them all"]
async fn a_thousand_settled_clusters_take_nothing_of_anybody() {
    let world = World::new(MANY / 10, MANY);
    undisturbed(&world, async {
        world.settles().await;
        let before = world.counts();
        sleep(IDLE).await;
        assert_eq!(world.counts(), before, "writes and calls of settled clusters");
    })
    .await;
}

/// When a machine was heard of last is written once it is silent, and not before.
#[tokio::test(start_paused = true)]
async fn a_machine_that_goes_silent_was_heard_of_until_then() {
    let world = World::new(MACHINES, CLUSTERS);
    undisturbed(&world, async {
        world.settles().await;
        sleep(Duration::from_secs(7200)).await;
        let silenced = world.now();
        world.fleet.silence(Some("hv-1"));
        sleep(Duration::from_secs(60)).await;
        let status = world.store.machine("hv-1").status.unwrap();
        assert!(!is_true(&status.conditions, "Ready"));
        let heard = status.last_heartbeat_time.unwrap().0;
        assert!(silenced.duration_since(heard).abs() < SignedDuration::from_secs(1), "{silenced} {heard}");
        world.fleet.silence(None);
        world.settles().await;
        let heard = world.store.machine("hv-1").status.unwrap().last_heartbeat_time.unwrap().0;
        assert!(heard > silenced);
    })
    .await;
}

/// A machine that comes and goes concerns clusters with components there, and nobody else.
#[tokio::test(start_paused = true)]
async fn a_machine_that_flaps_wakes_nobody_who_has_nothing_there() {
    let world = World::new(MACHINES, CLUSTERS);
    undisturbed(&world, async {
        world.settles().await;
        sleep(Duration::from_secs(120)).await;
        world.fleet.forget_who_was_asked();
        for silent in [Some("hv-1"), None] {
            world.fleet.silence(silent);
            sleep(Duration::from_secs(60)).await;
        }
        let asked = world.fleet.asked_clusters();
        let names = (0..CLUSTERS).map(|number| format!("c{number}"));
        let (on, others): (Vec<_>, Vec<_>) = names.partition(|name| world.store.is_on(name, "hv-1"));
        assert!(!on.is_empty() && !others.is_empty(), "{on:?} {others:?}");
        assert!(on.iter().all(|name| asked.contains(&world.store.id(name))), "who relies on it looks at itself");
        let woken: Vec<_> = others.iter().filter(|name| asked.contains(&world.store.id(name))).collect();
        assert_eq!(woken, Vec::<&String>::new());
        world.settles().await;
    })
    .await;
}

/// What many clusters decide is saved together. One of which a store takes nothing holds up none of the others.
#[tokio::test(start_paused = true)]
async fn a_cluster_that_cannot_be_saved_is_alone() {
    let world = World::new(MACHINES, CLUSTERS);
    world.store.refuse(Some("c3"));
    let mut failures = Failures::default();
    world
        .kept(&mut failures, async {
            for _ in 0..60 {
                sleep(Duration::from_secs(10)).await;
                if world.store.available().len() == CLUSTERS - 1 {
                    break;
                }
            }
            assert_eq!(world.store.available(), ["c0", "c1", "c2", "c4", "c5", "c6", "c7"]);
            world.store.refuse(None);
            world.settles().await;
        })
        .await;
    assert_eq!(failures.0, BTreeSet::from(["cluster/c3".to_owned()]));
}

/// A change of what others do not rely on reaches its machine before anybody is asked how they are, one of an API server does not. In the
/// end they are asked.
#[tokio::test(start_paused = true)]
async fn who_was_well_is_asked_only_where_it_matters() {
    let world = World::new(MACHINES, CLUSTERS);
    undisturbed(&world, async {
        world.settles().await;
        let has_store = |asked: &BTreeSet<PodName>| asked.iter().any(|pod| pod.component.as_str() == "etcd-0");
        let asked_before = async |change: &dyn Fn()| {
            world.fleet.forget_who_was_asked();
            let before = world.counts().saves;
            change();
            world.settles().await;
            let mut later = (before + 1..=world.counts().saves).map(|saves| world.fleet.asked_after(saves));
            assert!(later.any(|asked| has_store(&asked)), "it is asked in the end");
            world.fleet.asked_after(before)
        };
        assert_eq!(asked_before(&|| world.store.change("c0")).await, BTreeSet::new());
        assert!(has_store(&asked_before(&|| world.store.change_api_server("c0")).await));
    })
    .await;
}

/// What is decided of a change takes one save to the machine that it is for: what people are told of it is no save of its own.
#[tokio::test(start_paused = true)]
async fn a_change_is_saved_once_before_it_is_applied() {
    let world = World::new(MACHINES, CLUSTERS);
    undisturbed(&world, async {
        world.settles().await;
        let before = world.counts();
        let _ = world.fleet.saves_at_apply();
        world.store.change("c0");
        world.settles().await;
        assert_eq!(world.fleet.saves_at_apply(), [before.saves + 1]);
    })
    .await;
}

/// What many clusters want of a machine is given to it together, as long as others wait to be saved.
#[tokio::test(start_paused = true)]
async fn many_births_are_few_configs_of_each_machine() {
    let world = World::new(MACHINES, 4 * CLUSTERS);
    world.store.take(Duration::from_millis(100));
    undisturbed(&world, async {
        world.settles().await;
        let configs = world.fleet.saves_at_apply().len();
        assert!(configs < 5 * MACHINES, "{configs} configs of {MACHINES} machines");
    })
    .await;
}

/// What waits to be saved of a cluster alone keeps none of its own next changes from a machine.
#[tokio::test(start_paused = true)]
async fn one_change_after_the_other_is_applied_at_once() {
    let world = World::new(MACHINES, CLUSTERS);
    undisturbed(&world, async {
        world.settles().await;
        world.store.take(Duration::from_millis(20));
        for number in 0..50 {
            let began = Instant::now();
            world.store.change("c0");
            world.fleet.has(&world.store.verbosity("c0")).await;
            let took = began.elapsed();
            assert!(took < Duration::from_millis(200), "change {number} takes {took:?}");
            sleep(Duration::from_millis(7 * number)).await;
        }
    })
    .await;
}

/// An agent keeps by itself what it took. What it could not do is asked for again, and told.
#[tokio::test(start_paused = true)]
async fn what_an_agent_could_not_do_is_asked_for_again() {
    let world = World::new(MACHINES, CLUSTERS);
    undisturbed(&world, async {
        world.settles().await;
        let applied = || world.fleet.saves_at_apply().len();
        let _ = applied();
        world.fleet.lose_files("hv-1", None);
        world.settles().await;
        assert_eq!(applied(), 0, "its agent puts them back");
        world.fleet.lose_files("hv-1", Some("write etcd.crt: no space left on device"));
        world.settles().await;
        assert_eq!(applied(), 1);
    })
    .await;
}

/// A cluster goes from a machine that is lost for good, also where that died as it was given a config of it.
#[tokio::test(start_paused = true)]
async fn a_machine_that_dies_of_a_config_is_lost_with_it() {
    let world = World::new(MACHINES, CLUSTERS);
    undisturbed(&world, async {
        world.settles().await;
        let machine = world.fleet.next_dies(|| world.store.change("c0")).await;
        world.store.delete("c0", world.now());
        sleep(Duration::from_secs(120)).await;
        assert!(world.store.has("c0"), "the machine may come back with what it has of it");
        world.store.lose(&machine);
        sleep(Duration::from_secs(120)).await;
        assert!(!world.store.has("c0"));
    })
    .await;
}

/// A new release of Keelway reaches one cluster, then a tenth of them, then the others. As long as one of an earlier wave is not available, no
/// other cluster follows.
#[tokio::test(start_paused = true)]
async fn a_release_reaches_clusters_in_waves() {
    let world = World::new(MACHINES, CLUSTERS);
    undisturbed(&world, world.settles()).await;
    world.store.downgrade("v0.0.9");
    world.store.add_upgraded_without_machines("a0");
    undisturbed(&world, sleep(IDLE)).await;
    let earlier = (None, "v0.0.9".to_owned(), Some("AwaitsWave".to_owned()));
    assert_eq!((0..CLUSTERS).map(|number| world.store.release(number)).collect::<BTreeSet<_>>(), [earlier].into());

    let mut upgrades = Upgrades::default();
    world.store.delete("a0", world.now());
    world.kept(&mut upgrades, world.settles()).await;
    let names: Vec<_> = upgrades.started.iter().map(|cluster| cluster.name.as_str()).collect();
    assert_eq!((&names[..2], names.len()), (&["c0", "c1"][..], CLUSTERS), "{names:?}");
    let now = (Some("v0.0.9".to_owned()), KEELWAY.to_owned(), None);
    assert_eq!((0..CLUSTERS).map(|number| world.store.release(number)).collect::<BTreeSet<_>>(), [now].into());
}

/// Nobody makes anew what a paused cluster lacks, and its neighbours on the same machines go on to change.
#[tokio::test(start_paused = true)]
async fn what_is_taken_away_of_a_paused_cluster_stops_nothing() {
    let world = World::new(MACHINES, 2);
    undisturbed(&world, async {
        world.settles().await;
        let id = world.store.id("c0");
        let (runs, components) = (world.fleet.runs(&id), world.store.components("c0"));
        world.store.pause("c0", true);
        world.settles().await;
        let mut taken = Vec::new();
        for name in ["etcd-0", "service-account", "front-proxy-ca"] {
            taken.push(world.store.take_secret("c0", name));
            world.store.change("c1");
            world.settles().await;
            assert!(world.fleet.runs(&id) == runs, "{name} was taken away");
        }
        // Certificates are made anew, an authority and a key are not.
        taken.drain(1..).for_each(|secret| world.store.put_secret(secret));
        world.store.pause("c0", false);
        world.settles().await;
        let now: BTreeSet<_> = world.fleet.runs(&id).into_keys().collect();
        assert_eq!((&now, world.store.components("c0")), (&components, components.clone()));
    })
    .await;
}

/// What is on a machine of a paused cluster stays there without a Component, and goes once the cluster is looked after again.
#[tokio::test(start_paused = true)]
async fn a_paused_cluster_without_a_component_goes_on() {
    let world = World::new(MACHINES, 2);
    undisturbed(&world, async {
        world.settles().await;
        let id = world.store.id("c0");
        let runs = world.fleet.runs(&id);
        world.store.pause("c0", true);
        world.store.take_component("c0", "kube-scheduler-0");
        world.settles().await;
        world.store.change("c1");
        world.settles().await;
        assert!(world.fleet.runs(&id) == runs);
        world.store.pause("c0", false);
        world.settles().await;
        assert_eq!(world.fleet.runs(&id).into_keys().collect::<BTreeSet<_>>(), world.store.components("c0"));
    })
    .await;
}

/// A manager that begins cannot save what it mints: what runs with the key that is gone goes on.
#[tokio::test(start_paused = true)]
async fn what_cannot_be_saved_ends_nothing() {
    let world = World::new(MACHINES, 2);
    undisturbed(&world, world.settles()).await;
    let id = world.store.id("c0");
    let runs = world.fleet.runs(&id);
    world.store.refuse(Some("c0"));
    world.store.change("c0");
    world.store.take_secret("c0", "etcd-0");
    let mut failures = Failures::default();
    world
        .kept(&mut failures, async {
            sleep(Duration::from_secs(60)).await;
            world.store.change("c1");
            sleep(Duration::from_secs(60)).await;
            assert!(world.fleet.runs(&id).keys().eq(runs.keys()));
            world.store.refuse(None);
            world.settles().await;
        })
        .await;
    assert_eq!(failures.0, BTreeSet::from(["cluster/c0".to_owned()]));
    assert_eq!(world.fleet.runs(&id).into_keys().collect::<BTreeSet<_>>(), world.store.components("c0"));
}

/// Keeps the documents for as long as a script takes. No pass fails.
async fn undisturbed(world: &World, script: impl Future<Output = ()>) {
    let mut failures = Failures::default();
    world.kept(&mut failures, script).await;
    assert_eq!(failures.0, BTreeSet::new());
}

/// The tasks of passes that could not be carried out.
#[derive(Default)]
struct Failures(BTreeSet<String>);

impl Watcher for Failures {
    fn began(&mut self, _: &Task) {}
    fn passed(&mut self, _: &Task, _: &PassOutcome, _: Duration) {}
    fn saved(&mut self, _: &Documents, _: &Documents) {}
    fn machine_observed(&mut self, _: &HypervisorName, _: &ObservedValue<MachineState>) {}
    fn applied(&mut self, _: &Task, _: &ApplyOutcome) {}
    fn failed(&mut self, task: &Task, _: &PassError, _: Duration) {
        self.0.insert(task.to_string());
    }
    fn queued(&mut self, _: usize) {}
    fn ended(&mut self, _: &Task) {}
    fn load_failed(&mut self, error: &StoreError) {
        panic!("{error}");
    }
}

/// How many clusters are in the waves before that of the first, second, .. cluster that goes to this release.
const EARLIER: [usize; CLUSTERS] = [0, 1, 2, 2, 2, 2, 2, 2];

/// The clusters that go to this release, in order.
#[derive(Default)]
struct Upgrades {
    started: Vec<ClusterRef>,
    under_way: BTreeSet<ClusterRef>,
}

impl Watcher for Upgrades {
    fn began(&mut self, _: &Task) {}
    fn passed(&mut self, _: &Task, _: &PassOutcome, _: Duration) {}
    fn saved(&mut self, before: &Documents, after: &Documents) {
        for (name, cluster) in &after.clusters {
            let before = before.clusters.get(name).map(|cluster| cluster.keelway_version());
            let conditions = &cluster.status.as_ref().unwrap().conditions;
            if before.is_some_and(|before| before != cluster.keelway_version()) {
                let earlier = &self.started[..EARLIER[self.started.len()]];
                assert!(!earlier.iter().any(|earlier| self.under_way.contains(earlier)), "{name} does not wait");
                assert!(condition::has(conditions, UP_TO_DATE), "its components are to be replaced first");
                self.started.push(name.clone());
                self.under_way.insert(name.clone());
            } else if !condition::has(conditions, UP_TO_DATE) {
                self.under_way.remove(name);
            }
        }
    }
    fn machine_observed(&mut self, _: &HypervisorName, _: &ObservedValue<MachineState>) {}
    fn applied(&mut self, _: &Task, _: &ApplyOutcome) {}
    fn failed(&mut self, task: &Task, error: &PassError, _: Duration) {
        panic!("{task}: {error}");
    }
    fn queued(&mut self, _: usize) {}
    fn ended(&mut self, _: &Task) {}
    fn load_failed(&mut self, error: &StoreError) {
        panic!("{error}");
    }
}
