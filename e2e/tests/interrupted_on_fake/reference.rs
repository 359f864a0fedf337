//! A world that nobody interrupts: what there is to count, and how it ends.

use std::fs;

use keelway_api::Documents;
use tokio::sync::OnceCell;

use crate::{
    kept::only_cluster,
    machine::Seen,
    world::{Ended, World},
};

/// What the other worlds are compared with.
#[derive(Debug)]
pub(crate) struct Reference {
    pub(crate) birth: Counts,
    pub(crate) deletion: Counts,
    /// Both machines with the cluster on them, and without.
    pub(crate) standing: [Seen; 2],
    pub(crate) empty: [Seen; 2],
}

/// How much a command did.
#[derive(Debug)]
pub(crate) struct Counts {
    /// Calls that changed something, by machine.
    pub(crate) calls: [usize; 2],
    /// Moments before and after saves and effects, as the program tells of them.
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
    assert_eq!(plan.done(), "Nothing to do: the world is as the documents say.\n");
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

/// Reconciles to the end, and counts.
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

/// How many failpoints of each kind there are; each that was begun was ended, too.
fn tell(points: &str) {
    let count = |word: &str| points.lines().filter(|point| point.split(' ').next() == Some(word)).count();
    let kinds = [("saves", "saved"), ("begins", "done"), ("binds", "bound")];
    for (before, after) in kinds {
        println!("{} before and {} after: {before}, {after}", count(before), count(after));
        assert_eq!(count(before), count(after), "{points}");
    }
    assert!(count("saves") > 0 && count("begins") > 0);
}
