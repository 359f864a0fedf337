//! Simulated health of containers, for tests that run many machines in one process, which would otherwise only send probes.

use std::{fmt, sync::Arc};

use super::MachineAccess;

/// Returns whether the container with this id is healthy.
pub(super) struct HealthAnswers(Arc<dyn Fn(&str) -> bool + Send + Sync>);

impl fmt::Debug for HealthAnswers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Answers")
    }
}

impl MachineAccess {
    /// Returns the same machine with simulated health: `answers` decides by container id, and no probe is sent.
    #[must_use]
    pub fn with_answers(self, answers: impl Fn(&str) -> bool + Send + Sync + 'static) -> Self {
        Self { answers: Some(HealthAnswers(Arc::new(answers))), ..self }
    }

    /// Returns the simulated health of a container. `None` if containers are probed.
    pub fn answer(&self, container: &str) -> Option<bool> {
        self.answers.as_ref().map(|answers| (answers.0)(container))
    }
}
