//! What the members of a store report.

use std::collections::{BTreeMap, BTreeSet};

use futures::future::join_all;
use keelway_api::{machine::ObservedValue, name::ComponentName};
use keelway_etcd_client::{EtcdAlarm, EtcdClient, Member, StatusResponse};
use keelway_planner::{DatabaseSize, ListedMember, MemberAlarm, MemberId, MemberList, MemberReport, StoreObservation};

/// The clients of a store's members. The error: why a member cannot be queried.
pub(crate) type Members = BTreeMap<ComponentName, Result<EtcdClient, String>>;

/// The most members that are queried for the member list. A member that knows a leader responds unless the leader was lost a moment ago.
const MOST_LIST_QUERIES: usize = 2;

/// Queries the status of all members concurrently, and then the member list. Bounded in time by the deadlines of the client.
pub(crate) async fn observe(members: &Members) -> StoreObservation {
    let statuses = statuses(members).await;
    let raised = alarms(statuses.values().filter_map(|status| status.as_ref().ok()));
    let members_seen = reports_of(statuses, &raised);
    let responding: BTreeSet<MemberId> =
        members_seen.values().filter_map(ObservedValue::known).map(|report| report.id).collect();
    let mut other_alarms: BTreeMap<MemberId, BTreeSet<MemberAlarm>> = BTreeMap::new();
    for (id, alarm) in raised.into_iter().filter(|(id, _)| !responding.contains(id)) {
        other_alarms.entry(id).or_default().insert(alarm);
    }
    let mut store = StoreObservation { list: None, members: members_seen, other_alarms };
    store.list = list(members, &store).await;
    store
}

/// Queries the status of all members concurrently. It needs no majority.
pub(crate) async fn reports(members: &Members) -> BTreeMap<ComponentName, ObservedValue<MemberReport>> {
    let statuses = statuses(members).await;
    let raised = alarms(statuses.values().filter_map(|status| status.as_ref().ok()));
    reports_of(statuses, &raised)
}

async fn statuses(members: &Members) -> BTreeMap<ComponentName, Result<StatusResponse, String>> {
    let each = members.iter().map(|(name, client)| async { (name.clone(), status(client).await) });
    join_all(each).await.into_iter().collect()
}

fn reports_of(
    statuses: BTreeMap<ComponentName, Result<StatusResponse, String>>,
    raised: &BTreeSet<(MemberId, MemberAlarm)>,
) -> BTreeMap<ComponentName, ObservedValue<MemberReport>> {
    let report = |status| match status {
        Ok(status) => ObservedValue::Known(member_report(status, raised)),
        Err(why) => ObservedValue::unreachable(why),
    };
    statuses.into_iter().map(|(name, status)| (name, report(status))).collect()
}

async fn status(client: &Result<EtcdClient, String>) -> Result<StatusResponse, String> {
    let client = client.as_ref().map_err(Clone::clone)?;
    client.status().await.map_err(|error| error.to_string())
}

/// Returns the voters that report a leader, the leader first. A member without a leader cannot confirm or change anything.
pub(super) fn working_voters(store: &StoreObservation) -> Vec<(&ComponentName, &MemberReport)> {
    let known = store.members.iter().filter_map(|(name, report)| Some((name, report.known()?)));
    let mut found: Vec<_> = known.filter(|(_, report)| report.leader.is_some() && !report.is_learner).collect();
    found.sort_by_key(|(_, report)| report.leader != Some(report.id));
    found
}

async fn list(members: &Members, store: &StoreObservation) -> Option<MemberList> {
    for (name, _) in working_voters(store).into_iter().take(MOST_LIST_QUERIES) {
        let Some(Ok(client)) = members.get(name) else { continue };
        match client.members().await {
            Ok(response) => return Some(response.members.into_iter().map(listed).collect()),
            Err(error) => tracing::debug!(member = %name, %error, "cannot list the members"),
        }
    }
    None
}

fn listed(member: Member) -> (MemberId, ListedMember) {
    let Member { id, name, peer_ur_ls, is_learner, client_ur_ls: _ } = member;
    (MemberId(id), ListedMember { name, peer_urls: peer_ur_ls.into_iter().collect(), is_learner })
}

/// Returns the alarms that any member reports, with the members that raised them. Each member reports all alarms that it knows.
fn alarms<'a>(statuses: impl Iterator<Item = &'a StatusResponse>) -> BTreeSet<(MemberId, MemberAlarm)> {
    let texts = statuses.flat_map(|status| &status.errors);
    let raised = texts.filter_map(|text| EtcdAlarm::of_status_error(text));
    raised.map(|(id, alarm)| (MemberId(id), member_alarm(alarm))).collect()
}

fn member_alarm(alarm: EtcdAlarm) -> MemberAlarm {
    match alarm {
        EtcdAlarm::NoSpace => MemberAlarm::NoSpace,
        EtcdAlarm::Corrupt => MemberAlarm::Corrupt,
    }
}

fn member_report(status: StatusResponse, raised: &BTreeSet<(MemberId, MemberAlarm)>) -> MemberReport {
    let header = status.header.unwrap_or_default();
    let id = MemberId(header.member_id);
    let is_other = |text: &String| EtcdAlarm::of_status_error(text).is_none();
    MemberReport {
        id,
        cluster_id: MemberId(header.cluster_id),
        leader: (status.leader != 0).then_some(MemberId(status.leader)),
        term: status.raft_term,
        raft_index: status.raft_index,
        applied_index: status.raft_applied_index,
        revision: u64::try_from(header.revision).unwrap_or_default(),
        is_learner: status.is_learner,
        version: status.version,
        database: DatabaseSize {
            size: bytes(status.db_size).unwrap_or_default(),
            in_use: bytes(status.db_size_in_use).unwrap_or_default(),
            quota: bytes(status.db_size_quota),
        },
        alarms: raised.iter().filter(|(of, _)| *of == id).map(|(_, alarm)| *alarm).collect(),
        errors: status.errors.into_iter().filter(is_other).collect(),
    }
}

/// Returns a size; none if the member does not report it.
fn bytes(size: i64) -> Option<u64> {
    u64::try_from(size).ok().filter(|size| *size > 0)
}
