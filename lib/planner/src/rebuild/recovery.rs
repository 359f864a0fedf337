//! Whether a store without quorum may be rebuilt, and from which member.

use alloc::{string::String, vec::Vec};
use core::cmp::Reverse;

use keelway_api::{
    Documents,
    hypervisor::LOST_ANNOTATION,
    jiff::Timestamp,
    name::{ComponentName, HypervisorName},
    store_observation::MemberReport,
    store_rebuild::{EtcdRecovery, QuorumRecovery},
};

use super::quorum::QuorumLoss;
use crate::{
    deletion::is_machine_lost,
    membership::{StoreContext, pod, replaced_at, store},
    store_creation::has_lost_data,
    store_start::{STOPPED_IN_REBUILD, machine_that_cannot_stop},
    text::{joined, listed},
};

/// The disk space that a copy needs besides the database: the segments of the log that etcd keeps, and some room.
const LOG_BYTES: u64 = 512 << 20;

/// The member from whose data a store is rebuilt.
pub(super) struct Survivor {
    pub(super) member: ComponentName,
}

/// Why a store is not rebuilt yet. The text follows the names of the members that do not respond.
#[expect(missing_docs, reason = "the texts state what is missing")]
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RecoveryBlocker {
    #[error(
        "bring their machines back; if they are gone for good, run `keelway cluster recover-quorum --name {cluster} --lost {}`, and \
         the store continues with the data of {survivor}, without writes that only the others stored", joined(.lost, ",")
    )]
    Request { cluster: String, lost: Vec<ComponentName>, survivor: ComponentName },
    #[error(
        "spec.etcd.recoverQuorum says that {0} is lost, and it responds: correct the request, or wait for the others"
    )]
    Responds(ComponentName),
    #[error(
        "spec.etcd.recoverQuorum does not name {}: bring their machines back, or name them in the request if they are gone for good",
        listed(.0.iter())
    )]
    Unnamed(Vec<ComponentName>),
    #[error(
        "{} may serve where Keelway cannot reach them, so spec.etcd.recovery is not enough: if their machines are gone for good, \
         annotate their Hypervisors with {LOST_ANNOTATION}=true",
        listed(.0.iter())
    )]
    MayServe(Vec<ComponentName>),
    #[error("their machines: if they do not respond until {0}, the store is rebuilt (spec.etcd.recovery)")]
    Unreachable(Timestamp),
    #[error("{member} to start: its machine {machine} responds, and it may have newer data than the others")]
    Down { member: ComponentName, machine: HypervisorName },
    #[error("the machine of {0}, from whose data the store is to continue: it was not observed, or lacks the data")]
    Survivor(ComponentName),
    #[error("{0} to run an agent of this release, which can stop an etcd member and copy its data")]
    Agent(HypervisorName),
    #[error("{} MiB on the disk of {machine}: the data of the remaining member is copied first", bytes >> 20)]
    Room { machine: HypervisorName, bytes: u64 },
}

/// How a voter that does not respond is lost.
enum LossEvidence {
    /// Its machine is annotated, its data is gone, or the request names it.
    Known,
    /// Its machine responds, with its data.
    Down(HypervisorName),
    /// Its machine is unreachable, and counts as lost from that time on. None: it was reachable just now.
    Unreachable(Option<Timestamp>),
}

/// Gates 2 to 5.
pub(super) fn survivor(
    documents: &Documents,
    at: StoreContext<'_>,
    loss: &QuorumLoss<'_>,
) -> Result<Survivor, RecoveryBlocker> {
    let request = request(documents, at);
    let mut named = request.into_iter().flat_map(|request| &request.lost);
    if let Some(name) = named.find(|name| loss.responding.contains_key(*name)) {
        return Err(RecoveryBlocker::Responds(name.clone()));
    }
    let (member, report) = newest(loss)?;
    check_losses(documents, at, loss, (request, &member))?;
    check_machines(documents, at, (&member, report))?;
    Ok(Survivor { member })
}

