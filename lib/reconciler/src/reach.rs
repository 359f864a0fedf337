//! Access to a machine for people: logs, commands, events. The machine is reached through a socket on this host, of its runtime or its agent, or
//! through its agent on a network.

mod logs;
mod proxy;

use std::{collections::BTreeMap, io, path::Path, time::Duration};

use keelway_agent_api::client::{AgentClientError, DialTarget, HypervisorAgentClient};
use keelway_api::{
    machine::{CLUSTER_LABEL, COMPONENT_LABEL},
    name::PodName,
};
use keelway_cri::{
    self as cri, CriContainerState, CriRuntime, Deadlines,
    exec::{ExecError, ExecStreams},
    proxy::connection::MachineConnection,
};
use keelway_machine::layout::is_named_after;
use keelway_machine_io::{
    access::{AccessError, MachineAccess},
    files::{MachineFileError, MachineFiles},
};
use tokio::io::{AsyncRead, AsyncWrite};

pub use logs::ComponentLogs;
pub use proxy::ProxyError;

/// How long connecting to the runtime's streaming server, on the machine's loopback, may take.
const DIAL: Duration = Duration::from_secs(5);

/// Access to a machine failed.
#[derive(Debug, thiserror::Error)]
pub enum ReachError {
    /// The process behind the socket cannot be used.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// The call to the machine's agent failed.
    #[error(transparent)]
    Agent(#[from] AgentClientError),
    /// The call to the runtime failed.
    #[error("cannot query the runtime")]
    Runtime(#[from] cri::CriError),
    /// The logs cannot be opened.
    #[error("cannot open the logs")]
    Files(#[from] MachineFileError),
    /// The logs cannot be read, or their text cannot be written.
    #[error("cannot read the logs")]
    Logs(#[from] io::Error),
    /// The connection to the machine's agent for a command's streams failed.
    #[error("cannot connect to the machine's agent")]
    Connect(#[source] io::Error),
    /// The component has no such running container.
    #[error("{pod} has no running container{}", named(name.as_deref()))]
    NotRunning {
        /// The component.
        pod: PodName,
        /// The name of the container, if the caller named one.
        name: Option<String>,
    },
    /// The command could not be run, or its exit code is unknown.
    #[error("cannot run the command")]
    Exec(#[from] ExecError),
}

fn named(name: Option<&str>) -> String {
    name.map(|name| format!(" {name}")).unwrap_or_default()
}

/// A command to run in a component's container.
#[derive(Debug, Clone)]
pub struct ContainerCommand {
    /// The component.
    pub pod: PodName,
    /// The name of the container. `None` for the container that the component is named after.
    pub container: Option<String>,
    /// The program and its arguments.
    pub command: Vec<String>,
    /// Whether the command reads stdin.
    pub stdin: bool,
    /// Whether the command has a terminal.
    pub terminal: bool,
}

/// A machine that can be reached.
#[derive(Debug)]
pub struct ReachedMachine {
    by: ReachMethod,
    runtime: CriRuntime,
}

/// How the machine's root and network are reached.
#[derive(Debug)]
enum ReachMethod {
    /// Through a process on this host.
    Process {
        access: MachineAccess,
        /// Whether the process is an agent. Otherwise it is a runtime.
        is_agent: bool,
    },
    /// Through an agent on a network.
    Agent(Box<(HypervisorAgentClient, DialTarget)>),
}

impl ReachedMachine {
    /// Returns the machine behind the socket of a runtime.
    pub async fn on_runtime_socket(socket: &Path) -> Result<Self, ReachError> {
        Self::by_process(socket, false).await
    }

    /// Returns the machine behind the socket of an agent, which passes CRI calls on to its runtime.
    pub async fn on_agent_socket(socket: &Path) -> Result<Self, ReachError> {
        Self::by_process(socket, true).await
    }

    async fn by_process(socket: &Path, is_agent: bool) -> Result<Self, ReachError> {
        let runtime = CriRuntime::on_socket(socket, Deadlines::default())?;
        Ok(Self { by: ReachMethod::Process { access: MachineAccess::of_socket(socket).await?, is_agent }, runtime })
    }

    /// Returns the machine of the agent at this target.
    #[must_use]
    pub fn over(way: DialTarget) -> Self {
        let channel = way.channel();
        let runtime = CriRuntime::on_channel(channel.clone(), Deadlines::default());
        Self { by: ReachMethod::Agent(Box::new((HypervisorAgentClient::on_channel(channel), way))), runtime }
    }

    /// Returns the logs of a component, or `None` if it has none on this machine. Does not use the runtime.
    pub async fn logs(&self, pod: &PodName) -> Result<Option<ComponentLogs>, ReachError> {
        match &self.by {
            ReachMethod::Process { access, .. } => {
                let place = access.place().await?;
                Ok(MachineFiles::new(place.root()).logs(pod)?.map(ComponentLogs::here).transpose()?)
            }
            ReachMethod::Agent(agent) => ComponentLogs::through(&agent.0, pod).await,
        }
    }

    /// Returns the status of all containers of components that the runtime has.
    pub async fn containers(&self) -> Result<Vec<cri::ContainerStatus>, ReachError> {
        let mut found = Vec::new();
        for container in self.runtime.list_containers(&BTreeMap::new()).await? {
            if container.labels.contains_key(CLUSTER_LABEL) {
                match self.runtime.container_status(&container.id).await {
                    Err(cri::CriError::NotFound { .. }) => {}
                    status => found.push(status?),
                }
            }
        }
        Ok(found)
    }

    /// Runs a command until it ends, and returns its exit code.
    pub async fn exec<I, O, E>(&self, asked: ContainerCommand, streams: ExecStreams<I, O, E>) -> Result<i32, ReachError>
    where
        I: AsyncRead + Unpin,
        O: AsyncWrite + Unpin,
        E: AsyncWrite + Unpin,
    {
        let container = self.running(&asked).await?;
        let prepared = self.runtime.exec(&container, &asked.command, (asked.stdin, asked.terminal)).await?;
        let connection = match &self.by {
            ReachMethod::Process { access, .. } => access.dial(prepared.address()?, DIAL).await?.into(),
            // The agent relays the runtime's streams on its own port.
            ReachMethod::Agent(agent) => MachineConnection::new(agent.1.stream().await.map_err(ReachError::Connect)?),
        };
        Ok(prepared.run(connection, streams).await?)
    }

    async fn running(&self, asked: &ContainerCommand) -> Result<String, ReachError> {
        let labels = BTreeMap::from([
            (CLUSTER_LABEL.to_owned(), asked.pod.cluster.to_string()),
            (COMPONENT_LABEL.to_owned(), asked.pod.component.to_string()),
        ]);
        let all = self.runtime.list_containers(&labels).await?;
        let running = all.into_iter().filter(|found| {
            found.state == CriContainerState::Running && asked.container.as_ref().is_none_or(|name| *name == found.name)
        });
        let found = running.min_by_key(|found| !is_named_after(&asked.pod, &found.name)).map(|found| found.id);
        found.ok_or_else(|| ReachError::NotRunning { pod: asked.pod.clone(), name: asked.container.clone() })
    }
}
