//! The checks of stores that are rebuilt from one member.

use alloc::{
    format,
    string::{String, ToString},
    vec::Vec,
};

use keelway_api::{
    Cluster,
    cluster::EtcdStatus,
    machine::{Pod, Start},
    name::{ClusterId, ClusterRef, ComponentName, HypervisorName, PodName},
    role::Role,
    store_observation::{MemberList, StoreObservation},
    store_rebuild::{EtcdRecovery, RebuildPhase, RebuildSource, StoreRebuild},
};

use super::{PlanTransition, etcd, stores};

const FORCED: &str = "--force-new-cluster";

pub(super) fn rebuilds_take_steps(step: &PlanTransition) -> Vec<String> {
    let fault = |(name, before, after, _): (&ClusterRef, &EtcdStatus, &EtcdStatus, Option<&MemberList>)| {
        let cluster = step.after.clusters.get(name)?;
        let what = match (&before.rebuild, &after.rebuild) {
            (None, None) => (before.rebuilt != after.rebuilt).then_some("an end without a rebuild"),
            (None, Some(rebuild)) => begins_wrongly(step, cluster, (before, rebuild)),
            (Some(old), Some(new)) => {
                continues_wrongly(step, cluster, (old, new)).or_else(|| removes_early(before, after))
            }
            // Nothing was changed yet.
            (Some(old), None) if is_restore(old) && is_withdrawn(step, cluster, old, after) => None,
            (Some(old), None)
                if !is_restore(old) && old.phase < RebuildPhase::Starting && before.rebuilt == after.rebuilt =>
            {
                None
            }
            (Some(old), None) => ends_wrongly(old, after),
        };
        Some(format!("{name}: {}", what?))
    };
    stores(step).filter_map(fault).collect()
}

fn begins_wrongly(
    step: &PlanTransition,
    cluster: &Cluster,
    (before, rebuild): (&EtcdStatus, &StoreRebuild),
) -> Option<&'static str> {
    if is_restore(rebuild) {
        let is_verified = cluster.id().and_then(|id| step.seen.restores.get(id)).is_some_and(Result::is_ok);
        let is_new = !before.members.contains_key(&rebuild.member);
        return (!is_verified || !is_new || rebuild.phase != RebuildPhase::Stopping)
            .then_some("a restore without a verified snapshot");
    }
    let Some(seen) = cluster.id().and_then(|id| step.seen.stores.get(id)) else { return Some("not observed") };
    let (responding, voters) = (responding(seen, before), voters(before).count());
    if seen.list.is_some() || seen.leader().is_some() || responding.len() * 2 > voters {
        Some("a majority works")
    } else if !responding.contains(&&rebuild.member) {
        Some("the member does not respond")
    } else if last_copy(step, cluster, rebuild) >= rebuild.number {
        Some("a copy of before counts as its own")
    } else if !is_ordered(cluster, before, &responding) {
        Some("nothing orders it")
    } else {
        (rebuild.phase != RebuildPhase::Stopping).then_some("a step was left out")
    }
}

/// The highest number of a copy that was there when the rebuild began.
fn last_copy(step: &PlanTransition, cluster: &Cluster, rebuild: &StoreRebuild) -> u32 {
    let number = |id: &ClusterId| {
        let copies = format!("{id}/{}/data.copy-", rebuild.member);
        let states = step.seen.machines.keys().filter_map(|machine| step.seen.machine(machine));
        let paths = states.flat_map(|state| state.data.keys());
        paths.filter_map(|path| path.strip_prefix(&copies)?.parse().ok()).max()
    };
    cluster.id().and_then(number).unwrap_or_default()
}

/// Whether a step gives up a restore.
pub(super) fn withdraws_a_restore(before: &EtcdStatus, after: &EtcdStatus) -> bool {
    before.rebuild.as_ref().is_some_and(is_restore) && after.rebuild.is_none() && before.rebuilt == after.rebuilt
}

fn is_restore(rebuild: &StoreRebuild) -> bool {
    matches!(rebuild.source, RebuildSource::Snapshot { .. })
}

