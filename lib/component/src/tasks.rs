//! Tasks that run as long as their process. If one ends, the process ends, so that its supervisor restarts it.

use tokio::task::{JoinError, JoinSet};

/// A task ended that should run forever.
#[derive(Debug, thiserror::Error)]
pub enum TaskError {
    /// The task panicked.
    #[error("a task of the process panicked")]
    Panicked(#[source] JoinError),
    /// The task returned.
    #[error("a task of the process ended")]
    Ended,
}

/// Waits until a task ends, which should not happen.
pub async fn failure(tasks: &mut JoinSet<()>) -> TaskError {
    match tasks.join_next().await {
        Some(Err(error)) => TaskError::Panicked(error),
        Some(Ok(())) => TaskError::Ended,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn the_end_of_a_task_is_reported() {
        let mut tasks = JoinSet::new();
        assert!(failure(&mut tasks).now_or_never().is_none());
        tasks.spawn(std::future::pending());
        assert!(failure(&mut tasks).now_or_never().is_none());
        tasks.spawn(async { panic!("this is meant to be") });
        assert!(matches!(failure(&mut tasks).await, TaskError::Panicked(_)));
        tasks.spawn(async {});
        assert!(matches!(failure(&mut tasks).await, TaskError::Ended));
    }
}
