//! The rules for clusters that sleep.

use alloc::{
    format,
    string::{String, ToString},
    vec::Vec,
};

use keelway_api::{
    Cluster, Component, Documents,
    component::ComponentSpec,
    machine::{Pod, ServerAdmin},
    name::{ClusterId, PodName},
    role::Role,
    sleep::SleepPhase,
};

use super::PlanTransition;

/// Checks the documents, and the configs for the machines.
pub(super) fn clusters_sleep_in_order(step: &PlanTransition) -> Vec<String> {
    let mut found = Vec::new();
    for (name, cluster) in &step.after.clusters {
        let (Some(id), Some(phase)) = (cluster.id(), cluster.sleep_phase()) else { continue };
        if cluster.deleted() || step.is_left(cluster) {
            continue;
        }
        let before = step.before.clusters.get(name).and_then(|cluster| cluster.sleep_phase());
        found.extend(removals(step, id).map(|pod| format!("the data of {pod} is removed in its sleep")));
        found.extend(running_pods(step, id, phase).map(|pod| format!("{pod} runs in its sleep")));
        found.extend(early(step, cluster, (before, phase)).map(|why| format!("{name}: {why}")));
        if before.is_some() && specs(step.before, id) != specs(step.after, id) {
            found.push(format!("{name}: its components change in its sleep"));
        }
    }
    found
}

fn removals<'a>(step: &'a PlanTransition, id: &'a ClusterId) -> impl Iterator<Item = &'a PodName> {
    step.configs.values().flat_map(|config| config.removals.keys()).filter(move |pod| pod.cluster == *id)
}

fn running_pods<'a>(
    step: &'a PlanTransition,
    id: &'a ClusterId,
    phase: SleepPhase,
) -> impl Iterator<Item = &'a PodName> {
    let pods = step.configs.values().flat_map(|config| &config.pods);
    let is_awake = |(name, pod): &(&PodName, &Pod)| {
        let role = step.after.components.get(*name).map(|component| component.spec.role);
        !pod.start.stops() && role != Some(Role::Ingress)
    };
    let own = pods.filter(move |(name, _)| name.cluster == *id && phase == SleepPhase::Asleep);
    own.filter(is_awake).map(|(name, _)| name)
}

/// Why a step begins too early. None: it does not, or it is not new.
fn early(
    step: &PlanTransition,
    cluster: &Cluster,
    (before, phase): (Option<SleepPhase>, SleepPhase),
) -> Option<String> {
    let id = cluster.id()?;
    let mut of_cluster = step.before.components_of(id);
    let runs = |component: &Component, pod: &PodName| {
        let state = step.seen.machine(&component.spec.hypervisor);
        state.is_some_and(|state| state.sandboxes.iter().any(|sandbox| sandbox.pod == *pod))
    };
    match (before, phase) {
        _ if before == Some(phase) => None,
        (Some(SleepPhase::Answering | SleepPhase::StartingServers), SleepPhase::StoppingServers) => of_cluster
            .find(|(pod, component)| component.spec.role == Role::Ingress && sends(step, component, pod))
            .map(|(pod, _)| format!("{} still sends connections to API servers that stop", pod.component)),
        (Some(SleepPhase::Answering), SleepPhase::StoppingStore | SleepPhase::Asleep)
        | (
            None | Some(SleepPhase::StoppingControllers),
            SleepPhase::StoppingServers | SleepPhase::StoppingStore | SleepPhase::Asleep,
        ) => Some("a step was left out".to_string()),
        (_, SleepPhase::StoppingStore) => of_cluster
            .find(|(pod, component)| component.spec.role == Role::KubeApiserver && runs(component, pod))
            .map(|(pod, _)| format!("its etcd stops before {}", pod.component)),
        (_, SleepPhase::Asleep) => of_cluster
            .find(|(pod, component)| component.spec.role == Role::Etcd && runs(component, pod))
            .map(|(pod, _)| format!("it is asleep, and {} runs", pod.component)),
        _ => None,
    }
}

fn sends(step: &PlanTransition, component: &Component, ingress: &PodName) -> bool {
    let state = step.seen.machine(&component.spec.hypervisor);
    let mut servers = state.and_then(|state| state.servers.get(ingress)).into_iter().flatten();
    servers.any(|(_, server)| server.admin == ServerAdmin::Serves)
}

fn specs<'a>(documents: &'a Documents, id: &'a ClusterId) -> Vec<(&'a PodName, &'a ComponentSpec)> {
    documents.components_of(id).map(|(pod, component)| (pod, &component.spec)).collect()
}