/// A restore is withdrawn before the data of its member is complete, or after it was lost, and the members of before stay.
fn is_withdrawn(step: &PlanTransition, cluster: &Cluster, old: &StoreRebuild, after: &EtcdStatus) -> bool {
    let is_requested = cluster.spec.etcd.restore.as_ref().is_some_and(|request| request.is_executed_by(&old.source));
    let others = after.staying_members().filter(|(name, _)| **name != old.member).count();
    !is_requested && is_revocable(step, cluster, old) && others > 0
}

/// Whether a restore can be withdrawn: its data is not complete, or is lost.
fn is_revocable(step: &PlanTransition, cluster: &Cluster, restore: &StoreRebuild) -> bool {
    let pod = cluster.id().map(|id| PodName { cluster: id.clone(), component: restore.member.clone() });
    let is_lost = |pod: &PodName| {
        let machine = &step.before.components.get(pod)?.spec.hypervisor;
        let is_marked = step.before.hypervisors.get(machine).is_some_and(|document| document.is_lost());
        let state = step.seen.machine(machine);
        Some(state.map_or(is_marked, |state| !state.data_of(pod, "data").allows(Start::OnUsedData)))
    };
    restore.phase <= RebuildPhase::Preparing || pod.as_ref().and_then(is_lost).unwrap_or_default()
}

fn is_ordered(cluster: &Cluster, store: &EtcdStatus, responding: &[&ComponentName]) -> bool {
    let request = cluster.spec.etcd.recover_quorum.as_ref().zip(store.quorum_lost_since.as_ref());
    let is_requested = request.is_some_and(|(request, since)| {
        request.requested_at.0 >= since.0 && !request.lost.iter().any(|lost| responding.contains(&lost))
    });
    is_requested || cluster.spec.etcd.recovery == EtcdRecovery::Automatic
}

fn voters(store: &EtcdStatus) -> impl Iterator<Item = (&ComponentName, &str)> {
    let is_learner = |name: &ComponentName| store.change.as_ref().is_some_and(|change| change.adds(name));
    let members = store.staying_members().filter(move |(name, _)| !is_learner(name));
    members.map(|(name, member)| (name, member.id.as_str()))
}

fn responding<'a>(seen: &StoreObservation, store: &'a EtcdStatus) -> Vec<&'a ComponentName> {
    let reports = |(name, id): &(&ComponentName, &str)| {
        seen.report(name).is_some_and(|report| !report.is_learner && report.id.to_string() == *id)
    };
    voters(store).filter(reports).map(|(name, _)| name).collect()
}

fn continues_wrongly(
    step: &PlanTransition,
    cluster: &Cluster,
    (old, new): (&StoreRebuild, &StoreRebuild),
) -> Option<&'static str> {
    let of = |rebuild: &StoreRebuild| (rebuild.number, rebuild.source.clone(), rebuild.member.clone());
    if of(old) != of(new) || !(new.phase == old.phase || next(old) == Some(new.phase)) {
        return Some("a step was left out");
    }
    let name = PodName { cluster: cluster.id()?.clone(), component: new.member.clone() };
    let machine = &step.after.components.get(&name)?.spec.hypervisor;
    match new.phase {
        phase if phase == old.phase => None,
        RebuildPhase::Starting if is_restore(new) => {
            let data = step.seen.machine(machine).map(|state| state.data_of(&name, "data"));
            (!data.is_some_and(|data| data.allows(Start::OnUsedData))).then_some("the data is not complete")
        }
        RebuildPhase::Starting => (!is_copied(step, machine, (&name, new))).then_some("the data has no copy"),
        RebuildPhase::Serving => {
            let state = step.seen.machine(machine);
            let mut own = state.into_iter().flat_map(|state| &state.sandboxes).filter(|found| found.pod == name);
            let is_forced = own.any(|found| Some(&found.digest) == new.forced_pod.as_ref());
            is_forced.then_some("the member still runs as the only one")
        }
        RebuildPhase::Stopping | RebuildPhase::Preparing | RebuildPhase::Restarting => None,
    }
}

fn is_copied(step: &PlanTransition, machine: &HypervisorName, (name, rebuild): (&PodName, &StoreRebuild)) -> bool {
    let copy = format!("data.copy-{}", rebuild.number);
    step.seen.machine(machine).is_some_and(|state| state.data_of(name, &copy).allows(Start::OnUsedData))
}

