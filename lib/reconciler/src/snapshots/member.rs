//! The member that sends its database.

use std::{cmp::Reverse, sync::Arc};

use futures::future::join_all;
use keelway_api::{Documents, name::ClusterId, role::Role};
use keelway_base::error_chain::root_cause;
use keelway_etcd_client::{EtcdAlarm, EtcdClient, MemberTls, StatusResponse};
use keelway_planner::{Probe, probes};

use super::SnapshotError;
use crate::{Machines, dial::DIAL, tls::TlsClients};

/// A member that is ready to send its database.
pub(super) struct SourceMember {
    pub(super) name: String,
    pub(super) version: String,
    pub(super) client: EtcdClient,
}

/// Chooses a healthy follower, so that the leader does not read its whole database: of those that know a leader, the one that applied most. The
/// leader is the second choice. A store without a quorum has no leader, and its members can still be copied.
pub(super) async fn choose(
    (machines, clients): (&Arc<dyn Machines>, &TlsClients),
    documents: &Documents,
    id: &ClusterId,
) -> Result<SourceMember, SnapshotError> {
    let probes = probes(documents).unwrap_or_default();
    let members = probes.iter().filter(|probe| probe.component.cluster == *id && is_etcd(documents, probe));
    let asked = join_all(members.map(|probe| async move {
        let name = probe.component.component.to_string();
        let found = status((machines, clients), documents, probe).await;
        (name, found)
    }));
    let (mut found, mut problems) = (Vec::new(), Vec::new());
    for (name, member) in asked.await {
        match member {
            Ok((client, status)) => found.push((preference(&status), name, client, status)),
            Err(problem) => problems.push(format!("{name}: {problem}")),
        }
    }
    let best = found.into_iter().min_by(|one, other| (&one.0, &one.1).cmp(&(&other.0, &other.1)));
    let none = || if problems.is_empty() { "the cluster has none".to_owned() } else { problems.join("; ") };
    let (_, name, client, status) = best.ok_or_else(|| SnapshotError::NoMember(none()))?;
    Ok(SourceMember { name, version: status.version, client })
}

fn is_etcd(documents: &Documents, probe: &Probe) -> bool {
    documents.components.get(&probe.component).is_some_and(|component| component.spec.role == Role::Etcd)
}

fn preference(status: &StatusResponse) -> (bool, bool, Reverse<u64>) {
    (status.leader == 0, is_leader(status), Reverse(status.raft_applied_index))
}

fn id_of(status: &StatusResponse) -> Option<u64> {
    status.header.as_ref().map(|header| header.member_id)
}

fn is_leader(status: &StatusResponse) -> bool {
    id_of(status) == Some(status.leader)
}

/// Returns the client of a member that can be copied, with its status.
async fn status(
    (machines, clients): (&Arc<dyn Machines>, &TlsClients),
    documents: &Documents,
    probe: &Probe,
) -> Result<(EtcdClient, StatusResponse), String> {
    let client = client((machines, clients), documents, probe).map_err(|error| root_cause(&*error))?;
    let status = client.status().await.map_err(|error| root_cause(&error))?;
    if status.is_learner {
        return Err("it is a learner".to_owned());
    }
    let mut alarms = status.errors.iter().filter_map(|text| EtcdAlarm::of_status_error(text));
    if alarms.any(|(member, alarm)| alarm == EtcdAlarm::Corrupt && Some(member) == id_of(&status)) {
        return Err("it raised the alarm CORRUPT".to_owned());
    }
    Ok((client, status))
}

fn client(
    (machines, clients): (&Arc<dyn Machines>, &TlsClients),
    documents: &Documents,
    probe: &Probe,
) -> Result<EtcdClient, Box<dyn std::error::Error + Send + Sync>> {
    let machine = documents.hypervisors.get(&probe.machine).ok_or("its machine has no document")?.clone();
    let shown = probe.tls.as_ref().ok_or("it has no certificates")?;
    let config = clients.client(documents, &shown.authority, shown.identity.as_ref())?;
    let tls = MemberTls::new(&config, &shown.server_name)?;
    let (machines, address) = (Arc::clone(machines), probe.address);
    Ok(EtcdClient::new(tls, move || {
        let (machines, machine) = (Arc::clone(&machines), machine.clone());
        async move { machines.dial(&machine, address, DIAL).await }
    }))
}
