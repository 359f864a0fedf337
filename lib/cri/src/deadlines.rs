use std::time::Duration;

/// The longest duration of each kind of call. A call without a response in time fails with [`crate::CriError::TimedOut`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadlines {
    /// For calls that only read: lists, statuses, version.
    pub look: Duration,
    /// For calls that change something: run, create, start, stop, remove. The grace period of a stop is added.
    pub change: Duration,
    /// For the whole pull or import of an image.
    pub image: Duration,
}

impl Default for Deadlines {
    /// A change has the kubelet's two minutes. A machine that needs longer than 15 seconds to answer a query hangs.
    fn default() -> Self {
        Self { look: Duration::from_secs(15), change: Duration::from_secs(120), image: Duration::from_secs(900) }
    }
}
