//! Tasks that go on as long as their process: the end of one is the end of all, so that whoever looks after the process starts it anew.

use tokio::task::{JoinError, JoinSet};

/// A task ended that goes on for ever.
#[derive(Debug, thiserror::Error)]
pub enum TaskError {
    /// By a fault of the program.
    #[error("a task of the process panicked")]
    Panicked(#[source] JoinError),
    /// By itself.
    #[error("a task of the process ended")]
    Ended,
}

/// Waits until one of them ended, which none should.
pub(crate) async fn failure(tasks: &mut JoinSet<()>) -> TaskError {
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
    async fn the_end_of_one_is_told() {
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
