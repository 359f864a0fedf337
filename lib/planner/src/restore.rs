//! A store that is made from a snapshot: in the same cluster, as a [rebuild](crate::rebuild) from one new member, or as the beginning of a new cluster.
//!
//! The gates, all of which hold before anything of the cluster stops:
//!
//! 1. The driver has opened the snapshot with the key of its cluster, and has verified every page of it. It belongs to the cluster that the request
//!    names, and the documents have the keys that encrypt Secrets in it.
//! 2. It was not taken from a newer Kubernetes or etcd than the cluster runs.
//! 3. A new member has a machine that responds and can restore.
//! 4. The members whose machines do not respond are no majority: they could continue on the other side of a partition.
//!
//! The new member has a name that was never used, and a cluster token of its own, so that no member of before accepts it. Its data is made in one step
//! while it may not start: data that is there is complete. Until then, a person can withdraw the request, and the members of before continue. So they do
//! if that data is lost before an API server served it.

use alloc::{
    collections::BTreeMap,
    format,
    string::{String, ToString},
    vec::Vec,
};

use keelway_api::{
    Documents, Time,
    change::ClusterBirth,
    cluster::{EtcdMember, EtcdStatus, MemberPhase, RemovalReason},
    component::ComponentSpec,
    documents::SecretName,
    hypervisor::LOST_ANNOTATION,
    machine::{Pod, RESTORE_MOUNT, RESTORED_DATA, RESTORED_SNAPSHOT},
    membership::MemberStart,
    name::{ClusterId, ClusterRef, ComponentName, HypervisorName, PodName},
    release,
    restore::{RestoreSpec, SOURCE_ENCRYPTION_KEYS},
    role::Role,
    store_rebuild::{RebuildPhase, RebuildSource, StoreRebuild},
};

use crate::{
    ComponentRef, Decision, PassObservation, StoreOrder, WaitBlocker, WaitKind, WaitSubject, Waiting,
    component_set::{enter, of_role},
    deletion::is_machine_lost,
    etcd_ids,
    fleet::FleetCapacity,
    membership::{StoreContext, change_store, next_index, order, peer_urls, pod, retire, store, wait},
    placement,
    plan::Plan,
    pod::{MissingKey, PodInputs},
    rebuild,
    secret_names::ENCRYPTION,
    store_start::{DATA, STOPPED_IN_REBUILD, machine_that_cannot_stop},
    tenant::Tenant,
    text::joined,
    world::ValidatedDocuments,
};

/// How far the revision of a restored store is ahead of its snapshot, so that it is higher than any revision that a client has seen since.
const BUMP_REVISION: &str = "1000000000";

/// A snapshot that the driver has opened and verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RestorableSnapshot {
    /// The Kubernetes release of its cluster.
    pub kubernetes: String,
    /// The version of the member that sent it.
    pub etcd: String,
    /// The revision of its database.
    pub revision: u64,
}

/// Why a restore does not begin. The text follows "waits for".
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RestoreBlocker {
    /// The snapshot was not read in this pass.
    #[error("the snapshot to be read")]
    Unread,
    /// The snapshot cannot be used.
    #[error("a snapshot that can be used: {0}; nothing is stopped until then; correct spec.etcd.restore, or remove it")]
    Unusable(String),
    /// The snapshot is of a newer program.
    #[error(
        "a snapshot that can be used: {snapshot} was taken from {program} {found}, and the cluster runs {own}; nothing is stopped until then; \
         upgrade the cluster first, or choose another snapshot"
    )]
    Newer {
        /// The snapshot.
        snapshot: String,
        /// Kubernetes or etcd.
        program: &'static str,
        /// Its version in the snapshot.
        found: String,
        /// Its version in the cluster.
        own: String,
    },
    /// The request names another cluster, and this one has a store.
    #[error(
        "spec.etcd.restore.cluster to be removed: this cluster has an etcd already, and only a new cluster can begin with a snapshot of another one"
    )]
    OtherCluster,
    /// A new cluster has no snapshots of its own.
    #[error(
        "spec.etcd.restore.cluster: a new cluster has no snapshots of its own; `keelway cluster inject --from-snapshot` sets it"
    )]
    NoCluster,
    /// The agent of the machine is too old.
    #[error(
        "a newer agent on its machine, which cannot restore snapshots: upgrade keelway-hypervisor-agent; nothing is stopped until then"
    )]
    OldAgent,
    /// A machine of an API server or a member has an agent that is too old.
    #[error(
        "{0} to run an agent of this release, which can stop an etcd member and keep its data; nothing is stopped until then"
    )]
    Agent(HypervisorName),
    /// Members of before may go on where they cannot be stopped.
    #[error(
        "{} to respond: a majority of its etcd members could continue there; bring the machines back, or, if they are lost for good, annotate \
         their Hypervisors with {LOST_ANNOTATION}=true; nothing is stopped until then", joined(.0, ", ")
    )]
    SilentMembers(Vec<HypervisorName>),
    /// The machine was not observed.
    #[error("its machine to respond; nothing is stopped until then")]
    SilentMachine,
    /// The restored data is lost, with its machine or from it.
    #[error(
        "another request: only {0} had the restored data, and it is lost; run `keelway cluster restore` again, or remove \
         spec.etcd.restore, and the earlier members continue with their data"
    )]
    LostData(HypervisorName),
    /// The data of a new cluster is lost before its store served.
    #[error(
        "the deletion of this cluster: only {0} had the data of the snapshot, and it is lost; run `keelway cluster delete`, and begin the \
         cluster again with `keelway cluster inject --from-snapshot`"
    )]
    LostFirstData(HypervisorName),
}

