//! [`MachineState`] and its parts.

use std::collections::BTreeMap;

use keelway_api::{
    Time,
    hypervisor::Applied,
    machine::{
        AgentIdentity, Amount, CgroupDriver, ContainerPhase, ContainerState, DataState, Disk, Figures, FileState,
        FormatRange, MachineState, PortFacts, RuntimeFacts, SandboxState, ServerAdmin, ServerState, SystemFacts,
    },
    name::PodName,
};

use super::{WireError, all, pod_name};
use crate::proto;

impl From<&MachineState> for proto::MachineState {
    fn from(state: &MachineState) -> Self {
        Self {
            runtime: Some((&state.runtime).into()),
            owner: state.owner.as_ref().map(ToString::to_string),
            applied: state.applied.as_ref().map(Into::into),
            sandboxes: state.sandboxes.iter().map(Into::into).collect(),
            containers: state.containers.iter().map(Into::into).collect(),
            files: state.files.iter().map(|(path, file)| (path.clone(), file.into())).collect(),
            images: state.images.iter().cloned().collect(),
            ports: Some((&state.ports).into()),
            addresses: state.addresses.iter().map(ToString::to_string).collect(),
            haproxies: state
                .servers
                .iter()
                .map(|(pod, servers)| proto::HaproxyState {
                    pod: Some(pod.into()),
                    servers: servers.iter().map(|(name, server)| (name.clone(), server.into())).collect(),
                })
                .collect(),
            data: state.data.iter().map(|(path, data)| (path.clone(), (*data).into())).collect(),
            capacity: state.capacity.map(Into::into),
            kubelet_pods: state.kubelet_pods as u64,
            disk_pressure: state.disk_pressure,
            healthy: state.healthy.iter().cloned().collect(),
            failures: state.failures.clone(),
            identity: state.identity.as_ref().map(Into::into),
            disk: state.disk.map(Into::into),
            system: state.system.as_ref().map(Into::into),
            term: state.term,
            figures: state.figures.iter().map(component_figures).collect(),
            agent_id: state.agent_id.clone(),
            formats: Some(state.formats.into()),
            restores: state.restores,
            prefetches: state.prefetches,
        }
    }
}

impl TryFrom<proto::MachineState> for MachineState {
    type Error = WireError;

    fn try_from(state: proto::MachineState) -> Result<Self, WireError> {
        Ok(Self {
            runtime: state.runtime.ok_or(WireError::Missing("the runtime"))?.try_into()?,
            owner: state.owner.map(|owner| owner.parse()).transpose()?,
            applied: state.applied.map(Into::into),
            sandboxes: all(state.sandboxes)?,
            containers: all(state.containers)?,
            files: state.files.into_iter().map(|(path, file)| (path, file.into())).collect(),
            images: state.images.into_iter().collect(),
            ports: state.ports.unwrap_or_default().try_into()?,
            // One that is not valid counts as absent.
            addresses: state.addresses.iter().filter_map(|address| address.parse().ok()).collect(),
            servers: state.haproxies.into_iter().map(servers).collect::<Result<_, _>>()?,
            data: state.data.into_iter().map(|(path, data)| (path, data.into())).collect(),
            capacity: state.capacity.map(Into::into),
            kubelet_pods: usize::try_from(state.kubelet_pods).map_err(|_| WireError::Range("the pods of a kubelet"))?,
            disk_pressure: state.disk_pressure,
            healthy: state.healthy.into_iter().collect(),
            failures: state.failures,
            identity: state.identity.map(TryInto::try_into).transpose()?,
            disk: state.disk.map(Into::into),
            system: state.system.map(Into::into),
            term: state.term,
            figures: state.figures.into_iter().map(figures).collect::<Result<_, _>>()?,
            agent_id: state.agent_id,
            formats: state.formats.map(Into::into).unwrap_or_default(),
            restores: state.restores,
            prefetches: state.prefetches,
        })
    }
}

impl From<FormatRange> for proto::FormatRange {
    fn from(FormatRange { first, last }: FormatRange) -> Self {
        Self { first, last }
    }
}

impl From<proto::FormatRange> for FormatRange {
    fn from(proto::FormatRange { first, last }: proto::FormatRange) -> Self {
        Self { first, last }
    }
}

fn component_figures((pod, figures): (&PodName, &Figures)) -> proto::ComponentFigures {
    let Figures { database_bytes, peers, no_space } = *figures;
    proto::ComponentFigures { pod: Some(pod.into()), database_bytes, peers, no_space }
}

fn figures(figures: proto::ComponentFigures) -> Result<(PodName, Figures), WireError> {
    let proto::ComponentFigures { pod, database_bytes, peers, no_space } = figures;
    Ok((pod_name(pod)?, Figures { database_bytes, peers, no_space }))
}

