//! The view of etcd members, as they report themselves.

use std::collections::BTreeMap;

use keelway_api::{
    Documents,
    name::{ClusterId, PodName},
};
use keelway_planner::{MemberReport, StoreObservation, lag};

use super::{TableRow, size};

pub(crate) struct StoreMemberView {
    pub(crate) name: String,
    pub(crate) role: String,
    pub(crate) size: String,
    pub(crate) in_use: String,
    pub(crate) quota: String,
    pub(crate) alarms: String,
    pub(crate) lag: String,
}

impl TableRow for StoreMemberView {
    const HEADER: &'static [&'static str] = &["ETCD MEMBER", "ROLE", "SIZE", "IN USE", "QUOTA", "ALARMS", "LAG"];
    const NARROW: usize = 7;

    fn cells(&self) -> Vec<String> {
        let Self { name, role, size, in_use, quota, alarms, lag } = self;
        [name, role, size, in_use, quota, alarms, lag].map(Clone::clone).into()
    }
}

impl StoreMemberView {
    /// Returns the members of all stores that were observed.
    pub(crate) fn of_all(documents: &Documents, stores: &BTreeMap<ClusterId, StoreObservation>) -> Vec<Self> {
        let members = stores.iter().flat_map(|(id, store)| store.members.keys().map(move |name| (id, store, name)));
        let view = |(id, store, name): (&ClusterId, &StoreObservation, &_)| {
            let pod = PodName { cluster: id.clone(), component: Clone::clone(name) };
            let component = documents.components.get(&pod)?;
            let title = format!("{}/{name}", component.spec.cluster);
            Some(
                store
                    .report(name)
                    .map_or_else(|| Self::silent(&title), |report| Self::of(&title, report, lag(store, name))),
            )
        };
        members.filter_map(view).collect()
    }

    fn of(name: &str, report: &MemberReport, lag: Option<u64>) -> Self {
        let database = report.database;
        let alarms: Vec<String> = report.alarms.iter().map(ToString::to_string).collect();
        Self {
            name: name.to_owned(),
            role: role(report).to_owned(),
            size: size(database.size),
            in_use: size(database.in_use),
            quota: database.quota.map_or_else(|| "<unknown>".to_owned(), size),
            alarms: if alarms.is_empty() { "<none>".to_owned() } else { alarms.join(",") },
            lag: lag.map_or_else(|| "<unknown>".to_owned(), |entries| entries.to_string()),
        }
    }

    /// A member that does not respond. It may work.
    fn silent(name: &str) -> Self {
        let [size, in_use, quota, alarms, lag] = [(); 5].map(|()| "<unknown>".to_owned());
        Self { name: name.to_owned(), role: "<no response>".to_owned(), size, in_use, quota, alarms, lag }
    }
}

fn role(report: &MemberReport) -> &'static str {
    match report.leader {
        _ if report.is_learner => "Learner",
        None => "<no leader>",
        Some(leader) if leader == report.id => "Leader",
        Some(_) => "Follower",
    }
}

#[cfg(test)]
mod tests {
    use keelway_api::machine::ObservedValue;
    use keelway_planner::{DatabaseSize, MemberAlarm, MemberId};

    use super::*;
    use crate::view::table;

    fn report(id: u64, applied_index: u64) -> MemberReport {
        MemberReport {
            id: MemberId(id),
            cluster_id: MemberId(9),
            leader: Some(MemberId(1)),
            term: 2,
            raft_index: 1200,
            applied_index,
            revision: 900,
            is_learner: id == 3,
            version: "3.7.0".to_owned(),
            database: DatabaseSize { size: 20 << 20, in_use: 3 << 20, quota: Some(4 << 30) },
            alarms: if id == 2 { [MemberAlarm::NoSpace].into() } else { [].into() },
            errors: vec![],
        }
    }

    #[test]
    fn members_are_shown_as_they_report_themselves() {
        let documents = keelway_reconciler::testing::world();
        let pod = documents.components.keys().next().unwrap().clone();
        let store = |report| StoreObservation {
            members: [(pod.component.clone(), report)].into(),
            ..StoreObservation::default()
        };
        let shown = |report| {
            let stores = [(pod.cluster.clone(), store(report))].into();
            table(&StoreMemberView::of_all(&documents, &stores), true)
        };
        let row = |text: String| {
            text.lines()
                .nth(1)
                .unwrap()
                .split("   ")
                .map(|cell| cell.trim().to_owned())
                .filter(|cell| !cell.is_empty())
                .collect::<Vec<_>>()
        };
        let leads = row(shown(ObservedValue::Known(report(1, 1200))));
        assert_eq!(leads, ["c1/etcd-0", "Leader", "20Mi", "3072Ki", "4096Mi", "<none>", "0"]);
        let follows = row(shown(ObservedValue::Known(report(2, 1100))));
        assert_eq!(follows, ["c1/etcd-0", "Follower", "20Mi", "3072Ki", "4096Mi", "NOSPACE", "100"]);
        assert_eq!(row(shown(ObservedValue::Known(report(3, 0))))[1], "Learner");
        let silent = row(shown(ObservedValue::unreachable("it is off")));
        assert_eq!(silent[1..3], ["<no response>", "<unknown>"]);
    }
}
