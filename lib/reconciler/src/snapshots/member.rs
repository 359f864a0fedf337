//! The member that sends its database.

use std::cmp::Reverse;

use keelway_api::{machine::ObservedValue, name::ComponentName};
use keelway_etcd_client::EtcdClient;
use keelway_planner::{MemberAlarm, MemberReport};

use super::SnapshotError;
use crate::stores::{self, Members};

/// A member that is ready to send its database.
pub(super) struct SourceMember {
    pub(super) name: String,
    pub(super) version: String,
    pub(super) client: EtcdClient,
}

/// Chooses a healthy follower, so that the leader does not read its whole database: of those that know a leader, the one that applied most. The
/// leader is the second choice. A store without a quorum has no leader, and its members can still be copied.
pub(super) async fn choose(members: &Members) -> Result<SourceMember, SnapshotError> {
    let (mut found, mut problems) = (Vec::new(), Vec::new());
    for (name, seen) in stores::reports(members).await {
        match usable(seen) {
            Ok(report) => found.push((preference(&report), name, report)),
            Err(problem) => problems.push(format!("{name}: {problem}")),
        }
    }
    let best = found.into_iter().min_by(|one, other| (&one.0, &one.1).cmp(&(&other.0, &other.1)));
    let source = best.and_then(|(_, name, report)| source_member(members, &name, report));
    let none = || if problems.is_empty() { "the cluster has none".to_owned() } else { problems.join("; ") };
    source.ok_or_else(|| SnapshotError::NoMember(none()))
}

fn source_member(members: &Members, name: &ComponentName, report: MemberReport) -> Option<SourceMember> {
    let client = members.get(name)?.as_ref().ok()?.clone();
    Some(SourceMember { name: name.to_string(), version: report.version, client })
}

fn preference(report: &MemberReport) -> (bool, bool, Reverse<u64>) {
    (report.leader.is_none(), report.leader == Some(report.id), Reverse(report.applied_index))
}

/// Returns the report of a member that can be copied.
fn usable(seen: ObservedValue<MemberReport>) -> Result<MemberReport, String> {
    let report = match seen {
        ObservedValue::Known(report) => report,
        ObservedValue::Unreachable { why, .. } => return Err(why),
    };
    if report.is_learner {
        return Err("it is a learner".to_owned());
    }
    if report.alarms.contains(&MemberAlarm::Corrupt) {
        return Err("it raised the alarm CORRUPT".to_owned());
    }
    Ok(report)
}
