//! Rebuilds the store of a cluster from the members that machines hold.

use alloc::{
    collections::BTreeMap,
    string::{String, ToString},
    vec::Vec,
};

use keelway_api::{
    Time,
    cluster::{EtcdStatus, MemberPhase},
    machine::Start,
    name::{ClusterId, ComponentName},
    role::Role,
};

use super::{
    HeldPod, UnclearReason,
    pod::{command, flag, role_of},
};
use crate::store_creation;

/// A member in the config of a machine.
pub(super) struct HeldMember<'a> {
    pub(super) held: HeldPod<'a>,
    pub(super) phase: MemberPhase,
    /// Whether it was created with the store.
    pub(super) is_first: bool,
    /// The members with which it started.
    pub(super) initial_cluster: BTreeMap<ComponentName, Vec<String>>,
}

impl<'a> HeldMember<'a> {
    /// The members among pods.
    pub(super) fn all(pods: &[HeldPod<'a>]) -> Vec<Self> {
        let is_member = |held: &&HeldPod| role_of(&held.name.component).is_some_and(|(role, _)| role == Role::Etcd);
        pods.iter().filter(is_member).map(|held| Self::of(*held)).collect()
    }

    fn of(held: HeldPod<'a>) -> Self {
        let phase = match held.pod.start {
            Start::OnMarkedData => MemberPhase::Marked,
            Start::OnUsedData | Start::Stopped | Start::Copied(_) => MemberPhase::Started,
            Start::Always | Start::Never | Start::Later => MemberPhase::Pending,
        };
        let command = command(held.pod);
        let is_first = flag(command, "initial-cluster-state") != Some("existing");
        Self { held, phase, is_first, initial_cluster: initial_cluster(command) }
    }

    pub(super) fn name(&self) -> &'a ComponentName {
        &self.held.name.component
    }

    /// The URLs at which its peers reach it.
    pub(super) fn peer_urls(&self) -> &[String] {
        self.initial_cluster.get(self.name()).map(Vec::as_slice).unwrap_or_default()
    }

    /// Whether the store records it, with the same arguments.
    pub(super) fn is_recorded(&self, store: &EtcdStatus) -> bool {
        let recorded = store.members.get(self.name()).filter(|member| !member.is_removed());
        recorded.is_some_and(|member| {
            let start = member.started_with.as_ref().map_or(&store.initial_cluster, |start| &start.initial_cluster);
            self.initial_cluster == *start
        })
    }
}

fn initial_cluster(command: &[String]) -> BTreeMap<ComponentName, Vec<String>> {
    let mut members: BTreeMap<ComponentName, Vec<String>> = BTreeMap::new();
    for member in flag(command, "initial-cluster").unwrap_or_default().split(',') {
        let Some((name, url)) = member.split_once('=') else { continue };
        let Ok(name) = name.parse() else { continue };
        members.entry(name).or_default().push(url.to_string());
    }
    members
}

/// The store with which the members were created, or why it cannot be derived. A member that no machine holds may have data, so it starts only on
/// marked data. If members were added later, the member list has to complete the store.
pub(super) fn rebuilt(
    id: &ClusterId,
    members: &[HeldMember],
    has_list: bool,
    now: &Time,
) -> Result<EtcdStatus, UnclearReason> {
    for member in members {
        if flag(command(member.held.pod), "initial-cluster-token") != Some(id.as_str()) {
            return Err(UnclearReason::OtherStore(member.name().clone()));
        }
    }
    let created: Vec<&HeldMember> = members.iter().filter(|member| member.is_first).collect();
    let first = created.first().copied().or(members.iter().min_by_key(|member| index_of(member.name())));
    let first = first.ok_or(UnclearReason::NoMember)?;
    let differs = |member: &&&HeldMember| {
        member.initial_cluster != first.initial_cluster || !member.initial_cluster.contains_key(member.name())
    };
    if created.iter().any(|member| differs(&member)) {
        return Err(UnclearReason::DifferentMembers);
    }
    if created.len() < members.len() && !has_list {
        return Err(UnclearReason::ReplacedMembers);
    }
    if created.is_empty() {
        return Ok(store_without_first_members(id, first, now));
    }
    let mut store = store_creation::store(id, first.initial_cluster.clone(), now);
    let furthest = members.iter().map(|member| member.phase).max().unwrap_or(MemberPhase::Pending);
    for (name, member) in &mut store.members {
        let held = members.iter().find(|held| held.name() == name);
        member.phase = held.map_or(furthest.max(MemberPhase::Marked), |held| held.phase);
    }
    Ok(store)
}

/// A store whose first members are all gone. Nothing starts with the initial members any more: those with which the earliest member started stand for
/// them.
fn store_without_first_members(id: &ClusterId, earliest: &HeldMember, now: &Time) -> EtcdStatus {
    let mut initial_cluster = earliest.initial_cluster.clone();
    initial_cluster.remove(earliest.name());
    let mut store = store_creation::store(id, initial_cluster, now);
    store.members.clear();
    store.cluster_id = None;
    store
}

/// The number in the name of a member.
pub(super) fn index_of(name: &ComponentName) -> u32 {
    role_of(name).map_or(0, |(_, index)| index)
}
