//! [`MachineConfig`] and its parts.

use std::collections::BTreeMap;

use keelway_api::{
    machine::{
        CertificateFiles, ConfigFormat, Container, ContainerCheck, ContainerResources, DataRemoval, FormatRange,
        HaproxyServers, Liveness, MachineConfig, Mount, OnChange, Pod, PodDigests, PodFile, Start,
    },
    name::PodName,
    registry::RegistryCredentials,
};

use super::{WireError, all, pod_name};
use crate::proto::{self, liveness::Check as WireCheck};

/// A config with the digests that its driver computed for its pods.
pub struct RevisedConfig<'a> {
    /// The config.
    pub config: &'a MachineConfig,
    /// The digests of its pods.
    pub digests: &'a BTreeMap<PodName, PodDigests>,
}

impl From<RevisedConfig<'_>> for proto::MachineConfig {
    fn from(RevisedConfig { config, digests }: RevisedConfig<'_>) -> Self {
        let pods = config.pods.iter().map(|(name, pod)| proto::Pod {
            name: Some(name.into()),
            user: pod.user,
            files: pod.files.iter().map(Into::into).collect(),
            data: pod.data.clone(),
            containers: pod.containers.iter().map(Into::into).collect(),
            pause_image: pod.pause_image.clone(),
            servers: pod.servers.as_ref().map(Into::into),
            start: wire_start(pod.start).into(),
            hold: pod.hold,
            registries: pod.registries.iter().map(|(image, found)| (image.clone(), found.into())).collect(),
            copy: copy_of(pod.start),
            prefetch: pod.prefetch.iter().cloned().collect(),
            revision: String::new(),
            content: Vec::new(),
        });
        let of_format_1 = Self {
            installation: config.installation.to_string(),
            term: config.term,
            generation: config.generation,
            pods: pods.collect(),
            others: config.others.iter().map(ToString::to_string).collect(),
            removals: Vec::new(),
            format: 0,
            digest: String::new(),
        };
        match config.format {
            ConfigFormat::One => of_format_1,
            ConfigFormat::Two => Self {
                pods: config
                    .pods
                    .keys()
                    .zip(of_format_1.pods)
                    .map(|(name, pod)| revised(pod, digests.get(name)))
                    .collect(),
                removals: config.removals.iter().map(Into::into).collect(),
                format: config.format.number(),
                ..of_format_1
            },
        }
    }
}

fn revised(pod: proto::Pod, digests: Option<&PodDigests>) -> proto::Pod {
    let Some(PodDigests { replacement, content, files: _ }) = digests else { return pod };
    proto::Pod { revision: replacement.clone(), content: content.clone(), ..pod }
}

/// Returns the format of a config, before anything else of it is read.
fn format_of(config: &proto::MachineConfig) -> Result<ConfigFormat, WireError> {
    let number = config.format.max(ConfigFormat::One.number());
    ConfigFormat::of_number(number).ok_or(WireError::Format { format: number, known: FormatRange::OWN })
}

/// Decodes a config, with the digests that its driver computed for its pods. Configs of format 1 have no digests: these are computed here, as v0.1.0
/// did.
pub fn read(mut config: proto::MachineConfig) -> Result<(MachineConfig, BTreeMap<PodName, PodDigests>), WireError> {
    let format = format_of(&config)?;
    let take = |pod: &mut proto::Pod| (std::mem::take(&mut pod.revision), std::mem::take(&mut pod.content));
    let revisions: Vec<Result<_, WireError>> =
        config.pods.iter_mut().map(|pod| Ok((pod_name(pod.name.clone())?, take(pod)))).collect();
    let config = MachineConfig::try_from(config)?;
    if format == ConfigFormat::One {
        let digests = config.pod_digests();
        return Ok((config, digests));
    }
    let mut digests = BTreeMap::new();
    for revision in revisions {
        let (name, (replacement, content)) = revision?;
        if replacement.is_empty() || content.is_empty() {
            return Err(WireError::Missing("the revision of a pod"));
        }
        if let Some(pod) = config.pods.get(&name) {
            digests.insert(name, pod.with_revision(replacement, content));
        }
    }
    Ok((config, digests))
}

impl TryFrom<proto::MachineConfig> for MachineConfig {
    type Error = WireError;

