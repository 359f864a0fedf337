//! A bounded set of tasks, for peers that have not authenticated.

use std::collections::VecDeque;

use tokio::task::{AbortHandle, JoinSet};

/// At most `most` tasks. If the set is full, the oldest task is aborted.
#[derive(Debug)]
pub struct BoundedTasks {
    most: usize,
    tasks: JoinSet<()>,
    oldest_first: VecDeque<AbortHandle>,
}

impl BoundedTasks {
    /// Creates an empty set.
    #[must_use]
    pub fn new(most: usize) -> Self {
        Self { most, tasks: JoinSet::new(), oldest_first: VecDeque::new() }
    }

    /// Returns once there is room for one more task: at once, or when the oldest task has ended.
    pub async fn make_room(&mut self) {
        while self.tasks.try_join_next().is_some() {}
        self.oldest_first.retain(|task| !task.is_finished());
        while self.tasks.len() >= self.most {
            if let Some(oldest) = self.oldest_first.pop_front() {
                oldest.abort();
            }
            self.tasks.join_next().await;
        }
    }

    /// Spawns a task. Call [`Self::make_room`] before.
    pub fn take(&mut self, stranger: impl Future<Output = ()> + Send + 'static) {
        self.oldest_first.push_back(self.tasks.spawn(stranger));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use tokio::sync::Notify;

    use super::*;

    /// Records its end, however it ends.
    struct End(usize, Arc<Mutex<Vec<usize>>>);

    impl Drop for End {
        fn drop(&mut self) {
            self.1.lock().unwrap().push(self.0);
        }
    }

    #[tokio::test]
    async fn the_oldest_task_is_ended_for_a_new_one() {
        let ended = Arc::default();
        let mut strangers = BoundedTasks::new(3);
        for number in 0..100 {
            let end = End(number, Arc::clone(&ended));
            strangers.make_room().await;
            assert!(strangers.tasks.len() < 3);
            strangers.take(async move {
                let _end = end;
                std::future::pending::<()>().await;
            });
        }
        assert_eq!(*ended.lock().unwrap(), (0..97).collect::<Vec<_>>());
    }

    #[tokio::test]
    async fn an_ended_task_frees_its_place() {
        let (ended, ending) = (Arc::default(), Arc::new(Notify::new()));
        let mut strangers = BoundedTasks::new(2);
        let stays = End(0, Arc::clone(&ended));
        strangers.take(async move {
            let _stays = stays;
            std::future::pending::<()>().await;
        });
        for _ in 0..100 {
            strangers.make_room().await;
            let ending_too = Arc::clone(&ending);
            strangers.take(async move { ending_too.notify_one() });
            ending.notified().await;
        }
        assert!(ended.lock().unwrap().is_empty());
    }
}
