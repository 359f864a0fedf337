//! A cluster that is created and deleted, with an interruption in both.

use std::{collections::BTreeMap, time::Instant};

use futures::{StreamExt, stream};
use tokio::sync::Semaphore;

use crate::{
    cut::Cut,
    kept::{End, Kept, documents, only_cluster},
    reference::reference,
    world::World,
};

/// The number of fleets at one time, over all tests.
static WORLDS: Semaphore = Semaphore::const_new(4);

/// Runs one round for each interrupted creation. As long as there are interrupted deletions, each round includes one. If there are fewer creations
/// than deletions, creations repeat.
pub(crate) async fn rounds(of: &str, births: Vec<Cut>, deletions: Vec<Cut>) {
    let started = Instant::now();
    let count = births.len().max(deletions.len());
    let deletions = deletions.into_iter().map(Some).chain(std::iter::repeat(None));
    let pairs = births.into_iter().cycle().zip(deletions).take(count);
    let ends: Vec<Vec<End>> = stream::iter(pairs)
        .map(|(birth, deletion)| async move {
            let _one_of_few = WORLDS.acquire().await.unwrap();
            round(birth, deletion).await
        })
        .buffer_unordered(count)
        .collect()
        .await;
    let mut tally: BTreeMap<End, usize> = BTreeMap::new();
    for end in ends.into_iter().flatten() {
        *tally.entry(end).or_default() += 1;
    }
    println!("{of}: {count} rounds in {:.1} s, {tally:?}", started.elapsed().as_secs_f32());
    let settled = tally.get(&End::Settled).copied().unwrap_or_default();
    assert!(settled * 10 <= count, "too many were not interrupted at all: {tally:?}");
}

async fn round(birth: Cut, deletion: Option<Cut>) -> Vec<End> {
    let reference = reference().await;
    let mut world = World::start().await;
    let input = world.with_cluster().await;
    let ended = world.reconcile_until(birth, &input).await;
    let kept = Kept::of(&ended, birth, &input, &world);
    let settled = kept.go_on(&world).await;
    kept.assert_part_of(&settled);
    let id = only_cluster(&documents(&settled)).clone();
    assert_eq!(world.seen(&id).await, reference.standing, "{birth:?}: {}", ended.stderr);
    let created = kept.end;
    let Some(deletion) = deletion else { return vec![created] };

    let input = world.deleted(&settled).await;
    let ended = world.reconcile_until(deletion, &input).await;
    let kept = Kept::of(&ended, deletion, &input, &world);
    let left = documents(&kept.go_on(&world).await);
    assert!(left.clusters.is_empty() && left.components.is_empty() && left.secrets.is_empty(), "{deletion:?}");
    assert_eq!(left.hypervisors.len(), 2);
    assert_eq!(world.seen("").await, reference.empty, "{deletion:?}: {}", ended.stderr);
    vec![created, kept.end]
}