    fn try_from(config: proto::MachineConfig) -> Result<Self, WireError> {
        let format = format_of(&config)?;
        let pods = config.pods.into_iter().map(|pod| {
            let start = start(pod.start(), pod.copy)?;
            let name = pod_name(pod.name)?;
            let files = all(pod.files)?;
            let containers = all(pod.containers)?;
            let servers = pod.servers.map(TryInto::try_into).transpose()?;
            let (user, data, pause_image, hold) = (pod.user, pod.data, pod.pause_image, pod.hold);
            let registries = pod.registries.into_iter().map(|(image, found)| (image, found.into())).collect();
            let prefetch = pod.prefetch.into_iter().collect();
            Ok((name, Pod { user, files, data, containers, pause_image, servers, start, hold, registries, prefetch }))
        });
        let removals = if format == ConfigFormat::One { Vec::new() } else { config.removals };
        Ok(Self {
            format,
            installation: config.installation.parse()?,
            term: config.term,
            generation: config.generation,
            pods: pods.collect::<Result<_, WireError>>()?,
            others: config.others.iter().map(|id| id.parse()).collect::<Result<_, _>>()?,
            removals: removals.into_iter().map(removal).collect::<Result<_, _>>()?,
        })
    }
}

impl From<(&PodName, &DataRemoval)> for proto::DataRemoval {
    fn from((pod, removal): (&PodName, &DataRemoval)) -> Self {
        Self { pod: Some(pod.into()), member: removal.member.clone(), reason: removal.reason.clone() }
    }
}

fn removal(removal: proto::DataRemoval) -> Result<(PodName, DataRemoval), WireError> {
    let proto::DataRemoval { pod, member, reason } = removal;
    Ok((pod_name(pod)?, DataRemoval { member, reason }))
}

impl From<&HaproxyServers> for proto::Servers {
    fn from(servers: &HaproxyServers) -> Self {
        let addresses = servers.addresses.iter().map(|(name, address)| (name.clone(), address.to_string()));
        Self { options: servers.options.clone(), addresses: addresses.collect() }
    }
}

impl TryFrom<proto::Servers> for HaproxyServers {
    type Error = WireError;

    fn try_from(servers: proto::Servers) -> Result<Self, WireError> {
        let addresses = servers.addresses.into_iter().map(|(name, address)| Ok((name, address.parse()?)));
        Ok(Self { options: servers.options, addresses: addresses.collect::<Result<_, WireError>>()? })
    }
}

fn wire_start(start: Start) -> proto::Start {
    match start {
        Start::Always => proto::Start::Always,
        Start::Never => proto::Start::Never,
        Start::Later => proto::Start::Later,
        Start::OnMarkedData => proto::Start::OnMarkedData,
        Start::OnUsedData => proto::Start::OnUsedData,
        Start::Stopped => proto::Start::Stopped,
        Start::Copied(_) => proto::Start::Copied,
    }
}

fn copy_of(start: Start) -> u32 {
    if let Start::Copied(copy) = start { copy } else { 0 }
}

fn start(start: proto::Start, copy: u32) -> Result<Start, WireError> {
    match start {
        proto::Start::Always => Ok(Start::Always),
        proto::Start::Never => Ok(Start::Never),
        proto::Start::Later => Ok(Start::Later),
        proto::Start::OnMarkedData => Ok(Start::OnMarkedData),
        proto::Start::OnUsedData => Ok(Start::OnUsedData),
        proto::Start::Stopped => Ok(Start::Stopped),
        proto::Start::Copied => Ok(Start::Copied(copy)),
        proto::Start::Unspecified => Err(WireError::Missing("the start condition of a pod")),
    }
}

impl From<&RegistryCredentials> for proto::RegistryCredentials {
    fn from(credentials: &RegistryCredentials) -> Self {
        Self { username: credentials.username.clone(), password: credentials.password.clone() }
    }
}

impl From<proto::RegistryCredentials> for RegistryCredentials {
    fn from(credentials: proto::RegistryCredentials) -> Self {
        Self { username: credentials.username, password: credentials.password }
    }
}

impl From<&PodFile> for proto::File {
    fn from(file: &PodFile) -> Self {
        let on_change = match file.on_change {
            OnChange::PickedUp => proto::OnChange::PickedUp,
            OnChange::Restart => proto::OnChange::Restart,
        };
        Self { path: file.path.clone(), content: file.content.clone(), on_change: on_change.into() }
    }
}