impl From<&AgentIdentity> for proto::AgentIdentity {
    fn from(identity: &AgentIdentity) -> Self {
        Self {
            serial: identity.serial.clone(),
            renew_at: identity.renew_at.0.to_string(),
            not_after: identity.not_after.0.to_string(),
            trusts: identity.trusts.clone(),
        }
    }
}

impl TryFrom<proto::AgentIdentity> for AgentIdentity {
    type Error = WireError;

    fn try_from(identity: proto::AgentIdentity) -> Result<Self, WireError> {
        let proto::AgentIdentity { serial, renew_at, not_after, trusts } = identity;
        let time = |text: &str| text.parse().map(Time).map_err(|_| WireError::Range("a time"));
        Ok(Self { serial, renew_at: time(&renew_at)?, not_after: time(&not_after)?, trusts })
    }
}

fn servers(haproxy: proto::HaproxyState) -> Result<(PodName, BTreeMap<String, ServerState>), WireError> {
    let servers = haproxy.servers.into_iter().map(|(name, server)| Ok((name, server.try_into()?)));
    Ok((pod_name(haproxy.pod)?, servers.collect::<Result<_, WireError>>()?))
}

impl From<&ServerState> for proto::ServerState {
    fn from(server: &ServerState) -> Self {
        let admin = match server.admin {
            ServerAdmin::Serves => proto::ServerAdmin::Serves,
            ServerAdmin::Drains => proto::ServerAdmin::Drains,
            ServerAdmin::Maintenance => proto::ServerAdmin::Maintenance,
        };
        Self {
            address: server.address.to_string(),
            admin: admin.into(),
            sessions: server.sessions,
            ready: server.ready,
        }
    }
}

impl TryFrom<proto::ServerState> for ServerState {
    type Error = WireError;

    fn try_from(server: proto::ServerState) -> Result<Self, WireError> {
        let admin = match server.admin() {
            proto::ServerAdmin::Serves => ServerAdmin::Serves,
            proto::ServerAdmin::Drains => ServerAdmin::Drains,
            proto::ServerAdmin::Maintenance => ServerAdmin::Maintenance,
            proto::ServerAdmin::Unspecified => return Err(WireError::Missing("the administrative state of a server")),
        };
        Ok(Self { address: server.address.parse()?, admin, sessions: server.sessions, ready: server.ready })
    }
}

impl From<&RuntimeFacts> for proto::RuntimeFacts {
    fn from(facts: &RuntimeFacts) -> Self {
        let driver = match facts.cgroup_driver {
            CgroupDriver::Cgroupfs => proto::CgroupDriver::Cgroupfs,
            CgroupDriver::Systemd => proto::CgroupDriver::Systemd,
        };
        Self { name: facts.name.clone(), version: facts.version.clone(), cgroup_driver: driver.into() }
    }
}

impl TryFrom<proto::RuntimeFacts> for RuntimeFacts {
    type Error = WireError;

    fn try_from(facts: proto::RuntimeFacts) -> Result<Self, WireError> {
        let cgroup_driver = match facts.cgroup_driver() {
            proto::CgroupDriver::Cgroupfs => CgroupDriver::Cgroupfs,
            proto::CgroupDriver::Systemd => CgroupDriver::Systemd,
            proto::CgroupDriver::Unspecified => return Err(WireError::Missing("the cgroup driver")),
        };
        Ok(Self { name: facts.name, version: facts.version, cgroup_driver })
    }
}

impl From<&Applied> for proto::Applied {
    fn from(applied: &Applied) -> Self {
        Self { term: applied.term, generation: applied.generation, digest: applied.digest.clone() }
    }
}

impl From<proto::Applied> for Applied {
    fn from(applied: proto::Applied) -> Self {
        Self { term: applied.term, generation: applied.generation, digest: applied.digest }
    }
}

impl From<&SandboxState> for proto::SandboxState {
    fn from(sandbox: &SandboxState) -> Self {
        Self {
            id: sandbox.id.clone(),
            pod: Some((&sandbox.pod).into()),
            attempt: sandbox.attempt,
            digest: sandbox.digest.clone(),
            ready: sandbox.ready,
        }
    }
}

impl TryFrom<proto::SandboxState> for SandboxState {
    type Error = WireError;

    fn try_from(sandbox: proto::SandboxState) -> Result<Self, WireError> {
        Ok(Self {
            id: sandbox.id,
            pod: pod_name(sandbox.pod)?,
            attempt: sandbox.attempt,
            digest: sandbox.digest,
            ready: sandbox.ready,
        })
    }
}

