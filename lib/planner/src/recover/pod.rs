//! Rebuilds the document of a component from its pod: the inverse of [`crate::pod`].

use alloc::{
    collections::BTreeMap,
    format,
    string::{String, ToString},
    vec::Vec,
};
use core::net::SocketAddr;

use keelway_api::{
    Cluster, Newer,
    component::ComponentSpec,
    image_override::tag_of,
    machine::{Container, ContainerCheck, Pod, PodFile},
    name::{ComponentName, HypervisorName, PodName},
    release::{MINORS, MinorRelease, Release, find},
    role::{API, CLIENT, CONNECT, EGRESS, HEALTH, PEER, Role, SECURE},
};
use serde_json::Value;

use super::UnclearReason;

/// The spec of a component, or why it cannot be derived from its pod.
pub(super) fn component_spec(
    cluster: &Cluster,
    (machine, name, pod): (&HypervisorName, &PodName, &Pod),
) -> Result<ComponentSpec, UnclearReason> {
    let (role, index) = role_of(&name.component).ok_or(UnclearReason::UnknownName)?;
    let parts = RecoveredPod::of(role, pod)?;
    Ok(ComponentSpec {
        cluster: cluster.reference(),
        cluster_id: name.cluster.clone(),
        role,
        index,
        version: parts.release(cluster)?.to_string(),
        hypervisor: machine.clone(),
        ports: parts.ports()?,
        user: pod.user,
        placement: format!("found on {machine} by keelway recover"),
        newer: Newer::default(),
    })
}

/// The role and the number in the name of a component.
pub(crate) fn role_of(name: &ComponentName) -> Option<(Role, u32)> {
    Role::ALL.into_iter().find_map(|role| {
        let index = name.as_str().strip_prefix(role.row().name)?.strip_prefix('-')?.parse().ok()?;
        (role.component(index).as_ref() == Ok(name)).then_some((role, index))
    })
}

/// The value of `--name=value` in a command.
pub(super) fn flag<'a>(command: &'a [String], name: &str) -> Option<&'a str> {
    command.iter().find_map(|argument| argument.strip_prefix("--")?.strip_prefix(name)?.strip_prefix('='))
}

pub(super) fn file<'a>(pod: &'a Pod, path: &str) -> Option<&'a PodFile> {
    pod.files.iter().find(|file| file.path == path)
}

/// The command of the pod's main container.
pub(super) fn command(pod: &Pod) -> &[String] {
    pod.containers.last().map(|container| container.command.as_slice()).unwrap_or_default()
}

struct RecoveredPod<'a> {
    role: Role,
    pod: &'a Pod,
    /// The container of the component itself.
    main: &'a Container,
}

impl<'a> RecoveredPod<'a> {
    fn of(role: Role, pod: &'a Pod) -> Result<Self, UnclearReason> {
        let main = pod.containers.last().filter(|main| main.name == role.row().name);
        let main = main.ok_or(UnclearReason::OtherContainer(role))?;
        Ok(Self { role, pod, main })
    }

    fn release(&self, cluster: &Cluster) -> Result<Release, UnclearReason> {
        let own = tag_of(&self.main.image);
        let unknown = || UnclearReason::UnknownRelease { image: self.main.image.clone() };
        match self.role {
            Role::Etcd => release_of(cluster, |row| row.etcd == own).ok_or_else(unknown),
            Role::KubeApiserver | Role::KubeControllerManager | Role::KubeScheduler => {
                own.strip_prefix('v').and_then(find).ok_or_else(unknown)
            }
            Role::ClusterController => {
                let found = self.json("cluster-controller.json").and_then(|file| find(file["version"].as_str()?));
                found.ok_or(UnclearReason::NoVersion)
            }
            // Only the sandbox image distinguishes releases, and minor versions may share it.
            Role::FleetController | Role::Ingress | Role::Gateway => {
                let pause = tag_of(&self.pod.pause_image);
                release_of(cluster, |row| row.pause == pause).ok_or_else(unknown)
            }
        }
    }

    fn ports(&self) -> Result<BTreeMap<String, u16>, UnclearReason> {
        let row = self.role.row();
        let mut ports = BTreeMap::new();
        for name in row.ports {
            match self.port(name) {
                Some(port) => drop(ports.insert((*name).to_string(), port)),
                None if self.role.added_ports().contains(name) => {}
                None => return Err(UnclearReason::NoPort(name)),
            }
        }
        Ok(ports)
    }

    fn port(&self, name: &str) -> Option<u16> {
        match (self.role, name) {
            (Role::Etcd, CLIENT) => self.flag("listen-client-urls").and_then(port_of),
            (Role::Etcd, PEER) => self.flag("listen-peer-urls").and_then(port_of),
            (_, SECURE) => self.flag("secure-port")?.parse().ok(),
            (Role::KubeApiserver, EGRESS) => {
                checked(self.pod.containers.iter().find(|container| container.name == EGRESS)?)
            }
            (Role::ClusterController | Role::FleetController | Role::Gateway, HEALTH) => checked(self.main),
            (Role::Ingress, API) => self.text("haproxy.cfg")?.lines().find_map(|line| {
                // Options may follow the address.
                let bind: SocketAddr = line.trim().strip_prefix("bind ")?.split(' ').next()?.parse().ok()?;
                Some(bind.port())
            }),
            (Role::Gateway, CONNECT) => port_of(self.json("gateway.json")?["connect"]["listen"].get(0)?.as_str()?),
            _ => None,
        }
    }

    fn flag(&self, name: &str) -> Option<&'a str> {
        flag(&self.main.command, name)
    }

    fn text(&self, path: &str) -> Option<&'a str> {
        core::str::from_utf8(&file(self.pod, path)?.content).ok()
    }

    fn json(&self, path: &str) -> Option<Value> {
        serde_json::from_str(self.text(path)?).ok()
    }
}

/// The release of a pod that shows only what belongs to its minor version: the one of the cluster if that fits, or else the newest tested one.
fn release_of(cluster: &Cluster, fits: impl Fn(&MinorRelease) -> bool) -> Option<Release> {
    let wanted = find(&cluster.spec.version).filter(|wanted| fits(wanted.row));
    wanted.or_else(|| MINORS.iter().rfind(|row| fits(row)).map(MinorRelease::newest_tested))
}

/// The port on loopback of a container's liveness check.
fn checked(container: &Container) -> Option<u16> {
    match &container.liveness.as_ref()?.check {
        ContainerCheck::Http { address, .. } => Some(address.port()),
        ContainerCheck::Https { .. } | ContainerCheck::Socket { .. } => None,
    }
}

/// The port of `ADDRESS:PORT` or of a URL.
fn port_of(text: &str) -> Option<u16> {
    text.rsplit_once(':')?.1.parse().ok()
}

/// The fields in which two specs differ.
pub(super) fn differing(one: &ComponentSpec, other: &ComponentSpec) -> Vec<String> {
    let fields = [
        ("hypervisor", one.hypervisor != other.hypervisor),
        ("version", one.version != other.version),
        ("ports", one.ports != other.ports),
        ("user", one.user != other.user),
    ];
    fields.iter().filter(|(_, differs)| *differs).map(|(name, _)| (*name).to_string()).collect()
}
