//! Creates stores: all first members at once, recorded before the first start.
//!
//! A member starts for the first time after its machine has marked the data directory and the documents record that the mark was observed.
//! Whatever is lost between two steps, a member without its mark has lost its data.

use alloc::{collections::BTreeMap, format, vec::Vec};

use keelway_api::{
    Cluster, Documents, Time,
    change::ClusterBirth,
    cluster::{EtcdMember, EtcdStatus, Initialization, MemberPhase},
    component::ComponentSpec,
    machine::Start,
    name::{ClusterId, ClusterRef, ComponentName, PodName},
    role::Role,
};

use crate::{
    Decision, PassObservation, WaitBlocker, WaitSubject,
    access::serves,
    etcd_ids,
    membership::peer_urls,
    plan::Plan,
    restore,
    store_start::{DATA, start_of},
    versions,
    world::ValidatedDocuments,
};

/// Records the static initial cluster of each store whose members are all placed, once in a cluster's life.
pub(crate) fn plan_births(plan: &mut Plan, world: &ValidatedDocuments, seen: &PassObservation, now: &Time) {
    for (name, id, cluster) in world.reconciled_clusters() {
        let Some(document) = plan.documents.clusters.get(name) else { continue };
        let born = document.status.as_ref().is_some_and(|status| status.etcd.is_some());
        if born || document.deleted() {
            continue;
        }
        let members: BTreeMap<_, Vec<_>> = plan
            .documents
            .components_of(id)
            .filter(|(_, component)| component.spec.role == Role::Etcd && !component.is_leaving())
            .filter_map(|(pod, component)| Some((pod.component.clone(), peer_urls(world, &component.spec)?)))
            .collect();
        let wanted = document.spec.replicas(Role::Etcd) as usize;
        if members.len() < wanted {
            let missing = wanted - members.len();
            plan.wait_in_progress(
                WaitSubject::Role(name.clone(), Role::Etcd),
                WaitBlocker::UnplacedMembers { missing, wanted },
            );
            continue;
        }
        if let Some(request) = document.pending_restore().cloned() {
            restore::begin_birth(plan, (world, seen), (name, id), &request, now);
            continue;
        }
        plan.decisions.push(Decision::CreateStore { cluster: cluster.reference.clone(), members: members.len() });
        if let Some(document) = plan.documents.clusters.get_mut(name) {
            let birth = ClusterBirth::of(&document.spec);
            let status = document.status.get_or_insert_default();
            status.etcd = Some(store(id, members, now));
            status.birth = Some(birth);
        }
    }
}

/// Records `status.birth` and releases of clusters that an older release of Keelway created, from their current spec.
pub(crate) fn plan_birth_records(plan: &mut Plan) {
    let is_unrecorded = |cluster: &Cluster| {
        cluster.status.as_ref().is_some_and(|status| status.etcd.is_some() && status.birth.is_none())
    };
    let names: Vec<ClusterRef> = plan
        .documents
        .clusters
        .iter()
        .filter(|(_, cluster)| is_unrecorded(cluster))
        .map(|(name, _)| name.clone())
        .collect();
    versions::record_versions(plan, &names);
    for name in names {
        if let Some(document) = plan.documents.clusters.get_mut(&name) {
            let birth = ClusterBirth::of_unrecorded(&document.spec);
            document.status.get_or_insert_default().birth = Some(birth);
        }
    }
}

/// Waits until a person reverts each change that a cluster does not support. Until then the cluster continues as before.
pub(crate) fn wait_for_changes(plan: &mut Plan, world: &ValidatedDocuments) {
    for (name, _, _) in world.reconciled_clusters() {
        let Some(document) = plan.documents.clusters.get(name).filter(|document| !document.deleted()) else { continue };
        for fault in plan.documents.faults_of_change(document) {
            plan.block(name, WaitBlocker::UnsupportedChange(fault));
        }
    }
}

pub(crate) fn store(
    token: &ClusterId,
    initial_cluster: BTreeMap<ComponentName, Vec<alloc::string::String>>,
    now: &Time,
) -> EtcdStatus {
    let ids = initial_cluster.iter().map(|(name, urls)| (name, etcd_ids::member(urls, token.as_str())));
    let ids: BTreeMap<_, _> = ids.collect();
    let member = |id: u64| EtcdMember::pending(format!("{id:x}"));
    EtcdStatus {
        born_at: now.clone(),
        cluster_id: Some(format!("{:x}", etcd_ids::cluster(ids.values().copied()))),
        members: ids.into_iter().map(|(name, id)| (name.clone(), member(id))).collect(),
        initial_cluster,
        snapshots: None,
        next_index: None,
        change: None,
        quorum_lost_since: None,
        rebuild: None,
        rebuilt: None,
        space: None,
    }
}

/// Records the phase of each member: its mark was observed, then it was observed to be working. A store that never served an API server
/// cannot lose anything, so working members are recorded only once an API server was ready.
pub(crate) fn plan_member_phases(plan: &mut Plan, world: &ValidatedDocuments, seen: &PassObservation) {
    for (name, id, _) in world.reconciled_clusters() {
        let is_initialized = plan.documents.clusters.get(name).is_some_and(|cluster| cluster.is_initialized());
        let has_served = is_initialized || serves(&plan.documents, id, seen);
        let components: Vec<(PodName, ComponentSpec)> = plan
            .documents
            .components_of(id)
            .filter(|(_, component)| component.spec.role == Role::Etcd)
            .map(|(pod, component)| (pod.clone(), component.spec.clone()))
            .collect();
        let store = plan.documents.clusters.get_mut(name).and_then(|cluster| cluster.status.as_mut()?.etcd.as_mut());
        let Some(store) = store else { continue };
        let is_made_from_snapshot = restore::made_from_snapshot(store).cloned();
        for (pod, component) in components {
            let Some(member) = store.members.get_mut(&pod.component) else { continue };
            let Some(machine) = seen.machine(&component.hypervisor) else { continue };
            let data = machine.data_of(&pod, DATA);
            if is_made_from_snapshot.as_ref() == Some(&pod.component) {
                continue;
            }
            if member.phase == MemberPhase::Pending && data.marked {
                member.phase = MemberPhase::Marked;
                continue;
            }
            let is_at_work = has_served && data.marked && data.used && seen.healthy(&pod);
            if member.phase == MemberPhase::Marked && is_at_work {
                member.phase = MemberPhase::Started;
            }
        }
    }
}

/// Records that an API server was ready, once in a cluster's life.
pub(crate) fn plan_initialization(plan: &mut Plan, world: &ValidatedDocuments, seen: &PassObservation) {
    for (name, id, _) in world.reconciled_clusters() {
        let documents = &plan.documents;
        if documents.clusters.get(name).is_none_or(|cluster| cluster.is_initialized()) || !serves(documents, id, seen) {
            continue;
        }
        if let Some(document) = plan.documents.clusters.get_mut(name) {
            let initialization = Initialization { control_plane_initialized: true };
            document.status.get_or_insert_default().initialization = Some(initialization);
        }
    }
}

/// Whether a member that may have started has no data on its machine, as observed.
pub(crate) fn has_lost_data(
    documents: &Documents,
    seen: &PassObservation,
    pod: &PodName,
    spec: &ComponentSpec,
) -> bool {
    if spec.role != Role::Etcd {
        return false;
    }
    let cluster = documents.clusters.get(&spec.cluster).map(|cluster| &**cluster);
    let start = start_of(cluster, &pod.component);
    let machine = seen.machine(&spec.hypervisor).filter(|_| start != Start::Never);
    machine.is_some_and(|machine| !machine.data_of(pod, DATA).allows(start))
}
