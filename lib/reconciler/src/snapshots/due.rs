//! Snapshots that are due when `keelway reconcile` runs.

use keelway_api::name::ClusterRef;
use keelway_planner::{is_snapshot_due, record_snapshot};

use crate::{PassContext, PassError, PassFailure};

/// Takes the snapshots that are due, one after the other, and saves what became of them. Returns the failures.
pub async fn take_due_snapshots(context: &PassContext) -> Result<Vec<PassFailure>, PassError> {
    let loaded = context.store.load().await?;
    let now = (context.clock)();
    let due = loaded.clusters.iter().filter(|(_, cluster)| is_snapshot_due(cluster, now));
    let due: Vec<ClusterRef> = due.map(|(name, _)| name.clone()).collect();
    let mut failures = Vec::new();
    for name in due {
        if context.run.stop.is_cancelled() {
            break;
        }
        let mut documents = (*context.store.load().await?).clone();
        let Some(cluster) = documents.clusters.get(&name) else { continue };
        let now = (context.clock)();
        let taken = context.components.take_snapshot(&documents, cluster, now).await;
        if let Err(reason) = &taken {
            failures
                .push(PassFailure { subject: name.to_string(), reason: format!("no snapshot was taken: {reason}") });
        }
        if let Some(cluster) = documents.clusters.get_mut(&name) {
            record_snapshot(cluster, taken, now);
        }
        context.store.save(&documents).await?;
    }
    Ok(failures)
}