/// Begins the restore that is requested of a created store. Returns whether there is one, so that nothing else is decided about the store.
pub(crate) fn begin(plan: &mut Plan, fleet: &mut FleetCapacity, at: StoreContext<'_>) -> bool {
    let document = plan.documents.clusters.get(&at.cluster.reference);
    let Some(request) = document.and_then(|cluster| cluster.pending_restore()).cloned() else { return false };
    let subject = WaitSubject::Role(at.cluster.reference.clone(), Role::Etcd);
    let blocker = if request.cluster.is_some() {
        Some(RestoreBlocker::OtherCluster)
    } else {
        let unusable = refusal(&plan.documents, &at.cluster.reference, at.id, at.seen, &request);
        unusable.or_else(|| silent_members(&plan.documents, at)).or_else(|| {
            machine_that_cannot_stop(&plan.documents, at.seen, at.id, &STOPPED_IN_REBUILD).map(RestoreBlocker::Agent)
        })
    };
    match blocker {
        Some(blocker) => block(plan, subject, blocker),
        None => begin_with_new_member(plan, fleet, at, &request),
    }
    true
}

/// Gate 4.
fn silent_members(documents: &Documents, at: StoreContext<'_>) -> Option<RestoreBlocker> {
    let machine = |name: &ComponentName| Some(documents.components.get(&pod(at.id, name))?.spec.hypervisor.clone());
    let members = store(documents, at)?.staying_members();
    let members: Vec<HypervisorName> = members.filter_map(|(name, _)| machine(name)).collect();
    let is_silent =
        |machine: &&HypervisorName| at.seen.machine(machine).is_none() && !is_machine_lost(documents, machine);
    let silent: Vec<HypervisorName> = members.iter().filter(is_silent).cloned().collect();
    (silent.len() * 2 > members.len()).then_some(RestoreBlocker::SilentMembers(silent))
}

fn block(plan: &mut Plan, subject: WaitSubject, blocker: RestoreBlocker) {
    let kind = if blocker == RestoreBlocker::Unread { WaitKind::InProgress } else { WaitKind::Blocked };
    plan.waiting.push(Waiting::of_cluster(subject, kind, WaitBlocker::Restore(blocker)));
}

/// Gates 1 and 2.
fn refusal(
    documents: &Documents,
    cluster: &ClusterRef,
    id: &ClusterId,
    seen: &PassObservation,
    request: &RestoreSpec,
) -> Option<RestoreBlocker> {
    let found = match seen.restores.get(id) {
        None => return Some(RestoreBlocker::Unread),
        Some(Err(why)) => return Some(RestoreBlocker::Unusable(why.clone())),
        Some(Ok(found)) => found,
    };
    let own = release::find(&documents.clusters.get(cluster)?.spec.version)?;
    let newer = |program, found: &String, own: &str| {
        (minor(found)? > minor(own)?).then(|| RestoreBlocker::Newer {
            snapshot: request.snapshot.clone(),
            program,
            found: found.clone(),
            own: own.to_string(),
        })
    };
    newer("Kubernetes", &found.kubernetes, &own.to_string()).or_else(|| newer("etcd", &found.etcd, own.row.etcd))
}

