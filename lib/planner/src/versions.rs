//! Upgrades of components to the release of their cluster: one at a time, etcd first, then API servers, then all others. A skipped minor version is a
//! whole upgrade of its own.

use alloc::{
    format,
    string::{String, ToString},
    vec::Vec,
};

use keelway_api::{
    Cluster, Component, Documents, Time,
    component::ComponentSpec,
    condition::{self, ConditionStatus, ConditionValue, reason::ConditionReason},
    machine::{ObservedValue, fetch_failure},
    name::{ClusterId, ClusterRef, PodName},
    release::{Release, find},
    role::Role,
    store_observation::MemberReport,
    validated::ValidatedCluster,
};

use crate::{
    ComponentRef, Decision, PassObservation, PreflightBlocker, WaitBlocker, plan::Plan, pod::PodInputs, preflight,
    tenant::Tenant, verdict::verdict, waves::is_behind, world::ValidatedDocuments,
};

/// The condition of a Cluster. It exists only while components run another release than the one in its document.
pub(crate) const KUBERNETES_UP_TO_DATE: &str = "KubernetesUpToDate";
/// The condition of a Cluster. It exists only while its document has a patch release that is newer than those that were tested.
const VERSION_TESTED: &str = "VersionTested";

/// Records the release of components that an older release of Keelway created: they followed their cluster without recording it. No component
/// is downgraded.
pub(crate) fn record_versions(plan: &mut Plan, unrecorded: &[ClusterRef]) {
    for name in unrecorded {
        let Some(document) = plan.documents.clusters.get(name) else { continue };
        let (Some(id), Some(wanted)) = (document.id().cloned(), find(&document.spec.version)) else { continue };
        for (_, component) in plan.documents.components_of_mut(&id) {
            if find(&component.spec.version).is_none_or(|runs| runs.minor() < wanted.minor()) {
                component.spec.version = wanted.to_string();
            }
        }
    }
}

/// Gives the components of a cluster without a store the release of its document. Some may have been placed before that release was requested, and
/// nothing of the cluster has stored anything yet.
pub(crate) fn follow_until_birth(plan: &mut Plan, world: &ValidatedDocuments) {
    let unborn = Tenant::all(&plan.documents, world)
        .filter(|tenant| !tenant.cluster.paused && !tenant.document.deleted() && tenant.document.birth().is_none())
        .filter(|tenant| may_change(&plan.documents, tenant));
    let placed = unborn.flat_map(|tenant| {
        let wanted = tenant.cluster.release.to_string();
        tenant.components.into_iter().map(move |(pod, component)| (pod, component, wanted.clone()))
    });
    let changed = placed.filter(|(_, component, wanted)| component.spec.version != *wanted);
    let changed: Vec<(PodName, String)> = changed.map(|(pod, _, wanted)| (pod.clone(), wanted)).collect();
    for (pod, version) in changed {
        if let Some(component) = plan.documents.components.get_mut(&pod) {
            component.spec.version = version;
        }
    }
}

/// The release of a new component. During an upgrade it is the oldest release of the staying components of its role and of those that are
/// upgraded before it: an API server is not older than a controller manager, and a member is not older than its store.
pub(crate) fn version_of_new(
    documents: &Documents,
    (id, role): (&ClusterId, Role),
    cluster: &ValidatedCluster,
) -> String {
    let staying = documents.components_of(id).filter(|(_, component)| !component.is_leaving());
    let before = staying.filter(|(_, component)| component.spec.role <= role);
    let oldest = before.filter_map(|(_, component)| find(&component.spec.version)).min();
    oldest.unwrap_or(cluster.release).to_string()
}

/// Whether members of a store are to run another minor version. Their leader is upgraded last, so it has to be known.
pub(crate) fn upgrades_members(documents: &Documents, cluster: &Cluster) -> bool {
    let (Some(id), Some(wanted)) = (cluster.id(), find(&cluster.spec.version)) else { return false };
    let mut members = documents.components_of(id).filter(|(_, component)| component.spec.role == Role::Etcd);
    members.any(|(_, member)| find(&member.spec.version).is_some_and(|runs| runs.minor() != wanted.minor()))
}

