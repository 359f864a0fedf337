//! Conversions between this crate's types and those of the protocol.

use std::{
    collections::BTreeMap,
    time::{Duration, SystemTime},
};

use k8s_cri::v1;

use crate::{
    Condition, ContainerSpec, ContainerStatus, ContainerUsage, CriContainer, CriContainerState, CriEvent, CriImage,
    CriMount, CriSandbox, CriSandboxState, EventKind, Exit, SandboxSpec,
};

impl From<&SandboxSpec> for v1::PodSandboxConfig {
    fn from(spec: &SandboxSpec) -> Self {
        Self {
            metadata: Some(v1::PodSandboxMetadata {
                name: spec.name.clone(),
                uid: spec.uid.clone(),
                namespace: spec.namespace.clone(),
                attempt: spec.attempt,
            }),
            hostname: spec.hostname.clone(),
            log_directory: spec.log_directory.clone(),
            labels: spec.labels.clone().into_iter().collect(),
            annotations: spec.annotations.clone().into_iter().collect(),
            linux: Some(v1::LinuxPodSandboxConfig {
                cgroup_parent: spec.cgroup_parent.clone(),
                security_context: Some(v1::LinuxSandboxSecurityContext {
                    namespace_options: Some(namespaces()),
                    run_as_user: Some(id(spec.user)),
                    run_as_group: Some(id(spec.group)),
                    readonly_rootfs: true,
                    seccomp: Some(runtime_default()),
                    ..Default::default()
                }),
                ..Default::default()
            }),
            ..Default::default()
        }
    }
}

impl From<&ContainerSpec> for v1::ContainerConfig {
    fn from(spec: &ContainerSpec) -> Self {
        Self {
            metadata: Some(v1::ContainerMetadata { name: spec.name.clone(), attempt: spec.attempt }),
            image: Some(image_spec(&spec.image)),
            command: spec.command.clone(),
            args: spec.args.clone(),
            working_dir: spec.working_dir.clone(),
            envs: spec.env.iter().map(|(key, value)| v1::KeyValue { key: key.clone(), value: value.clone() }).collect(),
            mounts: spec.mounts.iter().map(Into::into).collect(),
            labels: spec.labels.clone().into_iter().collect(),
            annotations: spec.annotations.clone().into_iter().collect(),
            log_path: spec.log_path.clone(),
            linux: Some(v1::LinuxContainerConfig {
                resources: Some(v1::LinuxContainerResources {
                    cpu_period: spec.resources.cpu_period,
                    cpu_quota: spec.resources.cpu_quota,
                    cpu_shares: spec.resources.cpu_shares,
                    memory_limit_in_bytes: spec.resources.memory_limit,
                    ..Default::default()
                }),
                security_context: Some(container_security(spec)),
            }),
            ..Default::default()
        }
    }
}

fn container_security(spec: &ContainerSpec) -> v1::LinuxContainerSecurityContext {
    v1::LinuxContainerSecurityContext {
        capabilities: Some(v1::Capability {
            drop_capabilities: vec!["ALL".into()],
            add_capabilities: spec.capabilities.clone(),
            ..Default::default()
        }),
        namespace_options: Some(namespaces()),
        run_as_user: Some(id(spec.user)),
        run_as_group: Some(id(spec.group)),
        readonly_rootfs: !spec.writable_root,
        no_new_privs: true,
        seccomp: Some(runtime_default()),
        ..Default::default()
    }
}

impl From<&CriMount> for v1::Mount {
    fn from(mount: &CriMount) -> Self {
        Self {
            host_path: mount.host_path.clone(),
            container_path: mount.container_path.clone(),
            readonly: mount.read_only,
            ..Default::default()
        }
    }
}

fn namespaces() -> v1::NamespaceOption {
    v1::NamespaceOption {
        network: v1::NamespaceMode::Node.into(),
        pid: v1::NamespaceMode::Container.into(),
        ipc: v1::NamespaceMode::Pod.into(),
        ..Default::default()
    }
}

fn runtime_default() -> v1::SecurityProfile {
    v1::SecurityProfile {
        profile_type: v1::security_profile::ProfileType::RuntimeDefault.into(),
        localhost_ref: String::new(),
    }
}

fn id(value: u32) -> v1::Int64Value {
    v1::Int64Value { value: value.into() }
}

pub(crate) fn image_spec(image: &str) -> v1::ImageSpec {
    v1::ImageSpec { image: image.to_owned(), ..Default::default() }
}

fn time(nanoseconds: i64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(0))
}

fn ordered<M: IntoIterator<Item = (String, String)>>(map: M) -> BTreeMap<String, String> {
    map.into_iter().collect()
}

