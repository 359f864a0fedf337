//! Selects the changes of a machine's state that watchers need.

use keelway_api::machine::{Disk, Figures, MachineState, PortFacts, ServerAdmin};

/// Returns the state without values that change constantly: ports, and the connection counts of servers in service. The sizes of disks and databases
/// keep the last published value if they are about equal.
pub(super) fn to_publish(seen: MachineState, last: Option<&MachineState>) -> MachineState {
    let mut seen = MachineState { ports: PortFacts::default(), ..seen };
    let serving = seen.servers.values_mut().flat_map(|servers| servers.values_mut());
    serving.filter(|server| server.admin == ServerAdmin::Serves).for_each(|server| server.sessions = 0);
    let Some(last) = last else { return seen };
    if Disk::are_about_equal(last.disk, seen.disk) {
        seen.disk = last.disk;
    }
    for (pod, figures) in &mut seen.figures {
        if let Some(before) = last.figures.get(pod).filter(|before| Figures::are_about_equal(before, figures)) {
            *figures = *before;
        }
    }
    seen
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use keelway_api::machine::{ETCD_QUOTA, ServerState};

    use super::*;
    use keelway_machine::converge::model::MachineModel;

    fn state(sessions: u64, admin: ServerAdmin, database_bytes: u64) -> MachineState {
        let pod = "00000000000000c1/ingress-0".parse().unwrap();
        let member = "00000000000000c1/etcd-0".parse().unwrap();
        let server = ServerState { address: "10.0.0.1:6443".parse().unwrap(), admin, sessions, ready: true };
        MachineState {
            servers: BTreeMap::from([(pod, BTreeMap::from([("one".to_owned(), server)]))]),
            figures: BTreeMap::from([(member, Figures { database_bytes: Some(database_bytes), ..Figures::default() })]),
            ..MachineModel::empty().state
        }
    }

    #[test]
    fn clients_and_small_writes_are_none() {
        let last = to_publish(state(3, ServerAdmin::Serves, 1 << 20), None);
        let is_published = |seen| to_publish(seen, Some(&last)) != last;
        assert!(!is_published(state(7, ServerAdmin::Serves, 2 << 20)));
        assert!(is_published(state(7, ServerAdmin::Drains, 2 << 20)));
        assert!(is_published(state(3, ServerAdmin::Serves, ETCD_QUOTA / 2)));
        assert!(is_published(state(3, ServerAdmin::Serves, 16 << 20)), "a small quota is soon reached");
        let last = to_publish(state(3, ServerAdmin::Drains, 1 << 20), None);
        assert!(to_publish(state(2, ServerAdmin::Drains, 1 << 20), Some(&last)) != last);
    }
}
