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
    initial_cluster: BTreeMap<ComponentName, Vec<String>>,
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
        Self { held, phase, initial_cluster: initial_cluster(command(held.pod)) }
    }

    /// Why a member does not belong to this store.
    pub(super) fn reason_not_in_store(&self, store: &EtcdStatus) -> Option<UnclearReason> {
        let start = store.members.get(&self.held.name.component).and_then(|member| member.started_with.as_ref());
        let is_same = self.initial_cluster == *start.map_or(&store.initial_cluster, |start| &start.initial_cluster);
        (!is_same).then_some(UnclearReason::OtherMembers)
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

/// The store with which the members were created, or why it cannot be derived. A member that no machine holds may have data, so
/// it starts only on marked data.
pub(super) fn rebuilt(id: &ClusterId, members: &[HeldMember], now: &Time) -> Result<EtcdStatus, UnclearReason> {
    let first = members.first().ok_or(UnclearReason::NoMember)?;
    for member in members {
        let command = command(member.held.pod);
        if flag(command, "initial-cluster-token") != Some(id.as_str()) {
            return Err(UnclearReason::OtherStore(member.held.name.component.clone()));
        }
        if flag(command, "initial-cluster-state") == Some("existing") {
            return Err(UnclearReason::ReplacedMembers);
        }
        if member.initial_cluster != first.initial_cluster
            || !member.initial_cluster.contains_key(&member.held.name.component)
        {
            return Err(UnclearReason::DifferentMembers);
        }
    }
    let mut store = store_creation::store(id, first.initial_cluster.clone(), now);
    let furthest = members.iter().map(|member| member.phase).max().unwrap_or(MemberPhase::Pending);
    for (name, member) in &mut store.members {
        let held = members.iter().find(|held| held.held.name.component == *name);
        member.phase = held.map_or(furthest.max(MemberPhase::Marked), |held| held.phase);
    }
    Ok(store)
}
