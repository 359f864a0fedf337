//! A machine's agent, run as the shipped unit says.

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

/// The unit that machines of users run. Local ones are no different.
const UNIT: &str = include_str!("../../manifests/keelway-hypervisor-agent.service");

/// The program of agents, and the images that they have instead of a registry.
#[derive(Debug, Clone)]
pub struct AgentProgram {
    /// `keelway-hypervisor-agent`, by its absolute path.
    pub program: PathBuf,
    /// A directory of image archives.
    pub archives: PathBuf,
}

impl AgentProgram {
    /// Before anything is done for it.
    pub(crate) fn require(&self) -> Result<(), LocalHypervisorError> {
        if self.program.is_file() { Ok(()) } else { Err(LocalHypervisorError::NoAgent { path: self.program.clone() }) }
    }

    /// The directories of the host that a machine has to see for it.
    pub(crate) fn directories(&self) -> Vec<PathBuf> {
        let program = self.program.parent().unwrap_or(Path::new("/"));
        [program, &self.archives].into_iter().filter(|path| path.is_dir()).map(Path::to_owned).collect()
    }

    /// The arguments of the unit's program, and those of a machine without a registry, which listens on a network where `port` says so.
    fn arguments(&self, port: Vec<String>) -> Vec<String> {
        let setting = |name: &str| UNIT.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
        let given = setting("Environment=\"ARGUMENTS=").trim_end_matches('"');
        let line = setting("ExecStart=").replace("$ARGUMENTS", given);
        let shipped = line.split_ascii_whitespace().skip(1).map(str::to_owned);
        shipped.chain([format!("--image-archives={}", self.archives.display())]).chain(port).collect()
    }
}

/// Starts a machine's agent unless it runs and answers, beside its containerd.
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
    fn the_unit_names_the_sockets_that_are_looked_for() {
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
