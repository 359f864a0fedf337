//! Parses haproxy's reports of its servers: lines of words, and lines of comma-separated values, each below a line of names.

use std::{collections::BTreeMap, net::SocketAddr};

use keelway_api::machine::{ServerAdmin, ServerState};

/// Maintenance that is forced, inherited, from the configuration, from name resolution, or from a name. Such a server gets no connections
/// (`SRV_ADMF_MAINT` of `show servers state`).
const MAINTENANCE: u32 = 0x01 | 0x02 | 0x04 | 0x20 | 0x40;
/// The checks of the server succeed (`SRV_ST_RUNNING`). A server whose checks return errors is being stopped (`SRV_ST_STOPPING`).
const RUNNING: &str = "2";
/// Draining that is forced or inherited (`SRV_ADMF_DRAIN`).
const DRAINS: u32 = 0x08 | 0x10;

/// The row of a backend, after its name.
const BACKEND: &str = "/BACKEND";

/// Combines the responses to `show servers state` and `show stat`.
pub(super) fn servers(states: &str, sessions: &str) -> Result<BTreeMap<String, ServerState>, String> {
    let sessions = self::sessions(sessions)?;
    if !sessions.keys().any(|name| name.ends_with(BACKEND)) {
        return Err("no backend".to_owned());
    }
    let mut rows = states.lines().skip_while(|line| !line.starts_with('#'));
    let names: Vec<&str> = rows.next().ok_or_else(|| unexpected(states))?.split_whitespace().skip(1).collect();
    let mut found = BTreeMap::new();
    for row in rows.filter(|row| !row.is_empty()) {
        let words: Vec<&str> = row.split_whitespace().collect();
        let word = |name: &str| value(&names, &words, name).ok_or_else(|| unexpected(row));
        let server = format!("{}/{}", word("be_name")?, word("srv_name")?);
        let address = word("srv_addr")?.parse().map_err(|_| unexpected(row))?;
        let port = word("srv_port")?.parse().map_err(|_| unexpected(row))?;
        let admin = admin(word("srv_admin_state")?.parse().map_err(|_| unexpected(row))?);
        // A server that was added or removed between the two responses has no connections.
        let sessions = sessions.get(&server).copied().unwrap_or_default();
        let ready = word("srv_op_state")? == RUNNING;
        found.insert(server, ServerState { address: SocketAddr::new(address, port), admin, sessions, ready });
    }
    Ok(found)
}

fn admin(flags: u32) -> ServerAdmin {
    if flags & MAINTENANCE != 0 {
        ServerAdmin::Maintenance
    } else if flags & DRAINS != 0 {
        ServerAdmin::Drains
    } else {
        ServerAdmin::Serves
    }
}

fn sessions(stat: &str) -> Result<BTreeMap<String, u64>, String> {
    let mut rows = stat.lines();
    let header = rows.next().and_then(|row| row.strip_prefix("# ")).ok_or_else(|| unexpected(stat))?;
    let names: Vec<&str> = header.split(',').collect();
    let row = |row: &str| {
        let values: Vec<&str> = row.split(',').collect();
        let of = |name: &str| value(&names, &values, name);
        let count = |name: &str| of(name).and_then(|number| number.parse::<u64>().ok());
        // A queued connection is not established yet, but is assigned to this server.
        Some((format!("{}/{}", of("pxname")?, of("svname")?), count("scur")? + count("qcur").unwrap_or_default()))
    };
    rows.filter(|line| !line.is_empty()).map(|line| row(line).ok_or_else(|| unexpected(line))).collect()
}

fn value<'a>(names: &[&str], values: &[&'a str], name: &str) -> Option<&'a str> {
    values.get(names.iter().position(|found| *found == name)?).copied()
}

/// Returns the beginning of an unexpected response, on one line.
fn unexpected(said: &str) -> String {
    said.lines().next().unwrap_or_default().chars().take(80).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATES: &str = "\
1
# be_id be_name srv_id srv_name srv_addr srv_op_state srv_admin_state srv_uweight srv_port
4 api 1 a 127.0.0.1 2 0 1 19001
4 api 2 b ::1 2 8 1 19002
4 api 3 c 10.0.0.1 0 1 1 19003

";
    const STAT: &str = "\
# pxname,svname,qcur,qmax,scur,status
api,a,0,0,4,UP
api,b,1,0,2,DRAIN
api,BACKEND,0,0,6,UP

";

    #[test]
    fn both_answers_are_put_together() {
        let found = servers(STATES, STAT).unwrap();
        let is = |name: &str, address: &str, admin, sessions, ready| {
            assert_eq!(found[name], ServerState { address: address.parse().unwrap(), admin, sessions, ready });
        };
        is("api/a", "127.0.0.1:19001", ServerAdmin::Serves, 4, true);
        is("api/b", "[::1]:19002", ServerAdmin::Drains, 3, true);
        is("api/c", "10.0.0.1:19003", ServerAdmin::Maintenance, 0, false);
        assert_eq!(found.len(), 3);
    }

    #[test]
    fn a_backend_may_have_no_servers_and_a_haproxy_without_one_is_left_out() {
        let (states, _) = STATES.split_once("4 api").unwrap();
        let (header, _) = STAT.split_once("api,").unwrap();
        assert_eq!(servers(states, &format!("{header}api,BACKEND,0,0,0,UP\n")), Ok(BTreeMap::new()));
        assert_eq!(servers(states, header), Err("no backend".to_owned()));
    }

    #[test]
    fn an_unknown_response_is_an_error() {
        assert!(servers("", STAT).is_err());
        assert!(servers("Unknown command.\n", STAT).is_err());
        assert!(servers(STATES, "Permission denied\n").is_err());
        assert_eq!(servers(&STATES.replace("10.0.0.1", "-"), STAT).unwrap_err(), "4 api 3 c - 0 1 1 19003");
    }
}