/// Gates 2 and 3.
fn check_losses(
    documents: &Documents,
    at: StoreContext<'_>,
    loss: &QuorumLoss<'_>,
    (request, survivor): (Option<&QuorumRecovery>, &ComponentName),
) -> Result<(), RecoveryBlocker> {
    let is_automatic = documents
        .clusters
        .get(&at.cluster.reference)
        .is_some_and(|cluster| cluster.spec.etcd.recovery == EtcdRecovery::Automatic);
    if request.is_none() && !is_automatic {
        let (cluster, silent) = (at.cluster.reference.name.clone(), loss.silent.iter().cloned().collect());
        return Err(RecoveryBlocker::Request { cluster, lost: silent, survivor: survivor.clone() });
    }
    let mut unreachable = Vec::new();
    for name in &loss.silent {
        match evidence(documents, at, request, name) {
            LossEvidence::Known => {}
            LossEvidence::Down(machine) => return Err(RecoveryBlocker::Down { member: name.clone(), machine }),
            LossEvidence::Unreachable(date) => unreachable.push((name.clone(), date)),
        }
    }
    let names = || unreachable.iter().map(|(name, _)| name.clone()).collect();
    if request.is_some() && !unreachable.is_empty() {
        return Err(RecoveryBlocker::Unnamed(names()));
    }
    if loss.is_majority(unreachable.len()) {
        return Err(RecoveryBlocker::MayServe(names()));
    }
    match unreachable.iter().map(|(_, date)| date.unwrap_or(at.now)).max() {
        Some(date) if date > at.now || unreachable.iter().any(|(_, date)| date.is_none()) => {
            Err(RecoveryBlocker::Unreachable(date))
        }
        _ => Ok(()),
    }
}

/// Gate 4: a request that is older than the recorded loss concerns another one.
fn request<'a>(documents: &'a Documents, at: StoreContext<'_>) -> Option<&'a QuorumRecovery> {
    let since = store(documents, at)?.quorum_lost_since.as_ref()?;
    let request = documents.clusters.get(&at.cluster.reference)?.spec.etcd.recover_quorum.as_ref();
    request.filter(|request| request.requested_at.0 >= since.0)
}

fn evidence(
    documents: &Documents,
    at: StoreContext<'_>,
    request: Option<&QuorumRecovery>,
    name: &ComponentName,
) -> LossEvidence {
    let pod = pod(at.id, name);
    let Some(spec) = documents.components.get(&pod).map(|component| &component.spec) else {
        return LossEvidence::Known;
    };
    let is_named = request.is_some_and(|request| request.lost.contains(name));
    let is_seen = at.seen.machine(&spec.hypervisor).is_some();
    let is_lost = !is_seen && is_machine_lost(documents, &spec.hypervisor);
    if is_named || is_lost || has_lost_data(documents, at.seen, &pod, spec) {
        LossEvidence::Known
    } else if is_seen {
        LossEvidence::Down(spec.hypervisor.clone())
    } else {
        LossEvidence::Unreachable(replaced_at(documents, at, name))
    }
}

/// Gate 5. Of members with the same index, the first.
fn newest<'a>(loss: &QuorumLoss<'a>) -> Result<(ComponentName, &'a MemberReport), RecoveryBlocker> {
    let rank = |(name, report): &(&ComponentName, &&MemberReport)| (report.raft_index, Reverse((*name).clone()));
    let newest = loss.responding.iter().max_by_key(rank).map(|(name, report)| (name.clone(), *report));
    newest.ok_or_else(|| RecoveryBlocker::Unnamed(Vec::new()))
}

/// Gate 5: all machines that are to stop a component can do so, and the survivor's can copy its data.
fn check_machines(
    documents: &Documents,
    at: StoreContext<'_>,
    (member, report): (&ComponentName, &MemberReport),
) -> Result<(), RecoveryBlocker> {
    if let Some(machine) = machine_that_cannot_stop(documents, at.seen, at.id, &STOPPED_IN_REBUILD) {
        return Err(RecoveryBlocker::Agent(machine));
    }
    let pod = pod(at.id, member);
    let spec = documents.components.get(&pod).map(|component| &component.spec);
    let seen = spec.and_then(|spec| Some((spec, at.seen.machine(&spec.hypervisor)?)));
    let seen = seen.filter(|(spec, _)| !has_lost_data(documents, at.seen, &pod, spec));
    let (spec, state) = seen.ok_or_else(|| RecoveryBlocker::Survivor(member.clone()))?;
    let bytes = report.database.size.saturating_add(LOG_BYTES);
    if state.disk.is_some_and(|disk| disk.available_bytes < bytes) {
        return Err(RecoveryBlocker::Room { machine: spec.hypervisor.clone(), bytes });
    }
    Ok(())
}
