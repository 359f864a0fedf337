//! The agent that Keelway starts as a container on a machine whose container runtime is behind a proxy.
//!
//! The agent's key is created in the container. The driver gets a signing request, and installs the certificate, by commands in the container.
//! The proxy's TLS therefore vouches for the agent, and nothing that the runtime can see is secret.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    path::Path,
    time::Duration,
};

use keelway_agent_api::enrollment::GrantedIdentity;
use keelway_api::{
    Hypervisor,
    machine::{
        AGENT_LABEL, DIGEST_ANNOTATION, HELPER_LABEL, INSTALLATION_LABEL, MachineConfig, STATE_DIRECTORY, sha256_hex,
    },
    name::InstallationId,
    release,
};
use keelway_cri::{
    self as cri, ContainerSpec, CriCgroupDriver, CriContainer, CriContainerState, CriMount, CriRuntime, CriSandbox,
    SandboxSpec,
};
use keelway_machine::layout::{LOG_DIRECTORY, agent_directory, agent_log_directory};
use keelway_machine_io::{execute::EffectError, image};

use super::{AgentRouteError, MachineCredentials};
use crate::AgentCertification;

const NAME: &str = "hypervisor-agent";
/// The path of the program in the image.
const PROGRAM: &str = "/keelway-hypervisor-agent";
/// The name of the container that creates or removes the mounted directories.
const DIRECTORIES: &str = "directories";
/// The agent creates files and changes their owners. It needs no other capability of root.
const CAPABILITIES: [&str; 3] = ["CHOWN", "DAC_OVERRIDE", "FOWNER"];
const CGROUPS: &str = "/sys/fs/cgroup";
/// The agent's log, in its log directory.
const LOG: &str = "agent.log";
/// How long a command in the container may take.
const DEADLINE: Duration = Duration::from_secs(30);
/// The longest argument of a program, with room for the NUL at its end (`MAX_ARG_STRLEN` of Linux: 128 KiB).
const LONGEST_ARGUMENT: usize = 120 << 10;

/// The agent was not started or stopped.
#[derive(Debug, thiserror::Error)]
pub(super) enum StartAgentError {
    #[error(transparent)]
    Route(#[from] AgentRouteError),
    #[error("cannot start the agent through the machine's proxy")]
    Runtime(#[from] cri::CriError),
    #[error("cannot fetch the image of the agent")]
    Image(#[source] Box<EffectError>),
    #[error(
        "the machine runs the agent of installation {0}: delete its Hypervisor there, or run `keelway hypervisor adopt --from {0}`"
    )]
    Taken(String),
    #[error("the agent exited with code {code}; its log on the machine is {log}")]
    Exited { code: i32, log: String },
    #[error("a command in the agent's container exited with code {code}: {text}")]
    Command { code: i32, text: String },
    #[error("cannot issue a certificate for the agent: {0}")]
    Grant(String),
}

/// The agent of one machine, with the way to the machine's runtime.
pub(super) struct StartedAgent {
    runtime: CriRuntime,
    installation: InstallationId,
    machine: String,
    listen: SocketAddr,
    runtime_socket: String,
}

impl StartedAgent {
    /// Returns the agent of a machine behind a proxy. Does not connect.
    pub(super) fn of(credentials: &MachineCredentials, machine: &Hypervisor) -> Result<Self, AgentRouteError> {
        let (runtime, installation) = credentials.runtime(machine)?;
        let cri = machine.spec.endpoint.cri().ok_or(AgentRouteError::Nowhere)?;
        let (_, listen) = machine.started_agent().ok_or(AgentRouteError::Nowhere)?;
        let name = machine.metadata.name.clone().ok_or(AgentRouteError::Nowhere)?;
        Ok(Self { runtime, installation, machine: name, listen, runtime_socket: cri.runtime_socket.clone() })
    }

    /// Returns whether the agent runs as these documents require.
    pub(super) async fn is_running(&self) -> Result<bool, cri::CriError> {
        Ok(self.running().await?.is_some())
    }

    /// Starts the agent unless it runs, and issues its certificate unless it has a valid one. Replaces the running agent of the installation
    /// that the order names, and no other. Returns whether anything was done.
    pub(super) async fn start(
        &self,
        archives: &Path,
        certifying: &AgentCertification<'_>,
    ) -> Result<bool, StartAgentError> {
        let running = self.running().await?;
        let started = running.is_none();
        let container = if let Some(running) = running {
            running.id
        } else {
            self.remove(certifying.replaces()).await?;
            self.create(archives).await?
        };
        match self.certify(&container, certifying).await {
            Ok(granted) => Ok(started || granted),
            Err(error) => Err(match self.runtime.container_status(&container).await?.exit {
                Some(exit) => StartAgentError::Exited {
                    code: exit.code,
                    log: format!("{}/{LOG}", agent_log_directory(&self.installation)),
                },
                None => error,
            }),
        }
    }

