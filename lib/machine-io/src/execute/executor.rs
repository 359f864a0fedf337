//! The interface that an execution uses for single actions.

use std::{collections::BTreeMap, error::Error};

use keelway_api::name::PodName;
use keelway_machine::action::{Action, PodAction};

/// Executes single actions on one machine. The execution decides their order, and which of them start.
pub trait ActionExecutor: Sync {
    /// The error of a failed action.
    type Error: Error + 'static;

    /// Executes an action that is for no pod.
    fn on_machine(&self, action: &Action) -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// Executes a step of one pod.
    fn for_pod(
        &self,
        pod: &PodName,
        action: &PodAction,
        made: &mut CreatedIds,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send;
}

/// Ids that the steps of one pod created in this execution. Later steps without an id refer to them.
#[derive(Debug, Default)]
pub struct CreatedIds {
    /// The id of the sandbox.
    pub sandbox: Option<String>,
    /// The ids of containers, by name.
    pub containers: BTreeMap<String, String>,
}
