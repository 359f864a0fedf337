//! The checks of `spec.workers`.

use super::FaultCollector;
use crate::{
    cluster::WorkersSpec,
    duration::Span,
    release::{self, Release},
};

/// The longest time that pods of a worker may take to terminate.
pub(crate) const LONGEST_DRAIN: Span = Span::hours(24);

/// Records the faults of a cluster of this release.
pub(super) fn check(workers: &WorkersSpec, release: Option<&Release>, faults: &mut FaultCollector) {
    const VERSION: &str = "spec.workers.version";
    if workers.max_unavailable == 0 {
        faults.add("spec.workers.maxUnavailable", "must be at least 1, not 0", "write 1 or more");
    }
    if workers.drain_timeout > LONGEST_DRAIN {
        faults.add(
            "spec.workers.drainTimeout",
            format!("must be at most {LONGEST_DRAIN}, not {}", workers.drain_timeout),
            "reduce it",
        );
    }
    let Some(version) = &workers.version else { return };
    match (release::find(version), release) {
        (None, _) => faults.add(
            VERSION,
            format!("{version:?} is not supported"),
            format!("supported values: {}", release::names()),
        ),
        (Some(kubelet), Some(release)) if kubelet.minor() > release.minor() => faults.add(
            VERSION,
            format!("must not be of a newer minor version than spec.version ({release}), but is {version}"),
            "write a release of the same or of an earlier minor version, or upgrade the cluster, too",
        ),
        (Some(_), _) => {}
    }
}