    /// Removes the agent with its identity and logs, and Keelway's directories if they are empty.
    pub(super) async fn stop(&self, archives: &Path) -> Result<(), StartAgentError> {
        self.remove(None).await?;
        self.fetch(archives).await?;
        let (sandbox, id) = self.run_sandbox().await?;
        self.directories((&id, &sandbox), "remove").await?;
        Ok(self.remove_pod(&id).await?)
    }

    /// Copies the images that a config names from the directory of archives, if they are there and the machine lacks them. The agent pulls all
    /// others.
    pub(super) async fn send_images(&self, archives: &Path, config: &MachineConfig) -> Result<(), EffectError> {
        let containers = config.pods.values().flat_map(|pod| pod.containers.iter().map(|container| &container.image));
        let images =
            containers.chain(config.pods.values().flat_map(|pod| pod.prefetch.iter().chain([&pod.pause_image])));
        let images: BTreeSet<&String> = images.collect();
        for image in images {
            image::import(&self.runtime, archives, image).await?;
        }
        Ok(())
    }

    /// Returns the pods of agents, of this installation and of others, and of helpers, which earlier releases used instead.
    async fn pods(&self) -> Result<Vec<CriSandbox>, cri::CriError> {
        let mut pods = self.runtime.list_pod_sandboxes(&BTreeMap::new()).await?;
        pods.retain(|pod| pod.labels.contains_key(AGENT_LABEL) || pod.labels.contains_key(HELPER_LABEL));
        Ok(pods)
    }

    async fn running(&self) -> Result<Option<CriContainer>, cri::CriError> {
        let (image, digest) = (release::hypervisor_agent_image(None), self.digest());
        let containers = self.runtime.list_containers(&self.labels()).await?;
        Ok(containers.into_iter().find(|container| {
            container.state == CriContainerState::Running
                && container.name == NAME
                && container.image == image
                && container.annotations.get(DIGEST_ANNOTATION) == Some(&digest)
        }))
    }

    /// Removes pods of this installation, and of the one that it replaces.
    async fn remove(&self, replaced: Option<&InstallationId>) -> Result<(), StartAgentError> {
        let own = [Some(&self.installation), replaced];
        for pod in self.pods().await? {
            let of = pod.labels.get(INSTALLATION_LABEL).cloned().unwrap_or_default();
            if own.into_iter().flatten().any(|own| own.as_str() == of) {
                self.remove_pod(&pod.id).await?;
            } else {
                return Err(StartAgentError::Taken(of));
            }
        }
        Ok(())
    }

    async fn remove_pod(&self, id: &str) -> Result<(), cri::CriError> {
        self.runtime.stop_pod_sandbox(id).await?;
        self.runtime.remove_pod_sandbox(id).await
    }

    async fn fetch(&self, archives: &Path) -> Result<(), StartAgentError> {
        for image in [release::newest().pause_image(None), release::hypervisor_agent_image(None)] {
            let ensured = image::ensure(&self.runtime, archives, &image).await;
            ensured.map_err(|error| StartAgentError::Image(Box::new(error)))?;
        }
        Ok(())
    }

    async fn create(&self, archives: &Path) -> Result<String, StartAgentError> {
        self.fetch(archives).await?;
        let (sandbox, id) = self.run_sandbox().await?;
        self.directories((&id, &sandbox), "make").await?;
        let socket_directory = self.runtime_socket.rsplit_once('/').map_or("/", |(directory, _)| directory);
        let own = [agent_directory(&self.installation), agent_log_directory(&self.installation)];
        let shared = [STATE_DIRECTORY, LOG_DIRECTORY, CGROUPS, socket_directory].map(str::to_owned);
        let mounts = own.into_iter().chain(shared).map(mounted).collect();
        let spec = ContainerSpec {
            command: self.command(),
            log_path: LOG.to_owned(),
            annotations: BTreeMap::from([(DIGEST_ANNOTATION.to_owned(), self.digest())]),
            ..self.container(NAME, mounts)
        };
        Ok(self.run_container((&id, &sandbox), &spec).await?)
    }

    async fn run_sandbox(&self) -> Result<(SandboxSpec, String), cri::CriError> {
        // Runtimes never remove the parent cgroups that they create, and nothing would be left that could: so the pod has no parent. With the
        // driver systemd, a parent must be a slice.
        let cgroup_parent = match self.runtime.status().await?.cgroup_driver {
            CriCgroupDriver::Cgroupfs => "/".to_owned(),
            CriCgroupDriver::Systemd => "keelway-agent.slice".to_owned(),
        };
        let sandbox = SandboxSpec {
            name: NAME.to_owned(),
            namespace: self.installation.namespace(),
            uid: format!("{}-{}", self.installation, self.machine),
            log_directory: agent_log_directory(&self.installation),
            cgroup_parent,
            labels: self.labels(),
            ..SandboxSpec::default()
        };
        let id = self.runtime.run_pod_sandbox(&sandbox).await?;
        Ok((sandbox, id))
    }

