//! Runs a machine's agent with the arguments of the shipped unit.

use std::path::{Path, PathBuf};

use crate::{
    FleetProgress, FleetStep, Launcher, LocalHypervisorError,
    create::blocking,
    enroll,
    fleet::FleetMachine,
    launch::Launch,
    network::FleetNetwork,
    processes::{self, AGENT_GROUP},
    service::{MachineService, answers},
};

/// The unit of the agent, as users install it. Local agents get the same arguments.
const UNIT: &str = include_str!("../../../manifests/keelway-hypervisor-agent.service");

/// The program of agents, and the images that replace a registry.
#[derive(Debug, Clone)]
pub struct AgentProgram {
    /// The absolute path of `keelway-hypervisor-agent`.
    pub program: PathBuf,
    /// A directory of image archives.
    pub archives: PathBuf,
}

impl AgentProgram {
    /// Checks that the program exists, before anything else is done.
    pub(crate) fn require(&self) -> Result<(), LocalHypervisorError> {
        if self.program.is_file() { Ok(()) } else { Err(LocalHypervisorError::NoAgent { path: self.program.clone() }) }
    }

    /// Returns the directories of the host that the agent needs in the machine.
    pub(crate) fn directories(&self) -> Vec<PathBuf> {
        let program = self.program.parent().unwrap_or(Path::new("/"));
        [program, &self.archives].into_iter().filter(|path| path.is_dir()).map(Path::to_owned).collect()
    }

    /// Returns the unit's arguments, and those of a machine without a registry. With `port`, the agent also listens on a network.
    fn arguments(&self, port: Vec<String>) -> Vec<String> {
        let setting = |name: &str| UNIT.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
        let given = setting("Environment=\"ARGUMENTS=").trim_end_matches('"');
        let line = setting("ExecStart=").replace("$ARGUMENTS", given);
        let shipped = line.split_ascii_whitespace().skip(1).map(str::to_owned);
        shipped.chain([format!("--image-archives={}", self.archives.display())]).chain(port).collect()
    }
}

/// Starts a machine's agent beside its containerd, unless the agent runs and responds.
pub(crate) async fn ensure_running(
    machine: &FleetMachine,
    (network, agent): (FleetNetwork, &AgentProgram),
    launcher: &Launcher,
    progress: FleetProgress<'_>,
) -> Result<(), LocalHypervisorError> {
    if answers(&machine.agent_socket()).await {
        return Ok(());
    }
    let hung = machine.clone();
    blocking(move || processes::end_agent(&hung)).await?;
    progress(&FleetStep::StartAgent { machine: machine.name() });
    let service = MachineService {
        machine,
        program: "keelway-hypervisor-agent",
        notify: "notify-agent",
        launch: machine.agent_launch(),
        log: machine.agent_log(),
    };
    let launch = Launch {
        host_name: machine.name(),
        network: machine.namespace(),
        cgroup: machine.cgroup(),
        group: AGENT_GROUP.to_owned(),
        beside: processes::any_inside(machine)?,
        binds: Vec::new(),
        overlays: Vec::new(),
        user: network.agents_user(machine),
        program: agent.program.clone(),
        arguments: agent.arguments(enroll::arguments(machine)?),
        environment: vec![service.notify_socket()],
    };
    service.start(&launch, launcher).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{AGENT_SOCKET, SOCKET};

    #[test]
    fn the_unit_names_the_expected_sockets() {
        let agent = AgentProgram { program: "/usr/bin/agent".into(), archives: "/images".into() };
        assert_eq!(
            agent.arguments(Vec::new()),
            [
                "run".to_owned(),
                format!("--runtime-endpoint=unix:///run/{SOCKET}"),
                format!("--listen=unix:///run/{AGENT_SOCKET}"),
                "--image-archives=/images".to_owned(),
            ]
        );
    }
}
