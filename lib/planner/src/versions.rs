//! Upgrades of components to the release of their cluster: one at a time, etcd first, then API servers, then all others.

use alloc::{
    string::{String, ToString},
    vec::Vec,
};

use keelway_api::{
    Component, Documents,
    component::ComponentSpec,
    name::{ClusterId, ClusterRef, ComponentName, PodName},
    release::{Release, find},
    validated::ValidatedCluster,
};

use crate::{
    ComponentRef, Decision, PassObservation, WaitBlocker, plan::Plan, pod::PodInputs, tenant::Tenant,
    world::ValidatedDocuments,
};

/// Records the release of components that an older release of Keelway created: they followed their cluster without recording it. No component
/// is downgraded.
pub(crate) fn record_versions(plan: &mut Plan, unrecorded: &[ClusterRef]) {
    for name in unrecorded {
        let Some(document) = plan.documents.clusters.get(name) else { continue };
        let (Some(id), Some(wanted)) = (document.id().cloned(), find(&document.spec.version)) else { continue };
        for (_, component) in plan.documents.components_of_mut(&id) {
            if find(&component.spec.version).is_none_or(|runs| runs.minor() < wanted.minor()) {
                component.spec.version = wanted.kubernetes.to_string();
            }
        }
    }
}

/// The release of a new component. During an upgrade it is the oldest release of the staying components.
pub(crate) fn version_of_new(documents: &Documents, id: &ClusterId, cluster: &ValidatedCluster) -> String {
    let staying = documents.components_of(id).filter(|(_, component)| !component.is_leaving());
    let releases = staying.filter_map(|(_, component)| find(&component.spec.version));
    let oldest = releases.min_by_key(|release| release.minor());
    oldest.unwrap_or(cluster.release).kubernetes.to_string()
}

/// Upgrades the next component of each cluster to the release that the cluster names, if the components before it work.
pub(crate) fn plan_versions(plan: &mut Plan, world: &ValidatedDocuments, seen: &PassObservation) {
    let steps: Vec<UpgradeStep> = Tenant::all(&plan.documents, world)
        .filter(|tenant| !tenant.cluster.paused && !tenant.document.deleted() && tenant.document.birth().is_some())
        .filter_map(|tenant| UpgradeStep::of(&tenant, world, seen).filter(|_| may_change(&plan.documents, &tenant)))
        .collect();
    for UpgradeStep { pod, component, to, after } in steps {
        if let Some(first) = after {
            plan.wait_in_progress(component, WaitBlocker::Upgrade { version: to.kubernetes, first });
            continue;
        }
        let version = to.kubernetes.to_string();
        if let Some(document) = plan.documents.components.get_mut(&pod) {
            let from = core::mem::replace(&mut document.spec.version, version.clone());
            plan.decisions.push(Decision::UpgradeComponent { component, from, to: version });
        }
    }
}

fn may_change(documents: &Documents, tenant: &Tenant) -> bool {
    documents.faults_of_change(tenant.document).is_empty()
}

/// The next component of a cluster that does not run the wanted release.
struct UpgradeStep {
    pod: PodName,
    component: ComponentRef,
    to: &'static Release,
    /// The component that must be ready first. None: it is its turn.
    after: Option<ComponentName>,
}

impl UpgradeStep {
    fn of(tenant: &Tenant, world: &ValidatedDocuments, seen: &PassObservation) -> Option<Self> {
        let to = tenant.cluster.release;
        let stays = |(_, component): &(&PodName, &Component)| !component.is_leaving();
        let mut staying: Vec<(&PodName, &ComponentSpec)> =
            tenant.components.iter().copied().filter(stays).map(|(pod, component)| (pod, &component.spec)).collect();
        staying.sort_by_key(|(_, spec)| (spec.role, spec.index));
        let place = staying.iter().position(|(_, spec)| spec.version != to.kubernetes)?;
        let (next, spec) = *staying.get(place)?;
        // All others of its own role must be healthy too, because the component is away during its replacement.
        let mut before = staying.iter().filter(|(other, found)| *other != next && found.role <= spec.role);
        let ill = before.find(|(other, spec)| !does_its_work(tenant, world, seen, other, spec));
        Some(Self {
            pod: next.clone(),
            component: ComponentRef::of(&tenant.cluster.reference, next),
            to,
            after: ill.map(|(other, _)| other.component.clone()),
        })
    }
}

/// Whether a component is healthy, and runs as its document specifies.
fn does_its_work(
    tenant: &Tenant,
    world: &ValidatedDocuments,
    seen: &PassObservation,
    pod: &PodName,
    spec: &ComponentSpec,
) -> bool {
    let runs_as_wanted = || {
        let state = seen.machine(&spec.hypervisor)?;
        let wanted = PodInputs::of(tenant, world, pod, spec)?.pod().ok()?;
        Some(!state.is_interrupted(pod, (&wanted, &wanted.digests())))
    };
    seen.healthy(pod) && runs_as_wanted() == Some(true)
}