    /// Creates or removes the mounted directories, from a container that has their parents mounted. Removes that container afterwards.
    async fn directories(&self, (id, sandbox): (&str, &SandboxSpec), what: &str) -> Result<(), StartAgentError> {
        let spec = self.container(DIRECTORIES, ["/var/lib", "/var/log"].map(|path| mounted(path.to_owned())).to_vec());
        let spec = ContainerSpec { command: [PROGRAM, "directories", "wait"].map(str::to_owned).to_vec(), ..spec };
        let container = self.run_container((id, sandbox), &spec).await?;
        let done = self.exec(&container, &["directories", what, self.installation.as_str()]).await;
        self.runtime.remove_container(&container).await?;
        done.map(drop)
    }

    async fn run_container(
        &self,
        (id, sandbox): (&str, &SandboxSpec),
        spec: &ContainerSpec,
    ) -> Result<String, cri::CriError> {
        let container = self.runtime.create_container(id, sandbox, spec).await?;
        self.runtime.start_container(&container).await?;
        Ok(container)
    }

    /// Issues the agent's certificate unless it has a valid one. Returns whether one was issued.
    async fn certify(&self, container: &str, certifying: &AgentCertification<'_>) -> Result<bool, StartAgentError> {
        let (socket, directory) = (self.socket(), agent_directory(&self.installation));
        let agent = ["--listen", &socket, "--identity-directory", &directory];
        let request = self.exec(container, &[&["certificate", "request"], &agent[..]].concat()).await?;
        let request = String::from_utf8_lossy(&request);
        if request.is_empty() {
            return Ok(false);
        }
        let GrantedIdentity { certificate, trust } = certifying.grant(&request).map_err(StartAgentError::Grant)?;
        let mut install = vec![
            "certificate".to_owned(),
            "install".to_owned(),
            format!("--certificate={certificate}"),
            format!("--authorities={}", trust.authorities),
        ];
        // In PEM, each byte is a character.
        let revoked = trust.revoked.as_bytes().chunks(LONGEST_ARGUMENT).map(String::from_utf8_lossy);
        install.extend(revoked.map(|piece| format!("--revoked={piece}")));
        let install: Vec<&str> = install.iter().map(String::as_str).chain(agent).collect();
        self.exec(container, &install).await?;
        Ok(true)
    }

    /// Runs a command of the agent's program in the container, and returns its output.
    async fn exec(&self, container: &str, words: &[&str]) -> Result<Vec<u8>, StartAgentError> {
        let command: Vec<String> = [PROGRAM].iter().chain(words).map(|word| (*word).to_owned()).collect();
        let output = self.runtime.exec_sync(container, &command, DEADLINE).await?;
        if output.exit_code != 0 {
            let text = String::from_utf8_lossy(&output.stderr).trim().chars().take(400).collect();
            return Err(StartAgentError::Command { code: output.exit_code, text });
        }
        Ok(output.stdout)
    }

    fn command(&self) -> Vec<String> {
        let listen = self.listen.to_string();
        let runtime = format!("unix://{}", self.runtime_socket);
        let (socket, directory) = (self.socket(), agent_directory(&self.installation));
        let flags = [
            ("--runtime-endpoint", &runtime),
            ("--listen", &socket),
            ("--listen", &listen),
            ("--identity-directory", &directory),
        ];
        let flags = flags.into_iter().flat_map(|(flag, value)| [flag.to_owned(), value.clone()]);
        [PROGRAM, "run", "--await-certificate"].map(str::to_owned).into_iter().chain(flags).collect()
    }

    fn digest(&self) -> String {
        sha256_hex(self.command().join("\n").as_bytes())
    }

    /// The agent's own socket: the driver's commands in the container use it.
    fn socket(&self) -> String {
        format!("unix://{}/agent.sock", agent_directory(&self.installation))
    }

    /// Without the label of a cluster: the agent is no component, and outlives all of them.
    fn labels(&self) -> BTreeMap<String, String> {
        BTreeMap::from([
            (INSTALLATION_LABEL.to_owned(), self.installation.to_string()),
            (AGENT_LABEL.to_owned(), self.machine.clone()),
        ])
    }

    fn container(&self, name: &str, mounts: Vec<CriMount>) -> ContainerSpec {
        ContainerSpec {
            name: name.to_owned(),
            image: release::hypervisor_agent_image(None),
            mounts,
            capabilities: CAPABILITIES.map(str::to_owned).to_vec(),
            labels: self.labels(),
            ..ContainerSpec::default()
        }
    }
}

/// Mounts a directory of the machine under its own path.
fn mounted(path: String) -> CriMount {
    CriMount { host_path: path.clone(), container_path: path, read_only: false }
}
