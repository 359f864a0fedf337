//! A run without interruption: the points that it has, and its final state.

use std::fs;

use keelway_api::Documents;
use tokio::sync::OnceCell;

use crate::{
    kept::only_cluster,
    machine::Seen,
    world::{Ended, World},
};

/// The results with which interrupted runs are compared.
#[derive(Debug)]
pub(crate) struct Reference {
    pub(crate) birth: Counts,
    pub(crate) deletion: Counts,
    /// The state of both machines with the cluster, and without it.
    pub(crate) standing: [Seen; 2],
    pub(crate) empty: [Seen; 2],
}

/// The number of points in one command.
#[derive(Debug)]
pub(crate) struct Counts {
    /// Calls that changed something, by machine.
    pub(crate) calls: [usize; 2],
    /// Moments before and after saves and effects, as the program reports them.
    pub(crate) failpoints: usize,
}

pub(crate) async fn reference() -> &'static Reference {
    static REFERENCE: OnceCell<Reference> = OnceCell::const_new();
    REFERENCE.get_or_init(make).await
}

async fn make() -> Reference {
    let world = World::start().await;
    let found = world.seen("").await;
    let input = world.with_cluster().await;
    let (birth, settled) = reconcile(&world, &input).await;

    let plan = world.keelway(&["plan", "--exit-code"], &settled).await;
    assert_eq!(plan.done(), "Nothing to do: the machines match the documents.\n");
    assert_eq!(world.settle(&settled).await, settled);
    let documents = Documents::read(settled.as_bytes()).unwrap();
    let standing = world.seen(only_cluster(&documents)).await;
    assert_eq!(standing.clone().map(|seen| seen.containers.len()), [6, 2]);

    let (deletion, _) = reconcile(&world, &world.deleted(&settled).await).await;
    let empty = world.seen("").await;
    assert_eq!(empty, found, "a machine is left as it was found");
    println!("birth {birth:?}, deletion {deletion:?}");
    Reference { birth, deletion, standing, empty }
}

/// Reconciles until settled, and counts the points.
async fn reconcile(world: &World, documents: &str) -> (Counts, String) {
    let before = world.calls();
    let Ended { status, stdout, stderr } = world.keelway_until(None, &["reconcile"], documents).await;
    assert!(status.success(), "{status}: {stderr}");
    let after = world.calls();
    let calls = [0, 1].map(|machine| after[machine].len() - before[machine].len());
    let points = fs::read_to_string(world.points()).unwrap();
    fs::remove_file(world.points()).unwrap();
    tell(&points);
    (Counts { calls, failpoints: points.lines().count() }, stdout)
}

/// Prints the number of failpoints of each kind, and asserts that each one that began also ended.
fn tell(points: &str) {
    let count = |word: &str| points.lines().filter(|point| point.split(' ').next() == Some(word)).count();
    let kinds = [("saves", "saved"), ("begins", "done"), ("binds", "bound")];
    for (before, after) in kinds {
        println!("{} before and {} after: {before}, {after}", count(before), count(after));
        assert_eq!(count(before), count(after), "{points}");
    }
    assert!(count("saves") > 0 && count("begins") > 0);
}
