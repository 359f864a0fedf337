//! The servers of one backend, and the run-time commands about them.

use std::{
    collections::BTreeMap,
    fmt::Write,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use anyhow::Context;

use super::lines;

/// Flags of `show servers state`: forced maintenance and forced drain.
const MAINTENANCE: u8 = 0x01;
const DRAINS: u8 = 0x08;

pub(super) struct BackendServers {
    backend: String,
    servers: Mutex<BTreeMap<String, BackendServer>>,
}

struct BackendServer {
    address: SocketAddr,
    admin: u8,
    /// Each connection holds one reference.
    sessions: Arc<()>,
}

/// Counts as a connection until it is dropped.
pub(super) struct ServerSession {
    _counted: Arc<()>,
}

impl BackendServers {
    pub(super) fn of(configuration: &str) -> anyhow::Result<Self> {
        // Other backends have no servers.
        let backend = lines(configuration, "backend").last().context("there is no backend")?;
        let backend = (*backend.first().context("the backend has no name")?).to_owned();
        let server = |words: Vec<&str>| {
            let [name, address] = words[..] else { return None };
            Some((name.to_owned(), BackendServer::new(address.parse().ok()?, 0)))
        };
        let servers = lines(configuration, "server").map(|words| server(words).context("a server has no address"));
        Ok(Self { backend, servers: Mutex::new(servers.collect::<anyhow::Result<_>>()?) })
    }

    /// Returns the first server that accepts connections, and adds one connection to it.
    pub(super) fn enter(&self) -> Option<(SocketAddr, ServerSession)> {
        let servers = self.held();
        let server = servers.values().find(|server| server.admin == 0)?;
        Some((server.address, ServerSession { _counted: server.sessions.clone() }))
    }

    pub(super) fn command(&self, command: &str) -> String {
        let words: Vec<&str> = command.split_whitespace().collect();
        let name = words.get(2).and_then(|word| word.strip_prefix(&format!("{}/", self.backend))).unwrap_or_default();
        match words[..] {
            ["show", "servers", "state"] => self.states(),
            ["show", "stat", ..] => self.stat(),
            ["add", "server", _, address, ..] => self.add(name, address),
            ["enable", "health", _] => self.change(name, |_| {}),
            ["set", "server", _, "state", state] => {
                let admin = match state {
                    "maint" => MAINTENANCE,
                    "drain" => DRAINS,
                    _ => 0,
                };
                self.change(name, |server| server.admin = admin)
            }
            ["del", "server", _] => self.delete(name),
            _ => "Unknown command.\n".to_owned(),
        }
    }

    fn states(&self) -> String {
        let mut text = "1\n# be_name srv_name srv_addr srv_op_state srv_admin_state srv_port\n".to_owned();
        for (name, server) in &*self.held() {
            let (address, admin) = (server.address, server.admin);
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{} {name} {} 0 {admin} {}", self.backend, address.ip(), address.port());
        }
        text + "\n"
    }

    fn stat(&self) -> String {
        let mut text = format!("# pxname,svname,qcur,scur\n{},BACKEND,0,0\n", self.backend);
        for (name, server) in &*self.held() {
            let _ = writeln!(text, "{},{name},0,{}", self.backend, Arc::strong_count(&server.sessions) - 1);
        }
        text + "\n"
    }

    fn add(&self, name: &str, address: &str) -> String {
        let Ok(address) = address.parse() else { return "Invalid address.\n".to_owned() };
        let mut servers = self.held();
        if servers.contains_key(name) {
            return "Already exists a server with the same name in backend.\n".to_owned();
        }
        servers.insert(name.to_owned(), BackendServer::new(address, MAINTENANCE));
        "New server registered.\n".to_owned()
    }

    fn change(&self, name: &str, change: impl FnOnce(&mut BackendServer)) -> String {
        match self.held().get_mut(name) {
            Some(server) => {
                change(server);
                "\n".to_owned()
            }
            None => "No such server.\n".to_owned(),
        }
    }

    fn delete(&self, name: &str) -> String {
        let mut servers = self.held();
        match servers.get(name) {
            None => "No such server.\n".to_owned(),
            Some(server) if server.admin & MAINTENANCE == 0 => {
                "Only servers in maintenance mode can be deleted.\n".to_owned()
            }
            Some(server) if Arc::strong_count(&server.sessions) > 1 => {
                "Server still has connections attached to it, cannot remove it.\n".to_owned()
            }
            Some(_) => {
                servers.remove(name);
                "Server deleted.\n".to_owned()
            }
        }
    }

    fn held(&self) -> MutexGuard<'_, BTreeMap<String, BackendServer>> {
        self.servers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl BackendServer {
    fn new(address: SocketAddr, admin: u8) -> Self {
        Self { address, admin, sessions: Arc::new(()) }
    }
}