fn next(rebuild: &StoreRebuild) -> Option<RebuildPhase> {
    match rebuild.phase {
        RebuildPhase::Stopping => Some(RebuildPhase::Preparing),
        RebuildPhase::Preparing => Some(RebuildPhase::Starting),
        RebuildPhase::Starting if is_restore(rebuild) => Some(RebuildPhase::Serving),
        RebuildPhase::Starting => Some(RebuildPhase::Restarting),
        RebuildPhase::Restarting => Some(RebuildPhase::Serving),
        RebuildPhase::Serving => None,
    }
}

fn removes_early(before: &EtcdStatus, after: &EtcdStatus) -> Option<&'static str> {
    let was_ordered = |name: &ComponentName| before.members.get(name).is_some_and(|member| member.removal.is_some());
    let mut ordered = after.members.iter().filter(|(_, member)| member.removal.is_some());
    ordered.any(|(name, _)| !was_ordered(name)).then_some("data is removed before the new store serves")
}

fn ends_wrongly(old: &StoreRebuild, after: &EtcdStatus) -> Option<&'static str> {
    let is_recorded = after.rebuilt.as_ref().is_some_and(|rebuilt| rebuilt.number == old.number);
    (old.phase != RebuildPhase::Serving || !is_recorded).then_some("it ends early")
}

/// Checks the configs for the machines.
pub(super) fn forced_starts_are_alone(step: &PlanTransition) -> Vec<String> {
    let pods = step.configs.iter().flat_map(|(machine, config)| config.pods.iter().map(move |pod| (machine, pod)));
    let fault = |(machine, (name, pod)): (&HypervisorName, (&PodName, &Pod))| {
        let component = step.after.components.get(name)?;
        let cluster = step.after.clusters.get(&component.spec.cluster)?;
        let rebuild = etcd(cluster)?.rebuild.as_ref();
        let runs = !pod.start.stops();
        let is_wrong = (runs && !may_run(component.spec.role, rebuild, &name.component))
            || (is_forced(pod) && !may_be_forced(step, machine, (name, rebuild)));
        is_wrong.then(|| format!("{name} on {machine}"))
    };
    pods.filter_map(fault).collect()
}

fn may_run(role: Role, rebuild: Option<&StoreRebuild>, component: &ComponentName) -> bool {
    rebuild.is_none_or(|rebuild| match role {
        Role::Etcd => rebuild.member == *component,
        Role::KubeApiserver => rebuild.phase == RebuildPhase::Serving,
        Role::KubeControllerManager
        | Role::KubeScheduler
        | Role::ClusterController
        | Role::FleetController
        | Role::Ingress
        | Role::Gateway => true,
    })
}

fn is_forced(pod: &Pod) -> bool {
    pod.containers.iter().flat_map(|container| &container.command).any(|word| word.starts_with(FORCED))
}

fn may_be_forced(
    step: &PlanTransition,
    machine: &HypervisorName,
    (name, rebuild): (&PodName, Option<&StoreRebuild>),
) -> bool {
    rebuild.is_some_and(|rebuild| {
        let is_member = rebuild.member == name.component;
        is_member && rebuild.phase == RebuildPhase::Starting && is_copied(step, machine, (name, rebuild))
    })
}

/// Whether a rebuild that ended retires a member.
pub(super) fn retires(
    step: &PlanTransition,
    cluster: &ClusterRef,
    (before, after): (&EtcdStatus, &EtcdStatus),
    member: &ComponentName,
) -> bool {
    let ended = before.rebuild.as_ref().filter(|_| after.rebuild.is_none());
    ended.zip(step.after.clusters.get(cluster)).is_some_and(|(rebuild, cluster)| {
        let is_withdrawn = is_restore(rebuild) && before.rebuilt == after.rebuilt;
        (rebuild.phase == RebuildPhase::Serving && !is_withdrawn && rebuild.member != *member)
            || (is_withdrawn && is_revocable(step, cluster, rebuild) && rebuild.member == *member)
    })
}
