//! The logs of a component, from the local disk or an agent.

use std::{
    io::{self, Write},
    time::Duration,
};

use futures::StreamExt;
use keelway_agent_api::client::HypervisorAgentClient;
use keelway_api::name::PodName;
use keelway_machine::log::{Log, LogOptions};
use keelway_machine_io::{files::PodLogs, logs::read};

use super::ReachError;

/// How long an agent may take until its response begins.
const ANSWER: Duration = Duration::from_secs(10);

/// The logs of a component.
#[derive(Debug)]
pub struct ComponentLogs {
    all: Vec<Log>,
    at: LogSource,
}

#[derive(Debug)]
enum LogSource {
    Here(PodLogs),
    There(Box<HypervisorAgentClient>, PodName),
}

impl ComponentLogs {
    pub(super) fn here(logs: PodLogs) -> io::Result<Self> {
        Ok(Self { all: logs.list()?, at: LogSource::Here(logs) })
    }

    pub(super) async fn through(client: &HypervisorAgentClient, pod: &PodName) -> Result<Option<Self>, ReachError> {
        let all = client.logs(pod, ANSWER).await?;
        Ok(all.map(|all| Self { all, at: LogSource::There(Box::new(client.clone()), pod.clone()) }))
    }

    /// Returns the logs, grouped by container, the newest last.
    #[must_use]
    pub fn list(&self) -> &[Log] {
        &self.all
    }

    /// Writes the selected lines of a log. If the log is followed, this returns only when no more lines can come.
    pub async fn read(&self, log: Log, wanted: &LogOptions, to: &mut dyn Write) -> Result<(), ReachError> {
        let (client, pod) = match &self.at {
            LogSource::Here(logs) => return Ok(read(logs, log, wanted, to)?),
            LogSource::There(client, pod) => (client, pod),
        };
        let mut text = client.read_log(pod, &log, wanted, ANSWER).await?;
        while let Some(text) = text.next().await {
            to.write_all(&text?)?;
            to.flush()?;
        }
        Ok(())
    }
}