/// The first two numbers of a version.
fn minor(version: &str) -> Option<(u32, u32)> {
    let mut numbers = version.trim_start_matches('v').split('.');
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

fn begin_with_new_member(plan: &mut Plan, fleet: &mut FleetCapacity, at: StoreContext<'_>, request: &RestoreSpec) {
    let Some(index) = next_index(plan, at) else { return };
    let Ok(component) = Role::Etcd.component(index) else { return };
    let name = pod(at.id, &component);
    let subject = ComponentRef { cluster: at.cluster.reference.clone(), component: component.clone() };
    let document = match placement::place(&plan.documents, at.world, fleet, at.cluster, (&name, Role::Etcd, index)) {
        Ok(document) => document,
        Err(why) => {
            wait(plan, at, &component, WaitKind::Blocked, WaitBlocker::Placement(why));
            return;
        }
    };
    if let Some(blocker) = unfit_machine(at.seen, &document.spec) {
        block(plan, subject.into(), blocker);
        return;
    }
    let Some(urls) = peer_urls(at.world, &document.spec) else { return };
    enter(plan, fleet, name, document);
    change_store(plan, at, |store| {
        let number = store.rebuilt.as_ref().map_or(1, |last| last.number + 1);
        store.members.insert(component.clone(), first_member(at.id, number, (&component, urls)));
        store.next_index = Some(store.next_index.unwrap_or_default().max(index + 1));
        store.rebuild = Some(rebuild(request, number, component, RebuildPhase::Stopping, Time(at.now)));
    });
    plan.decisions.push(Decision::RestoreStore { component: subject, snapshot: request.snapshot.clone() });
}

/// Gate 3.
fn unfit_machine(seen: &PassObservation, spec: &ComponentSpec) -> Option<RestoreBlocker> {
    match seen.machine(&spec.hypervisor) {
        None => Some(RestoreBlocker::SilentMachine),
        Some(state) => (!state.restores).then_some(RestoreBlocker::OldAgent),
    }
}

fn rebuild(
    request: &RestoreSpec,
    number: u32,
    member: ComponentName,
    phase: RebuildPhase,
    since: Time,
) -> StoreRebuild {
    let source = RebuildSource::Snapshot {
        name: request.snapshot.clone(),
        requested_at: request.requested_at.clone(),
        cluster: request.cluster.clone(),
    };
    StoreRebuild { number, source, member, phase, since, forced_pod: None }
}

/// The member that is made from the snapshot: the only one of its store.
fn first_member(id: &ClusterId, number: u32, (component, urls): (&ComponentName, Vec<String>)) -> EtcdMember {
    let member = etcd_ids::member(&urls, &token(id, number));
    let initial_cluster = BTreeMap::from([(component.clone(), urls)]);
    EtcdMember { started_with: Some(MemberStart { initial_cluster }), ..EtcdMember::pending(format!("{member:x}")) }
}

/// The token of a rebuilt store. Members of an earlier one have another token, and so another cluster id.
fn token(id: &ClusterId, number: u32) -> String {
    format!("{id}-{number}")
}

/// Makes the data of the member. Returns whether it is complete: then the member may start, on this data only.
pub(crate) fn prepare(plan: &mut Plan, at: StoreContext<'_>, rebuild: &StoreRebuild) -> bool {
    let RebuildSource::Snapshot { name: snapshot, .. } = &rebuild.source else { return false };
    let (member, name) = (&rebuild.member, pod(at.id, &rebuild.member));
    let Some(spec) = plan.documents.components.get(&name).map(|component| &component.spec) else { return false };
    let Some(state) = at.seen.machine(&spec.hypervisor) else {
        wait(plan, at, member, WaitKind::Blocked, WaitBlocker::MachineOfComponent);
        return false;
    };
    let data = state.data_of(&name, DATA);
    if data.marked && data.used {
        note_restored(plan, at, member);
        return true;
    }
    if data.marked {
        order(plan, at, member, StoreOrder::Restore { pod: name, snapshot: snapshot.clone() });
    } else {
        wait(plan, at, member, WaitKind::InProgress, WaitBlocker::DataDirectory);
    }
    false
}

/// From now on the member starts on this data only, and its store has the id that it was restored with.
fn note_restored(plan: &mut Plan, at: StoreContext<'_>, member: &ComponentName) {
    change_store(plan, at, |store| {
        let Some(member) = store.members.get_mut(member) else { return };
        member.phase = MemberPhase::Started;
        let id = u64::from_str_radix(&member.id, 16).ok();
        store.cluster_id = id.map(|id| format!("{:x}", etcd_ids::cluster([id])));
    });
}

/// Withdraws a restore whose request was removed or replaced before its data was complete, or after that data was lost. The members of before continue.
/// Returns whether it did.
pub(crate) fn withdraw_unwanted(plan: &mut Plan, at: StoreContext<'_>, rebuild: &StoreRebuild) -> bool {
    if !matches!(rebuild.source, RebuildSource::Snapshot { .. }) {
        return false;
    }
    let Some(cluster) = plan.documents.clusters.get(&at.cluster.reference) else { return false };
    let is_wanted = cluster.spec.etcd.restore.as_ref().is_some_and(|request| request.is_executed_by(&rebuild.source));
    let is_made = rebuild.phase > RebuildPhase::Preparing;
    if is_wanted
        || !has_earlier_members(plan, at, rebuild)
        || (is_made && rebuild::lost_data(&plan.documents, at, rebuild).is_none())
    {
        return false;
    }
    change_store(plan, at, |store| {
        store.rebuild = None;
        if is_made {
            // It was the id of the restored store. Without it, reports are known by the ids of members alone.
            store.cluster_id = None;
        }
    });
    retire(plan, at, &rebuild.member, RemovalReason::MemberRemoved);
    let component = ComponentRef { cluster: at.cluster.reference.clone(), component: rebuild.member.clone() };
    plan.decisions.push(Decision::WithdrawRestore { component });
    true
}

/// Whether there are members besides the one that is made from a snapshot. A new cluster has none.
fn has_earlier_members(plan: &Plan, at: StoreContext<'_>, rebuild: &StoreRebuild) -> bool {
    let mut members = store(&plan.documents, at).into_iter().flat_map(EtcdStatus::staying_members);
    members.any(|(name, _)| *name != rebuild.member)
}

/// Waits for another request if the restored data is lost. Returns whether it is.
pub(crate) fn wait_for_request(plan: &mut Plan, at: StoreContext<'_>, rebuild: &StoreRebuild) -> bool {
    let is_made = matches!(rebuild.source, RebuildSource::Snapshot { .. }) && rebuild.phase > RebuildPhase::Preparing;
    let Some(machine) = rebuild::lost_data(&plan.documents, at, rebuild).filter(|_| is_made) else { return false };
    let blocker =
        if has_earlier_members(plan, at, rebuild) { RestoreBlocker::LostData } else { RestoreBlocker::LostFirstData };
    block(plan, WaitSubject::Role(at.cluster.reference.clone(), Role::Etcd), blocker(machine));
    true
}

/// Copies the keys that encrypt Secrets at rest to each new cluster that begins with a snapshot of another one, before a key of its own is minted.
pub(crate) fn copy_encryption_keys(plan: &mut Plan, world: &ValidatedDocuments) {
    for (name, id, _) in world.reconciled_clusters() {
        let Some(cluster) = plan.documents.clusters.get(name) else { continue };
        let own = SecretName::of(id, ENCRYPTION);
        let is_new = cluster.status.as_ref().is_none_or(|status| status.etcd.is_none());
        let request = cluster.pending_restore().filter(|request| request.cluster.is_some() && is_new);
        let Some(request) = request.filter(|_| !plan.documents.secrets.contains_key(&own)) else { continue };
        let source = cluster.source_keys().filter(|_| request.cluster.is_some());
        let found = source.and_then(|source| plan.documents.user_secrets.get(&source)?.data.as_ref());
        let keys = found.into_iter().flatten();
        let keys =
            keys.filter_map(|(name, key)| Some((name.strip_prefix(SOURCE_ENCRYPTION_KEYS)?.to_string(), key.clone())));
        let keys: Vec<_> = keys.collect();
        if keys.is_empty() {
            continue;
        }
        plan.documents.put_secret_values(&own, keys);
    }
}

/// Records the store of a new cluster that begins with a snapshot. Only its first member is made; the others are added to it.
pub(crate) fn begin_birth(
    plan: &mut Plan,
    (world, seen): (&ValidatedDocuments, &PassObservation),
    (name, id): (&ClusterRef, &ClusterId),
    request: &RestoreSpec,
    now: &Time,
) {
    let no_source = request.cluster.is_none().then_some(RestoreBlocker::NoCluster);
    if let Some(blocker) = no_source.or_else(|| refusal(&plan.documents, name, id, seen, request)) {
        block(plan, WaitSubject::Role(name.clone(), Role::Etcd), blocker);
        return;
    }
    let members = of_role(&plan.documents, id, Role::Etcd).filter(|(_, component)| !component.is_leaving());
    let first = members.min_by_key(|(_, component)| component.spec.index);
    let Some((pod, spec)) = first.map(|(pod, component)| (pod.clone(), component.spec.clone())) else { return };
    if let Some(blocker) = unfit_machine(seen, &spec) {
        block(plan, ComponentRef::of(name, &pod).into(), blocker);
        return;
    }
    let Some(urls) = peer_urls(world, &spec) else { return };
    let Some(document) = plan.documents.clusters.get_mut(name) else { return };
    let birth = ClusterBirth::of(&document.spec);
    let status = document.status.get_or_insert_default();
    status.etcd = Some(first_store((id, &pod.component), urls, request, now));
    status.birth = Some(birth);
    let component = ComponentRef::of(name, &pod);
    plan.decisions.push(Decision::CreateStoreFromSnapshot { component, snapshot: request.snapshot.clone() });
}

fn first_store(
    (id, component): (&ClusterId, &ComponentName),
    urls: Vec<String>,
    request: &RestoreSpec,
    now: &Time,
) -> EtcdStatus {
    let member = first_member(id, 1, (component, urls.clone()));
    EtcdStatus {
        born_at: now.clone(),
        initial_cluster: BTreeMap::from([(component.clone(), urls)]),
        cluster_id: None,
        members: BTreeMap::from([(component.clone(), member)]),
        snapshots: None,
        next_index: None,
        change: None,
        quorum_lost_since: None,
        rebuild: Some(rebuild(request, 1, component.clone(), RebuildPhase::Preparing, now.clone())),
        rebuilt: None,
        space: None,
    }
}

/// The member whose data is being made from a snapshot, so that it may not start yet.
pub(crate) fn made_from_snapshot(store: &EtcdStatus) -> Option<&ComponentName> {
    let rebuild = store.rebuild.as_ref().filter(|rebuild| rebuild.phase <= RebuildPhase::Preparing)?;
    matches!(rebuild.source, RebuildSource::Snapshot { .. }).then_some(&rebuild.member)
}

/// What restores the data of a member: its pod, and the command that runs in a container of the pod's image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DataRestoration {
    /// The name of the pod.
    pub name: PodName,
    /// The pod, which does not start yet.
    pub pod: Pod,
    /// The program and its arguments.
    pub command: Vec<String>,
}

