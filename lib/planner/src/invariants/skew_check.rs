//! The rules for the versions of components: the version skew policy of Kubernetes, and what etcd allows.

use alloc::{format, string::String, vec::Vec};

use keelway_api::{
    Documents,
    name::{ClusterId, PodName},
    release::{Release, find},
    role::Role,
};

use super::PlanTransition;

/// Checks each cluster of which the plan changed a version, or to which it added a component.
pub(super) fn versions_keep_their_skew(step: &PlanTransition) -> Vec<String> {
    let mut found = Vec::new();
    for (name, cluster) in step.after.clusters.iter().filter(|(_, cluster)| !cluster.deleted()) {
        let Some(id) = cluster.id() else { continue };
        // An earlier release of Keelway did not record the versions of components.
        let was_recorded = step.before.clusters.get(name).is_some_and(|cluster| cluster.birth().is_some());
        let before = releases(step.before, id);
        let after = releases(step.after, id);
        let was = |pod: &PodName| before.iter().find(|(found, ..)| *found == pod).map(|(.., release)| *release);
        let changed: Vec<_> = after.iter().filter(|(pod, _, release)| was(pod) != Some(*release)).collect();
        if !was_recorded || changed.is_empty() {
            continue;
        }
        if changed.iter().filter(|(pod, ..)| was(pod).is_some()).count() > 1 {
            found.push(format!("{name}: more than one component changes its version"));
        }
        let minors = |which: fn(Role) -> bool| {
            after.iter().filter(move |(_, role, _)| which(*role)).map(|(.., release)| release.minor())
        };
        let is_apart = minors(|_| true).min().zip(minors(|_| true).max());
        let is_apart = is_apart.is_some_and(|(oldest, newest)| newest > oldest + 1);
        let servers = minors(|role| role == Role::KubeApiserver).min();
        let store = minors(|role| role == Role::Etcd).min();
        for (pod, role, release) in changed {
            if was(pod).is_some_and(|was| release.minor() < was.minor() || release.minor() > was.minor() + 1) {
                found.push(format!("{pod} changes to {release}"));
            }
            let is_newer = servers.is_some_and(|oldest| release.minor() > oldest);
            if is_apart || (*role > Role::KubeApiserver && is_newer) {
                found.push(format!("{pod} runs {release} beside older components"));
            }
            if *role == Role::KubeApiserver && store.is_some_and(|oldest| release.minor() > oldest) {
                found.push(format!("{pod} runs {release} before its store"));
            }
        }
    }
    found
}

/// The staying components of a cluster with their roles and releases.
fn releases<'a>(documents: &'a Documents, id: &'a ClusterId) -> Vec<(&'a PodName, Role, Release)> {
    let staying = documents.components_of(id).filter(|(_, component)| !component.is_leaving());
    staying.filter_map(|(pod, component)| Some((pod, component.spec.role, find(&component.spec.version)?))).collect()
}
