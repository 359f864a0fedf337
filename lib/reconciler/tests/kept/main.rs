//! Continuous reconciliation of documents that do not change: it sends no requests and saves nothing. Time is simulated.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test's functions fail by panicking")]

mod world;

use std::{collections::BTreeSet, time::Duration};

use keelway_api::{
    Documents,
    condition::{self, is_true},
    jiff::SignedDuration,
    machine::{MachineState, ObservedValue},
    name::{ClusterRef, HypervisorName},
    release::KEELWAY,
};
use keelway_reconciler::{ApplyOutcome, PassError, PassOutcome, StoreError, Task, Watcher};
use tokio::time::{Instant, sleep};
use world::{UP_TO_DATE, World};

const MACHINES: usize = 5;
const CLUSTERS: usize = 8;
/// The number of clusters that one manager must support.
const MANY: usize = 1000;
/// Long enough for everything that is done at intervals.
const IDLE: Duration = Duration::from_secs(6 * 3600);
/// Two thirds of the validity of the certificates in `world`, and some time for spread dates.
const RENEWED: Duration = Duration::from_secs(34 * 3600);

/// Settled clusters cause no saves and no calls for hours. Their certificates are still renewed in time.
#[tokio::test(start_paused = true)]
async fn settled_clusters_cause_no_calls_and_no_saves() {
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

/// The same for the number of clusters that one manager must support.
#[tokio::test(start_paused = true)]
#[ignore = "long: it makes the keys of them all"]
async fn a_thousand_settled_clusters_cause_no_calls_and_no_saves() {
    let world = World::new(MANY / 10, MANY);
    undisturbed(&world, async {
        world.settles().await;
        let before = world.counts();
        sleep(IDLE).await;
        assert_eq!(world.counts(), before, "writes and calls of settled clusters");
    })
    .await;
}

/// The time of a machine's last contact is saved when the machine stops responding, and not before.
#[tokio::test(start_paused = true)]
async fn the_last_contact_of_a_machine_is_saved_when_it_stops_responding() {
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

/// A machine that becomes unreachable and reachable again affects only clusters with components on it.
#[tokio::test(start_paused = true)]
async fn a_flapping_machine_wakes_only_its_own_clusters() {
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

/// Decisions of many clusters are saved together. A cluster that the store refuses delays none of the others.
#[tokio::test(start_paused = true)]
async fn a_cluster_that_cannot_be_saved_delays_no_other() {
    let world = World::new(MACHINES, CLUSTERS);
    world.store.refuse(Some("c3"));
    let mut report = Report::default();
    world
        .kept(&mut report, async {
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
    assert_eq!(report.failures, BTreeSet::from(["cluster/c3".to_owned()]));
}

/// One save comes between a change and the machine that it is for. Conditions cause no save of their own before that.
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

/// While many edits wait to be saved, a machine receives the changes of many clusters together.
#[tokio::test(start_paused = true)]
async fn many_creations_cause_few_configs_for_each_machine() {
    let world = World::new(MACHINES, 4 * CLUSTERS);
    world.store.take(Duration::from_millis(100));
    undisturbed(&world, async {
        world.settles().await;
        let configs = world.fleet.saves_at_apply().len();
        assert!(configs < 5 * MACHINES, "{configs} configs of {MACHINES} machines");
    })
    .await;
}

/// Conditions of a cluster that wait to be saved do not delay later changes of the same cluster.
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

/// An agent keeps its config applied by itself. If it reports a failure, the config is sent again, and the failure is reported again.
#[tokio::test(start_paused = true)]
async fn a_config_is_sent_again_if_its_agent_reports_a_failure() {
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

/// A cluster is deleted even if one of its machines is lost for good, also if the machine failed while it received a config of the cluster.
#[tokio::test(start_paused = true)]
async fn a_cluster_is_deleted_after_its_machine_failed_during_a_config() {
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

/// A new release of Keelway reaches one cluster, then a tenth of them, then the others. As long as a cluster of an earlier wave is not available,
/// no other cluster follows.
#[tokio::test(start_paused = true)]
async fn a_release_reaches_clusters_in_waves() {
    let world = World::new(MACHINES, CLUSTERS);
    undisturbed(&world, world.settles()).await;
    world.store.downgrade("v0.0.9");
    world.store.add_upgraded_without_machines("a0");
    undisturbed(&world, sleep(IDLE)).await;
    let earlier = (None, "v0.0.9".to_owned(), Some("AwaitsWave".to_owned()));
    assert_eq!((0..CLUSTERS).map(|number| world.store.release(number)).collect::<BTreeSet<_>>(), [earlier].into());

    world.store.delete("a0", world.now());
    let Upgrades { started, .. } = undisturbed(&world, world.settles()).await;
    let names: Vec<_> = started.iter().map(|cluster| cluster.name.as_str()).collect();
    assert_eq!((&names[..2], names.len()), (&["c0", "c1"][..], CLUSTERS), "{names:?}");
    let now = (Some("v0.0.9".to_owned()), KEELWAY.to_owned(), None);
    assert_eq!((0..CLUSTERS).map(|number| world.store.release(number)).collect::<BTreeSet<_>>(), [now].into());
}

/// Secrets that a paused cluster lacks are not minted again, and clusters on the same machines can still change.
#[tokio::test(start_paused = true)]
async fn removed_documents_of_a_paused_cluster_stop_nothing() {
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
        // Certificates are minted again. Authorities and keys are not.
        taken.drain(1..).for_each(|secret| world.store.put_secret(secret));
        world.store.pause("c0", false);
        world.settles().await;
        let now: BTreeSet<_> = world.fleet.runs(&id).into_keys().collect();
        assert_eq!((&now, world.store.components("c0")), (&components, components.clone()));
    })
    .await;
}

/// If the Component of a paused cluster is removed, its pod continues until the cluster is resumed.
#[tokio::test(start_paused = true)]
async fn a_paused_cluster_without_a_component_continues() {
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

/// A manager starts and cannot save what it mints. Components that run with a key that was removed continue.
#[tokio::test(start_paused = true)]
async fn a_failed_save_stops_nothing() {
    let world = World::new(MACHINES, 2);
    undisturbed(&world, world.settles()).await;
    let id = world.store.id("c0");
    let runs = world.fleet.runs(&id);
    world.store.refuse(Some("c0"));
    world.store.change("c0");
    world.store.take_secret("c0", "etcd-0");
    let mut report = Report::default();
    world
        .kept(&mut report, async {
            sleep(Duration::from_secs(60)).await;
            world.store.change("c1");
            sleep(Duration::from_secs(60)).await;
            assert!(world.fleet.runs(&id).keys().eq(runs.keys()));
            world.store.refuse(None);
            world.settles().await;
        })
        .await;
    assert_eq!(report.failures, BTreeSet::from(["cluster/c0".to_owned()]));
    assert_eq!(world.fleet.runs(&id).into_keys().collect::<BTreeSet<_>>(), world.store.components("c0"));
}

/// Reconciles while a script runs, and checks that no pass fails.
async fn undisturbed(world: &World, script: impl Future<Output = ()>) -> Upgrades {
    let mut report = Report::default();
    world.kept(&mut report, script).await;
    assert_eq!(report.failures, BTreeSet::new());
    report.upgrades
}

/// What is to be known of passes in the end.
#[derive(Default)]
struct Report {
    /// The tasks whose passes failed.
    failures: BTreeSet<String>,
    upgrades: Upgrades,
}

impl Watcher for Report {
    fn began(&mut self, _: &Task) {}
    fn passed(&mut self, _: &Task, _: &PassOutcome, _: Duration) {}
    fn saved(&mut self, before: &Documents, after: &Documents) {
        self.upgrades.saved(before, after);
    }
    fn machine_observed(&mut self, _: &HypervisorName, _: &ObservedValue<MachineState>) {}
    fn applied(&mut self, _: &Task, _: &ApplyOutcome) {}
    fn failed(&mut self, task: &Task, _: &PassError, _: Duration) {
        self.failures.insert(task.to_string());
    }
    fn queued(&mut self, _: usize) {}
    fn ended(&mut self, _: &Task) {}
    fn load_failed(&mut self, error: &StoreError) {
        panic!("{error}");
    }
}

/// The number of clusters in earlier waves, for the first, second, .. cluster that is upgraded.
const EARLIER: [usize; CLUSTERS] = [0, 1, 2, 2, 2, 2, 2, 2];

/// The clusters that are upgraded, in order.
#[derive(Default)]
struct Upgrades {
    started: Vec<ClusterRef>,
    under_way: BTreeSet<ClusterRef>,
}

impl Upgrades {
    fn saved(&mut self, before: &Documents, after: &Documents) {
        for (name, cluster) in &after.clusters {
            let before = before.clusters.get(name).map(|cluster| cluster.keelway_version());
            let conditions = cluster.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
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
}
