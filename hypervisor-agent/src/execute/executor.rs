//! What an execution does its actions with.

use std::{collections::BTreeMap, error::Error};

use keelway_api::name::PodName;

use crate::action::{Action, PodAction};

/// Does single actions on one machine. Their order, and which of them begin, is the execution's.
pub trait ActionExecutor: Sync {
    /// Why an action was not done.
    type Error: Error + 'static;

    /// Does something that is for no pod.
    fn on_machine(&self, action: &Action) -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// Does something for one pod.
    fn for_pod(
        &self,
        pod: &PodName,
        action: &PodAction,
        made: &mut CreatedIds,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send;
}

/// What the steps of one pod made in this execution: later steps that carry no id are about it.
#[derive(Debug, Default)]
pub struct CreatedIds {
    /// The sandbox's id.
    pub sandbox: Option<String>,
    /// The ids of containers by name.
    pub containers: BTreeMap<String, String>,
}
