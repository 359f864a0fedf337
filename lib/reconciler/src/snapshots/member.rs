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

/// Chooses the member that sends its database.
pub(super) async fn choose(members: &Members) -> Result<SourceMember, SnapshotError> {
    let (name, report) = best(stores::reports(members).await)?;
    let client = members.get(&name).and_then(|client| client.as_ref().ok()).cloned();
    let client = client.ok_or_else(|| SnapshotError::NoMember(format!("{name} is not reachable")))?;
    Ok(SourceMember { name: name.to_string(), version: report.version, client })
}

/// Returns a healthy follower, so that the leader does not read its whole database: of those that know a leader, the one that applied most. The
/// leader is the second choice. A store without a quorum has no leader, and its members can still be copied.
fn best(
    reports: impl IntoIterator<Item = (ComponentName, ObservedValue<MemberReport>)>,
) -> Result<(ComponentName, MemberReport), SnapshotError> {
    let (mut found, mut problems) = (Vec::new(), Vec::new());
    for (name, seen) in reports {
        match usable(seen) {
            Ok(report) => found.push((preference(&report), name, report)),
            Err(problem) => problems.push(format!("{name}: {problem}")),
        }
    }
    let best = found.into_iter().min_by(|one, other| (&one.0, &one.1).cmp(&(&other.0, &other.1)));
    let none = || if problems.is_empty() { "the cluster has none".to_owned() } else { problems.join("; ") };
    best.map(|(_, name, report)| (name, report)).ok_or_else(|| SnapshotError::NoMember(none()))
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

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use keelway_planner::{DatabaseSize, MemberId};

    use super::*;

    /// A leader, a follower that applied less, one that applied as much, and a learner.
    fn store() -> BTreeMap<ComponentName, MemberReport> {
        let report = |id: u64, applied_index: u64| MemberReport {
            id: MemberId(id),
            cluster_id: MemberId(9),
            leader: Some(MemberId(0)),
            term: 2,
            raft_index: 100,
            applied_index,
            revision: 50,
            is_learner: id == 3,
            version: "3.7.0".to_owned(),
            database: DatabaseSize::default(),
            alarms: BTreeSet::new(),
            errors: Vec::new(),
        };
        let member = |(id, applied)| (format!("etcd-{id}").parse().unwrap(), report(id, applied));
        [(0, 100), (1, 99), (2, 100), (3, 100)].into_iter().map(member).collect()
    }

    /// Returns the member that is chosen, if these are silent and these are corrupt.
    fn chosen(silent: &[&str], corrupt: &[&str]) -> Result<String, String> {
        let reports = store().into_iter().map(|(name, mut report)| {
            if corrupt.contains(&name.as_str()) {
                report.alarms.insert(MemberAlarm::Corrupt);
            }
            let is_silent = silent.contains(&name.as_str());
            (name, if is_silent { ObservedValue::unreachable("it is silent") } else { ObservedValue::Known(report) })
        });
        best(reports).map(|(name, _)| name.to_string()).map_err(|error| error.to_string())
    }

    #[test]
    fn the_follower_that_applied_most_is_copied_and_the_leader_if_no_other_can_be() {
        assert_eq!(chosen(&[], &[]).as_deref(), Ok("etcd-2"));
        assert_eq!(chosen(&["etcd-2"], &[]).as_deref(), Ok("etcd-1"));
        assert_eq!(chosen(&["etcd-2"], &["etcd-1"]).as_deref(), Ok("etcd-0"));
        let refused = chosen(&["etcd-0", "etcd-2"], &["etcd-1"]).unwrap_err();
        for problem in ["etcd-0: it is silent", "etcd-1: it raised the alarm CORRUPT", "etcd-3: it is a learner"] {
            assert!(refused.contains(problem), "{refused}");
        }
    }
}