impl From<&ContainerState> for proto::ContainerState {
    fn from(container: &ContainerState) -> Self {
        let (phase, exit_code) = match container.phase {
            ContainerPhase::Created => (proto::ContainerPhase::Created, 0),
            ContainerPhase::Running => (proto::ContainerPhase::Running, 0),
            ContainerPhase::Exited { code } => (proto::ContainerPhase::Exited, code),
            ContainerPhase::Unknown => (proto::ContainerPhase::Unknown, 0),
        };
        Self {
            id: container.id.clone(),
            sandbox: container.sandbox.clone(),
            name: container.name.clone(),
            attempt: container.attempt,
            phase: phase.into(),
            exit_code,
            stop_seconds: container.stop_seconds,
        }
    }
}

impl TryFrom<proto::ContainerState> for ContainerState {
    type Error = WireError;

    fn try_from(container: proto::ContainerState) -> Result<Self, WireError> {
        let phase = match container.phase() {
            proto::ContainerPhase::Created => ContainerPhase::Created,
            proto::ContainerPhase::Running => ContainerPhase::Running,
            proto::ContainerPhase::Exited => ContainerPhase::Exited { code: container.exit_code },
            proto::ContainerPhase::Unknown => ContainerPhase::Unknown,
            proto::ContainerPhase::Unspecified => return Err(WireError::Missing("a container's phase")),
        };
        Ok(Self {
            id: container.id,
            sandbox: container.sandbox,
            name: container.name,
            attempt: container.attempt,
            phase,
            stop_seconds: container.stop_seconds,
        })
    }
}

impl From<&FileState> for proto::FileState {
    fn from(file: &FileState) -> Self {
        Self { user: file.user, group: file.group, mode: file.mode, sha256: file.sha256.clone() }
    }
}

impl From<proto::FileState> for FileState {
    fn from(file: proto::FileState) -> Self {
        Self { user: file.user, group: file.group, mode: file.mode, sha256: file.sha256 }
    }
}

impl From<DataState> for proto::DataState {
    fn from(data: DataState) -> Self {
        Self { marked: data.marked, used: data.used }
    }
}

impl From<proto::DataState> for DataState {
    fn from(data: proto::DataState) -> Self {
        Self { marked: data.marked, used: data.used }
    }
}

impl From<Amount> for proto::Amount {
    fn from(amount: Amount) -> Self {
        Self { cpu_millis: amount.cpu_millis, memory_bytes: amount.memory_bytes }
    }
}

impl From<proto::Amount> for Amount {
    fn from(amount: proto::Amount) -> Self {
        Self { cpu_millis: amount.cpu_millis, memory_bytes: amount.memory_bytes }
    }
}

impl From<Disk> for proto::Disk {
    fn from(disk: Disk) -> Self {
        Self { capacity_bytes: disk.capacity_bytes, available_bytes: disk.available_bytes }
    }
}

impl From<proto::Disk> for Disk {
    fn from(disk: proto::Disk) -> Self {
        Self { capacity_bytes: disk.capacity_bytes, available_bytes: disk.available_bytes }
    }
}

impl From<&SystemFacts> for proto::SystemFacts {
    fn from(system: &SystemFacts) -> Self {
        let SystemFacts { kernel_version, os_image, architecture, agent_version } = system.clone();
        Self { kernel_version, os_image, architecture, agent_version }
    }
}

impl From<proto::SystemFacts> for SystemFacts {
    fn from(system: proto::SystemFacts) -> Self {
        let proto::SystemFacts { kernel_version, os_image, architecture, agent_version } = system;
        Self { kernel_version, os_image, architecture, agent_version }
    }
}

impl From<&PortFacts> for proto::PortFacts {
    fn from(ports: &PortFacts) -> Self {
        let range = ports.ephemeral.map(|(from, to)| proto::PortRange { from: from.into(), to: to.into() });
        Self {
            ephemeral: range,
            unprivileged_from: ports.unprivileged_from.map(u32::from),
            listening: ports.listening.iter().map(|port| u32::from(*port)).collect(),
        }
    }
}

impl TryFrom<proto::PortFacts> for PortFacts {
    type Error = WireError;

    fn try_from(ports: proto::PortFacts) -> Result<Self, WireError> {
        let port = |number: u32| u16::try_from(number).map_err(|_| WireError::Range("a port"));
        let ephemeral = ports.ephemeral.map(|range| Ok::<_, WireError>((port(range.from)?, port(range.to)?)));
        Ok(Self {
            ephemeral: ephemeral.transpose()?,
            unprivileged_from: ports.unprivileged_from.map(port).transpose()?,
            listening: ports.listening.into_iter().map(port).collect::<Result<_, _>>()?,
        })
    }
}