impl TryFrom<proto::File> for PodFile {
    type Error = WireError;

    fn try_from(file: proto::File) -> Result<Self, WireError> {
        let on_change = match file.on_change() {
            proto::OnChange::PickedUp => OnChange::PickedUp,
            proto::OnChange::Restart => OnChange::Restart,
            proto::OnChange::Unspecified => return Err(WireError::Missing("the action on a file's change")),
        };
        Ok(Self { path: file.path, content: file.content, on_change })
    }
}

impl From<&Container> for proto::Container {
    fn from(container: &Container) -> Self {
        let mounts = container.mounts.iter().map(|mount| proto::Mount {
            source: mount.source.clone(),
            target: mount.target.clone(),
            read_only: mount.read_only,
        });
        let resources = proto::Resources {
            cpu_request_millis: container.resources.cpu_request_millis,
            cpu_limit_millis: container.resources.cpu_limit_millis,
            memory_limit_bytes: container.resources.memory_limit_bytes,
        };
        Self {
            name: container.name.clone(),
            image: container.image.clone(),
            command: container.command.clone(),
            mounts: mounts.collect(),
            resources: Some(resources),
            stop_seconds: container.stop_seconds,
            liveness: container.liveness.as_ref().map(Into::into),
        }
    }
}

impl TryFrom<proto::Container> for Container {
    type Error = WireError;

    fn try_from(container: proto::Container) -> Result<Self, WireError> {
        let mounts = container.mounts.into_iter();
        let resources = container.resources.ok_or(WireError::Missing("the resources of a container"))?;
        Ok(Self {
            name: container.name,
            image: container.image,
            command: container.command,
            mounts: mounts
                .map(|mount| Mount { source: mount.source, target: mount.target, read_only: mount.read_only })
                .collect(),
            resources: ContainerResources {
                cpu_request_millis: resources.cpu_request_millis,
                cpu_limit_millis: resources.cpu_limit_millis,
                memory_limit_bytes: resources.memory_limit_bytes,
            },
            stop_seconds: container.stop_seconds,
            liveness: container.liveness.map(TryInto::try_into).transpose()?,
        })
    }
}

impl From<&Liveness> for proto::Liveness {
    fn from(liveness: &Liveness) -> Self {
        let check = match &liveness.check {
            ContainerCheck::Https { address, path, server_name, authority, identity } => {
                WireCheck::Https(proto::HttpsCheck {
                    address: address.to_string(),
                    path: path.clone(),
                    server_name: server_name.clone(),
                    authority: authority.clone(),
                    identity: identity.as_ref().map(|files| proto::CertificateFiles {
                        certificate: files.certificate.clone(),
                        key: files.key.clone(),
                    }),
                })
            }
            ContainerCheck::Http { address, path } => {
                WireCheck::Http(proto::HttpCheck { address: address.to_string(), path: path.clone() })
            }
            ContainerCheck::Socket { path, request, answer } => WireCheck::Socket(proto::SocketCheck {
                path: path.clone(),
                request: request.clone(),
                answer: answer.clone(),
            }),
        };
        Self {
            check: Some(check),
            period_seconds: liveness.period_seconds,
            timeout_seconds: liveness.timeout_seconds,
            failure_threshold: liveness.failure_threshold,
            startup_seconds: liveness.startup_seconds,
        }
    }
}

impl TryFrom<proto::Liveness> for Liveness {
    type Error = WireError;

    fn try_from(liveness: proto::Liveness) -> Result<Self, WireError> {
        let check = match liveness.check.ok_or(WireError::Missing("the liveness check of a container"))? {
            WireCheck::Https(https) => ContainerCheck::Https {
                address: https.address.parse()?,
                path: https.path,
                server_name: https.server_name,
                authority: https.authority,
                identity: https
                    .identity
                    .map(|files| CertificateFiles { certificate: files.certificate, key: files.key }),
            },
            WireCheck::Http(http) => ContainerCheck::Http { address: http.address.parse()?, path: http.path },
            WireCheck::Socket(socket) => {
                ContainerCheck::Socket { path: socket.path, request: socket.request, answer: socket.answer }
            }
        };
        Ok(Self {
            check,
            period_seconds: liveness.period_seconds,
            timeout_seconds: liveness.timeout_seconds,
            failure_threshold: liveness.failure_threshold,
            startup_seconds: liveness.startup_seconds,
        })
    }
}
