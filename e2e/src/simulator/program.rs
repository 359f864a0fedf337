//! What a container's program would do, from its command line and its files alone.

use std::{collections::BTreeMap, net::SocketAddr};

use keelway_api::{
    machine::{Container, ServerAdmin, ServerState},
    name::{ClusterId, ComponentName},
};

/// The directory of a pod's files as its containers see it.
const FILES: &str = "/etc/keelway/";

/// A program that runs, as far as others notice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Program {
    Etcd(Member),
    ApiServer { listen: SocketAddr, stores: Vec<SocketAddr> },
    Controller { listen: SocketAddr, server: SocketAddr },
    Proxy { binds: Vec<SocketAddr>, servers: BTreeMap<String, ServerState> },
}

/// A member of a store as its flags say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Member {
    pub(super) cluster: ClusterId,
    pub(super) name: ComponentName,
    pub(super) client: SocketAddr,
    pub(super) peer: SocketAddr,
    /// Where the peers of the initial cluster are, by name.
    pub(super) initial: BTreeMap<ComponentName, SocketAddr>,
}

impl Program {
    /// Reads a command line, and the files that it names; an error is what the program would end with.
    pub(super) fn of(container: &Container, file: impl Fn(&str) -> Option<Vec<u8>>) -> Result<Self, String> {
        let flags = Flags::of(&container.command);
        flags.check_files(&file)?;
        match container.command.first().map(String::as_str) {
            Some("etcd") => flags.etcd(),
            Some("kube-apiserver") => flags.api_server(),
            Some("kube-controller-manager" | "kube-scheduler") => flags.controller(&file),
            Some("haproxy") => {
                let named = container.command.iter().filter_map(|word| word.strip_prefix(FILES));
                proxy(&named.map(|name| text(&file, name)).collect::<Result<Vec<_>, _>>()?.concat())
            }
            other => Err(format!("no such program: {other:?}")),
        }
    }

    /// Where it listens.
    pub(super) fn listens(&self) -> Vec<SocketAddr> {
        match self {
            Self::Etcd(member) => vec![member.client, member.peer],
            Self::ApiServer { listen, .. } | Self::Controller { listen, .. } => vec![*listen],
            Self::Proxy { binds, .. } => binds.clone(),
        }
    }
}

struct Flags<'a>(BTreeMap<&'a str, &'a str>);

impl<'a> Flags<'a> {
    fn of(command: &'a [String]) -> Self {
        Self(command.iter().filter_map(|word| word.strip_prefix("--")?.split_once('=')).collect())
    }

    fn get(&self, name: &str) -> Result<&'a str, String> {
        self.0.get(name).copied().ok_or_else(|| format!("--{name} is missing"))
    }

    /// Every file that is named is read at the start.
    fn check_files(&self, file: &impl Fn(&str) -> Option<Vec<u8>>) -> Result<(), String> {
        let mut named = self.0.values().filter_map(|value| value.strip_prefix(FILES));
        named.try_for_each(|name| file(name).map(|_| ()).ok_or_else(|| format!("open {FILES}{name}: no such file")))
    }

    fn etcd(&self) -> Result<Program, String> {
        let initial = self.get("initial-cluster")?.split(',').map(|pair| {
            let (name, url) = pair.split_once('=').ok_or("initial-cluster")?;
            Ok((name.parse().map_err(|_| "a member's name")?, address(url)?))
        });
        let member = Member {
            cluster: self.get("initial-cluster-token")?.parse().map_err(|_| "initial-cluster-token")?,
            name: self.get("name")?.parse().map_err(|_| "name")?,
            client: address(self.get("listen-client-urls")?)?,
            peer: address(self.get("listen-peer-urls")?)?,
            initial: initial.collect::<Result<_, String>>()?,
        };
        match member.initial.get(&member.name) {
            Some(peer) if *peer == member.peer => Ok(Program::Etcd(member)),
            _ => Err("--initial-cluster does not have this member".to_owned()),
        }
    }

    fn api_server(&self) -> Result<Program, String> {
        let ip = self.get("bind-address")?.parse().map_err(|_| "bind-address")?;
        let port = self.get("secure-port")?.parse().map_err(|_| "secure-port")?;
        let stores = self.get("etcd-servers")?.split(',').map(address);
        Ok(Program::ApiServer { listen: SocketAddr::new(ip, port), stores: stores.collect::<Result<_, _>>()? })
    }

    fn controller(&self, file: &impl Fn(&str) -> Option<Vec<u8>>) -> Result<Program, String> {
        let ip = self.get("bind-address")?.parse().map_err(|_| "bind-address")?;
        let port = self.get("secure-port")?.parse().map_err(|_| "secure-port")?;
        let kubeconfig: serde_json::Value =
            serde_json::from_str(&text(file, "kubeconfig.json")?).map_err(|error| error.to_string())?;
        let server = kubeconfig["clusters"][0]["cluster"]["server"].as_str().ok_or("a kubeconfig without a server")?;
        Ok(Program::Controller { listen: SocketAddr::new(ip, port), server: address(server)? })
    }
}

fn proxy(config: &str) -> Result<Program, String> {
    let mut binds = Vec::new();
    let mut servers = BTreeMap::new();
    let mut backend = "";
    for line in config.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            ["bind", at, ..] if !at.starts_with('/') && !at.starts_with("unix@") => binds.push(address(at)?),
            ["backend", name, ..] => backend = name,
            ["server", name, at, ..] => {
                let state = ServerState { address: address(at)?, admin: ServerAdmin::Serves, sessions: 0 };
                servers.insert(format!("{backend}/{name}"), state);
            }
            _ => {}
        }
    }
    Ok(Program::Proxy { binds, servers })
}

fn text(file: &impl Fn(&str) -> Option<Vec<u8>>, name: &str) -> Result<String, String> {
    let bytes = file(name).ok_or_else(|| format!("open {FILES}{name}: no such file"))?;
    String::from_utf8(bytes).map_err(|_| format!("{name} is no text"))
}

fn address(url: &str) -> Result<SocketAddr, String> {
    let bare = url.split_once("://").map_or(url, |(_, bare)| bare);
    bare.parse().map_err(|_| format!("{url:?} is no address"))
}
