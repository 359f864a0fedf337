//! Changes the servers of a running haproxy to those of the config, without cutting a connection.

use keelway_api::{
    machine::{HaproxyServers, MachineState, ServerAdmin, ServerState},
    name::PodName,
};

use crate::action::{PodAction, ServerChange};

/// A haproxy that does not respond is left alone: it reads its files when it starts, and is observed again.
pub(super) fn plan_servers(name: &PodName, wanted: &HaproxyServers, state: &MachineState) -> Vec<PodAction> {
    let Some(found) = state.servers.get(name) else { return Vec::new() };
    let missing =
        wanted.addresses.iter().filter(|(server, _)| !found.contains_key(*server)).map(|(server, address)| {
            let options = wanted.options.clone();
            change(server, ServerChange::Add { address: *address, options })
        });
    let others = found.iter().filter_map(|(server, found)| Some(change(server, step(server, found, wanted)?)));
    missing.chain(others).collect()
}

/// Returns whether a server that is not in the config stays only for its existing connections.
pub(super) fn waits_for_connections(name: &PodName, wanted: &HaproxyServers, state: &MachineState) -> bool {
    let mut found = state.servers.get(name).into_iter().flatten();
    found.any(|(server, found)| {
        let drains = matches!(found.admin, ServerAdmin::Drains | ServerAdmin::Maintenance);
        drains && found.sessions > 0 && wanted.addresses.get(server) != Some(&found.address)
    })
}

/// A server whose address changed is removed first, and added once it is gone.
fn step(server: &str, found: &ServerState, wanted: &HaproxyServers) -> Option<ServerChange> {
    let is_wanted = wanted.addresses.get(server) == Some(&found.address);
    match (is_wanted, found.admin) {
        (true, ServerAdmin::Serves) => None,
        (true, ServerAdmin::Drains | ServerAdmin::Maintenance) => Some(ServerChange::Enable),
        (false, ServerAdmin::Serves) => Some(ServerChange::Drain),
        (false, ServerAdmin::Drains | ServerAdmin::Maintenance) => {
            (found.sessions == 0).then_some(ServerChange::Remove)
        }
    }
}

fn change(server: &str, change: ServerChange) -> PodAction {
    PodAction::ChangeServer { server: server.to_owned(), change }
}

/// Applies a change to the servers of a simulated haproxy.
#[cfg(any(test, feature = "testing"))]
#[expect(clippy::panic, reason = "it belongs to tests, also if others use it")]
pub(super) fn apply(
    servers: &mut std::collections::BTreeMap<String, ServerState>,
    server: &str,
    change: &ServerChange,
) {
    let found = servers.get_mut(server);
    match (change, found) {
        (ServerChange::Add { address, .. }, None) => {
            let state = ServerState { address: *address, admin: ServerAdmin::Serves, sessions: 0, ready: true };
            servers.insert(server.to_owned(), state);
        }
        (ServerChange::Enable, Some(found)) => found.admin = ServerAdmin::Serves,
        (ServerChange::Drain, Some(found)) => found.admin = ServerAdmin::Drains,
        (ServerChange::Remove, Some(found)) => {
            assert_eq!(found.sessions, 0, "{server} has connections");
            servers.remove(server);
        }
        (change, found) => panic!("{change:?} of {found:?}"),
    }
}