/// Changes the next component of each cluster towards the release that the cluster names, if the components before it work, and reports the
/// progress.
pub(crate) fn plan_versions(plan: &mut Plan, world: &ValidatedDocuments, seen: &PassObservation, now: &Time) {
    let found: Vec<VersionProgress> = Tenant::all(&plan.documents, world)
        .filter(|tenant| is_upgradable(&plan.documents, tenant))
        .filter_map(|tenant| VersionProgress::of(&tenant, world, seen))
        .collect();
    for VersionProgress { cluster, reached, report, step } in found {
        report.record(plan, &cluster, reached, now);
        let Some(UpgradeStep { pod, component, to, blocker }) = step else { continue };
        if let Some(blocker) = blocker {
            if has_findings(&blocker) {
                plan.block(component, blocker);
            } else {
                plan.wait_in_progress(component, blocker);
            }
            continue;
        }
        let version = to.to_string();
        if let Some(document) = plan.documents.components.get_mut(&pod) {
            let from = core::mem::replace(&mut document.spec.version, version.clone());
            plan.decisions.push(Decision::UpgradeComponent { component, from, to: version });
        }
    }
}

/// Whether components of a cluster change towards the release that it names.
pub(crate) fn is_upgradable(documents: &Documents, tenant: &Tenant) -> bool {
    let is_born = tenant.document.birth().is_some();
    !tenant.cluster.paused && tenant.document.is_awake() && is_born && may_change(documents, tenant)
}

fn may_change(documents: &Documents, tenant: &Tenant) -> bool {
    documents.faults_of_change(tenant.document).is_empty()
}

/// How far a cluster is on its way to the release in its document.
struct VersionProgress {
    cluster: ClusterRef,
    /// The release that every component runs now, if the status does not have it yet.
    reached: Option<Release>,
    report: VersionConditions,
    step: Option<UpgradeStep>,
}

/// The next component that does not run the release of this step.
struct UpgradeStep {
    pod: PodName,
    component: ComponentRef,
    to: Release,
    /// What it waits for. None: it is its turn.
    blocker: Option<WaitBlocker>,
}

