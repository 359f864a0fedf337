//! A machine as people look into it: logs, commands, events. The way is a socket on this machine, its runtime's or its agent's,
//! or its agent on a network.

mod bare;
mod logs;
mod proxy;

use std::{collections::BTreeMap, io, net::SocketAddr, path::Path, time::Duration};

use keelway_api::{
    machine::{CLUSTER_LABEL, COMPONENT_LABEL},
    name::PodName,
};
use keelway_cri::{
    self as cri, CriContainerState, CriRuntime, Deadlines,
    exec::{ExecError, ExecStreams},
};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::{
    access::{AccessError, MachineAccess},
    client::{AgentClientError, DialTarget, HypervisorAgentClient},
    connection::MachineConnection,
    files::{MachineFileError, MachineFiles},
    helper::{Helper, HelperError},
    layout::is_named_after,
};

pub use logs::ComponentLogs;
pub use proxy::ProxyError;

/// How long the runtime's streaming server, on the machine's own loopback, may take to be connected to.
const DIAL: Duration = Duration::from_secs(5);

/// Why a machine could not be looked into.
#[derive(Debug, thiserror::Error)]
pub enum ReachError {
    /// The process behind the socket cannot be used.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// The machine's agent does not do it.
    #[error(transparent)]
    Agent(#[from] AgentClientError),
    /// The runtime does not tell.
    #[error("cannot ask the runtime")]
    Runtime(#[from] cri::CriError),
    /// The logs cannot be opened.
    #[error("cannot open the logs")]
    Files(#[from] MachineFileError),
    /// The logs cannot be read, or nobody takes what is in them.
    #[error("cannot read the logs")]
    Logs(#[from] io::Error),
    /// There is no connection to the machine's agent for a command's streams.
    #[error("cannot connect to the machine's agent")]
    Connect(#[source] io::Error),
    /// No such container runs.
    #[error("{pod} has no running container{}", named(name.as_deref()))]
    NotRunning {
        /// The component.
        pod: PodName,
        /// The container's name, where one was asked for.
        name: Option<String>,
    },
    /// The command was not run to its end.
    #[error("cannot run the command")]
    Exec(#[from] ExecError),
    /// The machine's helper does not do it.
    #[error(transparent)]
    Helper(#[from] HelperError),
    /// Nobody listens there for anybody else.
    #[error(
        "the machine's runtime serves streams on its own loopback only ({address}): leave -i and -t out, or run keelway-hypervisor-agent on the machine"
    )]
    Loopback {
        /// Where it serves them.
        address: SocketAddr,
    },
    /// No connection to the runtime's streams.
    #[error(
        "cannot connect to the streams of the machine's runtime at {address}: leave -i and -t out, or run keelway-hypervisor-agent on the machine"
    )]
    Streams {
        /// Where it serves them.
        address: SocketAddr,
        /// The cause.
        #[source]
        source: io::Error,
    },
}

fn named(name: Option<&str>) -> String {
    name.map(|name| format!(" {name}")).unwrap_or_default()
}

/// A command to run in a component's container.
#[derive(Debug, Clone)]
pub struct ContainerCommand {
    /// The component.
    pub pod: PodName,
    /// The container's name; that which the component is named after where there is none.
    pub container: Option<String>,
    /// Program and arguments.
    pub command: Vec<String>,
    /// Whether it reads.
    pub stdin: bool,
    /// Whether it has a terminal.
    pub terminal: bool,
}

/// A machine that is reached.
#[derive(Debug)]
pub struct ReachedMachine {
    by: ReachMethod,
    runtime: CriRuntime,
}

/// Whose root and network the machine's are.
#[derive(Debug)]
enum ReachMethod {
    /// Those of a process on this machine.
    Process {
        access: MachineAccess,
        /// Whether it is an agent, and no runtime.
        is_agent: bool,
    },
    /// Those of an agent at the end of a way.
    Agent(Box<(HypervisorAgentClient, DialTarget)>),
    /// Those that a helper is in. Its network is reached from here, or not at all.
    Helper(Box<Helper>),
}

impl ReachedMachine {
    /// The machine behind a runtime's socket.
    pub async fn on_runtime_socket(socket: &Path) -> Result<Self, ReachError> {
        Self::by_process(socket, false).await
    }

    /// The machine behind the socket of an agent, which passes looks and commands on.
    pub async fn on_agent_socket(socket: &Path) -> Result<Self, ReachError> {
        Self::by_process(socket, true).await
    }

    async fn by_process(socket: &Path, is_agent: bool) -> Result<Self, ReachError> {
        let runtime = CriRuntime::on_socket(socket, Deadlines::default())?;
        Ok(Self { by: ReachMethod::Process { access: MachineAccess::of_socket(socket).await?, is_agent }, runtime })
    }

    /// The machine whose agent is at the end of a way.
    #[must_use]
    pub fn over(way: DialTarget) -> Self {
        let channel = way.channel();
        let runtime = CriRuntime::on_channel(channel.clone(), Deadlines::default());
        Self { by: ReachMethod::Agent(Box::new((HypervisorAgentClient::on_channel(channel), way))), runtime }
    }

    /// A machine without an agent, by its runtime and its helper.
    #[must_use]
    pub fn by_helper(runtime: CriRuntime, helper: Helper) -> Self {
        Self { by: ReachMethod::Helper(Box::new(helper)), runtime }
    }

    /// The logs of a component; `None` where it has none here. The runtime has no part in it.
    pub async fn logs(&self, pod: &PodName) -> Result<Option<ComponentLogs>, ReachError> {
        match &self.by {
            ReachMethod::Process { access, .. } => {
                let place = access.place().await?;
                Ok(MachineFiles::new(place.root()).logs(pod)?.map(ComponentLogs::here).transpose()?)
            }
            ReachMethod::Agent(agent) => ComponentLogs::through(&agent.0, pod).await,
            ReachMethod::Helper(helper) => ComponentLogs::by_helper(helper, pod).await,
        }
    }

    /// The containers of all components that the runtime knows, looked at closely.
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

    /// Runs a command to its end, and returns its exit code.
    pub async fn exec<I, O, E>(&self, asked: ContainerCommand, streams: ExecStreams<I, O, E>) -> Result<i32, ReachError>
    where
        I: AsyncRead + Unpin,
        O: AsyncWrite + Unpin,
        E: AsyncWrite + Unpin,
    {
        let container = self.running(&asked).await?;
        if matches!(self.by, ReachMethod::Helper(_)) && !asked.stdin && !asked.terminal {
            return bare::exec(&self.runtime, &container, &asked.command, streams).await;
        }
        let prepared = self.runtime.exec(&container, &asked.command, (asked.stdin, asked.terminal)).await?;
        let connection = match &self.by {
            ReachMethod::Process { access, .. } => access.dial(prepared.address()?, DIAL).await?.into(),
            // It relays the runtime's streams on its own port.
            ReachMethod::Agent(agent) => MachineConnection::new(agent.1.stream().await.map_err(ReachError::Connect)?),
            ReachMethod::Helper(_) => bare::dial(prepared.address()?, DIAL).await?,
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