/// Returns what restores the data of the member that is being made from a snapshot.
///
/// # Errors
/// The documents lack something that the pod needs.
pub fn data_restoration(
    documents: &Documents,
    world: &ValidatedDocuments,
    name: &PodName,
) -> Result<DataRestoration, MissingKey> {
    let missing = || MissingKey::new("status.etcd.rebuild");
    let tenant = Tenant::all(documents, world).find(|tenant| *tenant.id == name.cluster).ok_or_else(missing)?;
    let spec = &documents.components.get(name).ok_or_else(missing)?.spec;
    let store = tenant.document.status.as_ref().and_then(|status| status.etcd.as_ref()).ok_or_else(missing)?;
    let urls = store.peer_urls(&name.component).and_then(<[String]>::first).ok_or_else(missing)?;
    let number = store.rebuild.as_ref().map(|rebuild| rebuild.number).ok_or_else(missing)?;
    let command = command(&name.component, urls, &token(&name.cluster, number));
    let pod = PodInputs::of(&tenant, world, name, spec).ok_or_else(missing)?.pod()?;
    Ok(DataRestoration { name: name.clone(), pod, command })
}

fn command(component: &ComponentName, peer_url: &str, token: &str) -> Vec<String> {
    let words = [
        "etcdutl".to_string(),
        "snapshot".to_string(),
        "restore".to_string(),
        format!("{RESTORE_MOUNT}/{RESTORED_SNAPSHOT}"),
        format!("--data-dir={RESTORE_MOUNT}/{RESTORED_DATA}"),
        format!("--name={component}"),
        format!("--initial-cluster={component}={peer_url}"),
        format!("--initial-advertise-peer-urls={peer_url}"),
        format!("--initial-cluster-token={token}"),
        format!("--bump-revision={BUMP_REVISION}"),
        "--mark-compacted".to_string(),
    ];
    words.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_newer_minor_is_newer_and_a_patch_is_not() {
        assert!(minor("v1.38.0") > minor("1.37.4"));
        assert_eq!(minor("3.7.1"), minor("3.7.0-0"));
        assert_eq!(minor("x"), None);
    }
}