impl VersionProgress {
    /// None: the cluster has no component.
    fn of(tenant: &Tenant, world: &ValidatedDocuments, seen: &PassObservation) -> Option<Self> {
        let wanted = tenant.cluster.release;
        let staying = in_order(tenant, seen);
        let releases = || staying.iter().filter_map(|(_, spec)| find(&spec.version));
        let (oldest, newest) = (releases().min()?, releases().max()?);
        let works = |pod: &PodName, spec: &ComponentSpec| does_its_work(tenant, world, seen, pod, spec);
        let recorded = tenant.document.status.as_ref().and_then(|status| find(status.version.as_deref()?));
        let is_reached = oldest == newest && recorded != Some(oldest);
        let reached = (is_reached && staying.iter().all(|(pod, spec)| works(pod, spec))).then_some(oldest);

        // A skipped minor version is a step of its own, in which its patch version does not matter.
        let to = oldest.next_towards(&wanted);
        let runs = |spec: &ComponentSpec| {
            find(&spec.version).is_some_and(|runs| runs == to || (to != wanted && runs.minor() >= to.minor()))
        };
        let next = staying.iter().find(|(_, spec)| !runs(spec));
        let step = next.map(|(pod, spec)| {
            let is_first_of_minor = newest.minor() < to.minor();
            let is_first = !staying.iter().any(|(_, spec)| runs(spec));
            let must_work = |(other, found): &&(&PodName, &ComponentSpec)| {
                // All others of its own role must be healthy too, because the component is away during its replacement.
                is_first_of_minor || (*other != *pod && found.role <= spec.role)
            };
            let ill = staying.iter().filter(must_work).find(|(other, spec)| !works(other, spec));
            let blocker = match ill {
                Some((other, _)) => Some(WaitBlocker::Upgrade { version: to, first: other.component.clone() }),
                // Keelway's programs of an earlier release may not know this one.
                None if is_of_keelway(spec.role) && is_behind(tenant.document) => {
                    Some(WaitBlocker::UpgradeAfterKeelway { version: to })
                }
                None => left_behind(tenant, spec.role, (is_first_of_minor.then_some(newest), to))
                    .map(|pod| WaitBlocker::UpgradeAfterRemoval { version: to, leaving: pod.component.clone() })
                    .or_else(|| {
                        is_first_of_minor
                            .then(|| preflight::blocker(tenant, seen, to))
                            .flatten()
                            .map(WaitBlocker::Preflight)
                    })
                    .or_else(|| is_first.then(|| machine_blocker((tenant, world), seen, &staying, to)).flatten()),
            };
            let component = ComponentRef::of(&tenant.cluster.reference, pod);
            UpgradeStep { pod: (*pod).clone(), component, to, blocker }
        });
        let done = staying.iter().filter(|(_, spec)| runs(spec)).count();
        let is_under_way = step.is_some() || recorded.is_some_and(|recorded| recorded != wanted && reached.is_none());
        let blocker = step.as_ref().and_then(|step| step.blocker.as_ref());
        let report = VersionConditions {
            upgrade: is_under_way
                .then(|| upgrading(recorded.unwrap_or(oldest), (to, wanted), (done, staying.len()), blocker)),
            untested: (!wanted.is_tested()).then(|| untested(wanted)),
        };
        Some(Self { cluster: tenant.cluster.reference.clone(), reached, report, step })
    }
}

/// The staying components in the order of their upgrade. The leader of the etcd members is the last of them, if it is known, because each change of
/// the leader delays writes.
pub(crate) fn in_order<'a>(tenant: &Tenant<'a>, seen: &PassObservation) -> Vec<(&'a PodName, &'a ComponentSpec)> {
    let stays = |(_, component): &(&PodName, &Component)| !component.is_leaving();
    let mut staying: Vec<(&PodName, &ComponentSpec)> =
        tenant.components.iter().copied().filter(stays).map(|(pod, component)| (pod, &component.spec)).collect();
    let leader = seen.stores.get(tenant.id).and_then(|store| {
        let leader = store.leader()?;
        let is_leader = |report: &ObservedValue<MemberReport>| report.known().is_some_and(|found| found.id == leader);
        store.members.iter().find(|(_, report)| is_leader(report)).map(|(name, _)| name)
    });
    staying
        .sort_by_key(|(pod, spec)| (spec.role, spec.role == Role::Etcd && leader == Some(&pod.component), spec.index));
    staying
}

/// Returns a component that has to be removed before one of this role runs `to`. One that leaves is not upgraded, and may run until its machine responds.
/// Nothing is newer than what it is upgraded after, and when a minor version begins, nothing is two minor versions older.
fn left_behind<'a>(
    tenant: &Tenant<'a>,
    role: Role,
    (begins_after, to): (Option<Release>, Release),
) -> Option<&'a PodName> {
    let is_older = |component: &Component, than: Release| {
        find(&component.spec.version).is_some_and(|runs| runs.minor() < than.minor())
    };
    let is_left = |(_, component): &&(&PodName, &Component)| {
        let is_before = component.spec.role < role && is_older(component, to);
        component.is_leaving() && (is_before || begins_after.is_some_and(|newest| is_older(component, newest)))
    };
    tenant.components.iter().find(is_left).map(|(pod, _)| *pod)
}