pub(crate) fn condition(condition: v1::RuntimeCondition) -> (String, Condition) {
    (condition.r#type, Condition { status: condition.status, reason: condition.reason, message: condition.message })
}

fn sandbox_state(state: v1::PodSandboxState) -> CriSandboxState {
    match state {
        v1::PodSandboxState::SandboxReady => CriSandboxState::Ready,
        v1::PodSandboxState::SandboxNotready => CriSandboxState::NotReady,
    }
}

fn container_state(state: v1::ContainerState) -> CriContainerState {
    match state {
        v1::ContainerState::ContainerCreated => CriContainerState::Created,
        v1::ContainerState::ContainerRunning => CriContainerState::Running,
        v1::ContainerState::ContainerExited => CriContainerState::Exited,
        v1::ContainerState::ContainerUnknown => CriContainerState::Unknown,
    }
}

impl From<v1::PodSandbox> for CriSandbox {
    fn from(wire: v1::PodSandbox) -> Self {
        let state = sandbox_state(wire.state());
        let metadata = wire.metadata.unwrap_or_default();
        Self {
            id: wire.id,
            name: metadata.name,
            namespace: metadata.namespace,
            uid: metadata.uid,
            attempt: metadata.attempt,
            state,
            created: time(wire.created_at),
            labels: ordered(wire.labels),
            annotations: ordered(wire.annotations),
        }
    }
}

impl From<v1::PodSandboxStatus> for CriSandbox {
    fn from(wire: v1::PodSandboxStatus) -> Self {
        let state = sandbox_state(wire.state());
        let metadata = wire.metadata.unwrap_or_default();
        Self {
            id: wire.id,
            name: metadata.name,
            namespace: metadata.namespace,
            uid: metadata.uid,
            attempt: metadata.attempt,
            state,
            created: time(wire.created_at),
            labels: ordered(wire.labels),
            annotations: ordered(wire.annotations),
        }
    }
}

impl From<v1::Container> for CriContainer {
    fn from(wire: v1::Container) -> Self {
        let state = container_state(wire.state());
        let metadata = wire.metadata.unwrap_or_default();
        Self {
            id: wire.id,
            sandbox_id: wire.pod_sandbox_id,
            name: metadata.name,
            attempt: metadata.attempt,
            state,
            created: time(wire.created_at),
            image: wire.image.unwrap_or_default().image,
            image_ref: wire.image_ref,
            labels: ordered(wire.labels),
            annotations: ordered(wire.annotations),
        }
    }
}

impl From<v1::ContainerStatus> for ContainerStatus {
    fn from(wire: v1::ContainerStatus) -> Self {
        let state = container_state(wire.state());
        let metadata = wire.metadata.unwrap_or_default();
        let exit = (state == CriContainerState::Exited).then_some(Exit {
            code: wire.exit_code,
            reason: wire.reason,
            message: wire.message,
            finished: time(wire.finished_at),
        });
        Self {
            id: wire.id,
            name: metadata.name,
            attempt: metadata.attempt,
            state,
            created: time(wire.created_at),
            started: (wire.started_at > 0).then(|| time(wire.started_at)),
            exit,
            image: wire.image.unwrap_or_default().image,
            image_ref: wire.image_ref,
            log_path: wire.log_path,
            labels: ordered(wire.labels),
            annotations: ordered(wire.annotations),
        }
    }
}

impl From<v1::Image> for CriImage {
    fn from(wire: v1::Image) -> Self {
        Self { id: wire.id, tags: wire.repo_tags, digests: wire.repo_digests, size: wire.size, pinned: wire.pinned }
    }
}

impl From<v1::ContainerStats> for ContainerUsage {
    fn from(wire: v1::ContainerStats) -> Self {
        let value = |value: Option<v1::UInt64Value>| value.map_or(0, |value| value.value);
        Self {
            cpu_nanoseconds: wire.cpu.map_or(0, |cpu| value(cpu.usage_core_nano_seconds)),
            memory_working_set: wire.memory.map_or(0, |memory| value(memory.working_set_bytes)),
        }
    }
}

impl From<v1::ContainerEventResponse> for CriEvent {
    fn from(wire: v1::ContainerEventResponse) -> Self {
        let kind = match wire.container_event_type() {
            v1::ContainerEventType::ContainerCreatedEvent => EventKind::Created,
            v1::ContainerEventType::ContainerStartedEvent => EventKind::Started,
            v1::ContainerEventType::ContainerStoppedEvent => EventKind::Stopped,
            v1::ContainerEventType::ContainerDeletedEvent => EventKind::Deleted,
        };
        Self {
            id: wire.container_id,
            sandbox_id: wire.pod_sandbox_status.map(|status| status.id),
            kind,
            at: time(wire.created_at),
        }
    }
}
