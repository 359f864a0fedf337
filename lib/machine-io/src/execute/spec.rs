//! The specs of sandboxes and containers. None is privileged: the client grants no capability and a read-only root by default.

use std::collections::BTreeMap;

use keelway_api::{
    machine::{CLUSTER_LABEL, COMPONENT_LABEL, ContainerResources, DIGEST_ANNOTATION, STOP_LABEL},
    name::PodName,
};
use keelway_cri as cri;
use keelway_machine::{
    action::{NewContainer, NewSandbox},
    layout::{log_directory, log_name, on_machine},
};

/// The kernel's default CPU period, in microseconds.
const CPU_PERIOD: i64 = 100_000;
/// The smallest shares that the kernel accepts. The next constant is the smallest quota, in microseconds.
const LEAST_SHARES: i64 = 2;
const LEAST_QUOTA: i64 = 1_000;

pub(super) fn sandbox(pod: &PodName, new: &NewSandbox) -> cri::SandboxSpec {
    cri::SandboxSpec {
        name: pod.component.to_string(),
        namespace: pod.cluster.namespace(),
        uid: format!("{}-{}", pod.cluster, pod.component),
        attempt: new.attempt,
        log_directory: log_directory(pod),
        cgroup_parent: new.cgroup_parent.clone(),
        user: new.user,
        group: new.user,
        labels: labels(pod),
        annotations: BTreeMap::from([(DIGEST_ANNOTATION.to_owned(), new.digest.clone())]),
        ..cri::SandboxSpec::default()
    }
}

pub(super) fn container(pod: &PodName, new: &NewContainer) -> cri::ContainerSpec {
    let wanted = &new.container;
    let mounts = wanted.mounts.iter().map(|mount| cri::CriMount {
        host_path: on_machine(pod, &mount.source),
        container_path: mount.target.clone(),
        read_only: mount.read_only,
    });
    let mut labels = labels(pod);
    labels.insert(STOP_LABEL.to_owned(), wanted.stop_seconds.to_string());
    cri::ContainerSpec {
        name: wanted.name.clone(),
        attempt: new.attempt,
        image: wanted.image.clone(),
        command: wanted.command.clone(),
        mounts: mounts.collect(),
        user: new.sandbox.user,
        group: new.sandbox.user,
        resources: resources(wanted.resources),
        log_path: log_name(&wanted.name, new.attempt),
        labels,
        ..cri::ContainerSpec::default()
    }
}

fn labels(pod: &PodName) -> BTreeMap<String, String> {
    BTreeMap::from([
        (CLUSTER_LABEL.to_owned(), pod.cluster.to_string()),
        (COMPONENT_LABEL.to_owned(), pod.component.to_string()),
    ])
}

fn resources(wanted: ContainerResources) -> cri::CriResources {
    let shares = i64::from(wanted.cpu_request_millis) * 1024 / 1000;
    let quota = |millis: u32| (i64::from(millis) * CPU_PERIOD / 1000).max(LEAST_QUOTA);
    cri::CriResources {
        cpu_shares: shares.max(LEAST_SHARES),
        cpu_quota: wanted.cpu_limit_millis.map_or(0, quota),
        cpu_period: CPU_PERIOD,
        memory_limit: i64::try_from(wanted.memory_limit_bytes).unwrap_or(i64::MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_core_is_1024_shares_and_a_whole_period() {
        let bounds = |request, limit| {
            resources(ContainerResources {
                cpu_request_millis: request,
                cpu_limit_millis: limit,
                memory_limit_bytes: 1 << 20,
            })
        };
        assert_eq!(bounds(1000, Some(2000)).cpu_shares, 1024);
        assert_eq!(bounds(1000, Some(2000)).cpu_quota, 200_000);
        assert_eq!(bounds(0, None).cpu_shares, 2);
        assert_eq!(bounds(0, None).cpu_quota, 0);
        assert_eq!(bounds(0, None).memory_limit, 1 << 20);
    }
}
