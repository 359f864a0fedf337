//! Documents that `reconcile` updates in their own file (`--in-place`), also if the program is killed.

use std::{fs, os::unix::fs::PermissionsExt};

use keelway_cri::fake::SignalTiming;
use keelway_e2e::fake_machine::{SignalOrder, SignalTrigger};
use rustix::process::Signal;

use crate::{
    kept::{documents, only_cluster},
    reference::reference,
    world::World,
};

/// Calls on the private machine after which the program is killed.
const POINTS: [usize; 3] = [1, 5, 11];

#[tokio::test]
async fn a_file_in_place_has_everything_before_each_effect() {
    let reference = reference().await;
    for nth in POINTS {
        let mut world = World::start().await;
        let file = world.file("world.yaml", &world.with_cluster().await);
        let reconcile = ["reconcile", "--in-place", file.to_str().unwrap()];
        let moment = SignalTrigger::Call(nth, SignalTiming::AfterAnswer);
        world.machines[0].order(SignalOrder { signal: Signal::KILL, moment }).await;
        let ended = world.keelway(&reconcile, "").await;
        assert!(ended.killed(), "{:?}: {}", ended.status, ended.stderr);

        let kept = documents(&fs::read_to_string(&file).unwrap());
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(!kept.secrets.is_empty() && !kept.components.is_empty());

        assert_eq!(world.keelway(&reconcile, "").await.done(), "", "stdout gets nothing");
        let settled = documents(&fs::read_to_string(&file).unwrap());
        assert_eq!(only_cluster(&settled), only_cluster(&kept));
        for (name, secret) in &kept.secrets {
            // Not compared as a whole, because a failure would print keys.
            assert!(settled.secrets[name].data == secret.data, "{name:?} changed");
        }
        assert_eq!(world.seen(only_cluster(&settled)).await, reference.standing);
        assert!(world.left().is_empty(), "no other file is needed to go on");
    }
}

/// A run that was killed leaves a file of documents. The next run reports it, and a run that continues from it removes it once settled.
#[tokio::test]
async fn documents_of_a_killed_run_are_offered() {
    let mut world = World::start().await;
    let input = world.with_cluster().await;
    world.machines[0]
        .order(SignalOrder { signal: Signal::KILL, moment: SignalTrigger::Call(3, SignalTiming::AfterAnswer) })
        .await;
    assert!(world.keelway(&["reconcile"], &input).await.killed());
    let left = world.left();
    let left = left[0].to_str().unwrap();

    let again = world.keelway(&["reconcile", "--once"], &input).await;
    assert!(!again.status.success(), "the machines obey the installation of the documents that were left");
    let offered = again.stderr;
    assert!(offered.contains(&format!("keelway reconcile -f {left}")), "{offered}");
    let ended = world.keelway(&["reconcile", "-f", left], "").await;
    assert!(!ended.stderr.contains("an interrupted run"), "{}", ended.stderr);
    let settled = ended.done();
    assert!(!fs::exists(left).unwrap(), "stdout has what it held");
    let again = world.keelway(&["reconcile"], &settled).await;
    assert!(!again.stderr.contains("an interrupted run"), "{}", again.stderr);
    again.done();
}