/// What has to happen on a machine before the first component is upgraded: it has the images of all that it runs, and room on its disk. A machine
/// that does not respond is waited for when it is its components' turn.
fn machine_blocker(
    (tenant, world): (&Tenant, &ValidatedDocuments),
    seen: &PassObservation,
    staying: &[(&PodName, &ComponentSpec)],
    version: Release,
) -> Option<WaitBlocker> {
    staying.iter().find_map(|(pod, spec)| {
        let machine = spec.hypervisor.clone();
        let state = seen.machine(&machine).filter(|state| state.prefetches)?;
        if state.disk_pressure {
            return Some(WaitBlocker::UpgradeOnFullDisk { version, machine });
        }
        let images = PodInputs::of(tenant, world, pod, spec)?.next_images();
        let image = images.into_iter().find(|image| !state.has_image(image))?;
        let failure = state.failures.iter().find(|failure| failure.starts_with(&fetch_failure(&image, ""))).cloned();
        Some(WaitBlocker::Prefetch { version, machine, image, failure: failure.unwrap_or_default() })
    })
}

/// Whether a check before the upgrade found something that a person has to correct.
fn has_findings(blocker: &WaitBlocker) -> bool {
    matches!(blocker, WaitBlocker::Preflight(PreflightBlocker::Failed { .. }) | WaitBlocker::UpgradeOnFullDisk { .. })
        || matches!(blocker, WaitBlocker::Prefetch { failure, .. } if !failure.is_empty())
}

/// Whether a program of Keelway reads the release.
fn is_of_keelway(role: Role) -> bool {
    match role {
        Role::ClusterController | Role::FleetController | Role::Ingress | Role::Gateway => true,
        Role::Etcd | Role::KubeApiserver | Role::KubeControllerManager | Role::KubeScheduler => false,
    }
}

/// The conditions of a cluster about its release.
struct VersionConditions {
    upgrade: Option<ConditionValue>,
    untested: Option<ConditionValue>,
}

impl VersionConditions {
    fn record(self, plan: &mut Plan, cluster: &ClusterRef, reached: Option<Release>, now: &Time) {
        let Some(document) = plan.documents.clusters.get(cluster) else { return };
        let conditions = document.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
        let is_reported = [KUBERNETES_UP_TO_DATE, VERSION_TESTED].iter().any(|kind| condition::has(conditions, kind));
        // A document that does not change stays shared.
        if reached.is_none() && !is_reported && self.upgrade.is_none() && self.untested.is_none() {
            return;
        }
        let Some(document) = plan.documents.clusters.get_mut(cluster) else { return };
        let generation = document.metadata.generation;
        let status = document.status.get_or_insert_default();
        if let Some(reached) = reached {
            status.version = Some(reached.to_string());
        }
        condition::set_or_remove(&mut status.conditions, KUBERNETES_UP_TO_DATE, self.upgrade, generation, now);
        condition::set_or_remove(&mut status.conditions, VERSION_TESTED, self.untested, generation, now);
    }
}

fn upgrading(
    from: Release,
    (to, wanted): (Release, Release),
    (done, all): (usize, usize),
    blocker: Option<&WaitBlocker>,
) -> ConditionValue {
    let then = if to == wanted { String::new() } else { format!(" on the way to {wanted}") };
    let waits = blocker.map(|blocker| format!("; the next one waits for {blocker}")).unwrap_or_default();
    let message = format!("from {from} to {to}{then}, one component at a time: {done} of {all} run {to}{waits}");
    let reason = if blocker.is_some_and(has_findings) {
        ConditionReason::PreflightFailed
    } else {
        ConditionReason::UpgradingKubernetes
    };
    verdict(ConditionStatus::False, reason, message)
}

fn untested(wanted: Release) -> ConditionValue {
    let message = format!("this release of Keelway was tested with {} and not with {wanted}", wanted.row.tested);
    verdict(ConditionStatus::False, ConditionReason::UntestedPatch, message)
}

/// Whether a component is healthy, and runs as its document specifies.
pub(crate) fn does_its_work(
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
