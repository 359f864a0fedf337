//! The calls.

use std::{future::Future, io, time::Duration};

use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::timeout,
};
use tonic::{Response, Status, transport::Channel};

use crate::{
    EtcdAlarm, EtcdError, MemberTls, SnapshotStream, connect,
    proto::{
        AlarmRequest, CompactionRequest, DefragmentRequest, HashKvRequest, HashKvResponse, Member, MemberAddRequest,
        MemberListRequest, MemberListResponse, MemberPromoteRequest, MemberRemoveRequest, MoveLeaderRequest,
        SnapshotRequest, StatusRequest, StatusResponse, alarm_request::AlarmAction, cluster_client::ClusterClient,
        kv_client::KvClient, maintenance_client::MaintenanceClient,
    },
};

/// The time limit for a query.
const QUERY: Duration = Duration::from_secs(3);
/// The time limit for a change. It is longer than etcd's own limit for a proposal (5 s and two election timeouts), so that its error arrives.
const CHANGE: Duration = Duration::from_secs(10);
/// The time limit for reading or rewriting a whole database. Databases have at most 8 GiB.
const DATABASE: Duration = Duration::from_secs(600);

/// A client of one member. Every call has a deadline. A clone uses the same connection.
#[derive(Debug, Clone)]
pub struct EtcdClient {
    cluster: ClusterClient<Channel>,
    keys: KvClient<Channel>,
    maintenance: MaintenanceClient<Channel>,
}

impl EtcdClient {
    /// Returns the client of a member that `dial` connects to. Does not connect.
    pub fn new<D, F, S>(tls: MemberTls, dial: D) -> Self
    where
        D: Fn() -> F + Send + Sync + 'static,
        F: Future<Output = io::Result<S>> + Send + 'static,
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let channel = connect::channel(tls, dial);
        Self {
            cluster: ClusterClient::new(channel.clone()),
            keys: KvClient::new(channel.clone()),
            maintenance: MaintenanceClient::new(channel),
        }
    }

    /// Returns the members, as the quorum confirms them. A learner refuses this call, and a store without a quorum does not respond.
    pub async fn members(&self) -> Result<MemberListResponse, EtcdError> {
        let request = MemberListRequest { linearizable: true };
        call("MemberList", QUERY, self.cluster.clone().member_list(request)).await
    }

    /// Adds a learner with these peer URLs, and returns it.
    pub async fn add_learner(&self, peer_urls: Vec<String>) -> Result<Member, EtcdError> {
        let request = MemberAddRequest { peer_ur_ls: peer_urls, is_learner: true };
        let added = call("MemberAdd", CHANGE, self.cluster.clone().member_add(request)).await?;
        added.member.ok_or(EtcdError::Incomplete { call: "MemberAdd", part: "member" })
    }

    /// Makes a learner a voter.
    pub async fn promote(&self, id: u64) -> Result<(), EtcdError> {
        let request = MemberPromoteRequest { id };
        call("MemberPromote", CHANGE, self.cluster.clone().member_promote(request)).await.map(drop)
    }

    /// Removes a member.
    pub async fn remove(&self, id: u64) -> Result<(), EtcdError> {
        let request = MemberRemoveRequest { id };
        call("MemberRemove", CHANGE, self.cluster.clone().member_remove(request)).await.map(drop)
    }

    /// Returns what the member knows of itself. It needs no quorum, and a learner responds too.
    pub async fn status(&self) -> Result<StatusResponse, EtcdError> {
        call("Status", QUERY, self.maintenance.clone().status(StatusRequest {})).await
    }

    /// Makes another voter the leader. Only the leader accepts the call.
    pub async fn move_leader(&self, to: u64) -> Result<(), EtcdError> {
        let request = MoveLeaderRequest { target_id: to };
        call("MoveLeader", CHANGE, self.maintenance.clone().move_leader(request)).await.map(drop)
    }

    /// Disarms an alarm that a member raised.
    pub async fn disarm(&self, member: u64, alarm: EtcdAlarm) -> Result<(), EtcdError> {
        let request =
            AlarmRequest { action: AlarmAction::Deactivate.into(), member_id: member, alarm: alarm.wire().into() };
        call("Alarm", CHANGE, self.maintenance.clone().alarm(request)).await.map(drop)
    }

    /// Raises an alarm on behalf of a member; 0 for no certain one. Only tests raise alarms.
    #[cfg(feature = "testing")]
    pub async fn raise(&self, member: u64, alarm: EtcdAlarm) -> Result<(), EtcdError> {
        let request =
            AlarmRequest { action: AlarmAction::Activate.into(), member_id: member, alarm: alarm.wire().into() };
        call("Alarm", CHANGE, self.maintenance.clone().alarm(request)).await.map(drop)
    }

    /// Removes what was overwritten or deleted before a revision, on all members. Responds once this member has done it.
    pub async fn compact(&self, revision: i64) -> Result<(), EtcdError> {
        let request = CompactionRequest { revision, physical: true };
        call("Compact", DATABASE, self.keys.clone().compact(request)).await.map(drop)
    }

    /// Rewrites the member's database without unused space. The member serves no requests meanwhile.
    pub async fn defragment(&self) -> Result<(), EtcdError> {
        call("Defragment", DATABASE, self.maintenance.clone().defragment(DefragmentRequest {})).await.map(drop)
    }

    /// Returns a hash of the member's keys up to a revision; 0 for the current one.
    pub async fn hash(&self, revision: i64) -> Result<HashKvResponse, EtcdError> {
        call("HashKV", DATABASE, self.maintenance.clone().hash_kv(HashKvRequest { revision })).await
    }

    /// Opens a stream of the member's database.
    pub async fn snapshot(&self) -> Result<SnapshotStream, EtcdError> {
        let stream = call("Snapshot", CHANGE, self.maintenance.clone().snapshot(SnapshotRequest {})).await?;
        Ok(SnapshotStream::new(stream))
    }
}

/// Makes one call, within its deadline.
async fn call<T>(
    call: &'static str,
    within: Duration,
    response: impl Future<Output = Result<Response<T>, Status>>,
) -> Result<T, EtcdError> {
    match timeout(within, response).await {
        Ok(Ok(response)) => Ok(response.into_inner()),
        Ok(Err(status)) => Err(EtcdError::status(call, status)),
        Err(_) => Err(EtcdError::TimedOut { call, within }),
    }
}
