use std::time::Duration;

/// How long each kind of call may take. A call that is not answered in time fails with [`crate::CriError::TimedOut`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadlines {
    /// Calls that only look: lists, statuses, version.
    pub look: Duration,
    /// Calls that change something: run, create, start, stop, remove. A stop's own grace period is added to it.
    pub change: Duration,
    /// A pull or an import of an image, from its start to its end.
    pub image: Duration,
}

impl Default for Deadlines {
    /// The kubelet's two minutes for a change; a machine that needs longer than a quarter of a minute for a look hangs.
    fn default() -> Self {
        Self { look: Duration::from_secs(15), change: Duration::from_secs(120), image: Duration::from_secs(900) }
    }
}
