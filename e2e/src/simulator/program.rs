//! The behaviour of a container's program, determined by its command line and its files alone.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    path::Path,
};

use keelway_api::{
    machine::{Container, ServerAdmin, ServerState},
    name::{ClusterId, ComponentName},
    store_observation::MemberId,
};
use keelway_cluster_controller::{controller::ControllerConfiguration, egress::EgressConfig, gateway::GatewayConfig};

/// The path that only the ingress of a cluster that sleeps has (docs/sleep.md).
const ASLEEP: &str = "/keelway-asleep";
/// The directory of a pod's files, as its containers see it.
const FILES: &str = "/etc/keelway/";

/// The observable behaviour of a running program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum SimulatedProgram {
    Etcd(SimulatedMember),
    ApiServer {
        listen: SocketAddr,
        stores: Vec<SocketAddr>,
    },
    Controller {
        listen: SocketAddr,
        server: SocketAddr,
    },
    Proxy {
        binds: Vec<SocketAddr>,
        servers: BTreeMap<String, ServerState>,
    },
    /// The ingress of a cluster that sleeps, which answers by itself.
    Responder {
        binds: Vec<SocketAddr>,
    },
    /// The cluster-controller, or the fleet-controller. It follows its files, and thereby finds an API server at any address.
    ClusterController {
        health: SocketAddr,
    },
    Gateway {
        connect: SocketAddr,
        health: SocketAddr,
    },
    Egress {
        health: SocketAddr,
    },
}

/// An etcd member, as its flags define it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SimulatedMember {
    pub(super) cluster: ClusterId,
    pub(super) name: ComponentName,
    pub(super) client: SocketAddr,
    pub(super) peer: SocketAddr,
    /// The addresses of the peers of the initial cluster, by name.
    pub(super) initial: BTreeMap<ComponentName, SocketAddr>,
    /// Whether it joins a store that exists.
    pub(super) joins: bool,
    /// Whether it continues as the only member of its store.
    pub(super) is_forced: bool,
    /// The id in its data. `None`: it has no data yet.
    pub(super) id: Option<MemberId>,
}

impl SimulatedMember {
    /// The peer URLs of its initial cluster, by name.
    pub(super) fn initial_urls(&self) -> BTreeMap<ComponentName, Vec<String>> {
        self.initial.iter().map(|(name, peer)| (name.clone(), vec![format!("https://{peer}")])).collect()
    }

    pub(super) fn peer_urls(&self) -> BTreeSet<String> {
        [format!("https://{}", self.peer)].into()
    }
}

impl SimulatedProgram {
    /// Parses a command line and the files that it names. An error is the one with which the program would exit.
    pub(super) fn of(container: &Container, file: impl Fn(&str) -> Option<Vec<u8>>) -> Result<Self, String> {
        let flags = Flags::of(&container.command);
        flags.check_files(&file)?;
        match container.command.first().map(String::as_str) {
            Some("etcd") => flags.etcd(),
            Some("kube-apiserver") => flags.api_server(),
            Some("kube-controller-manager" | "kube-scheduler") => flags.controller(&file),
            Some("haproxy") => {
                let named = container.command.iter().filter_map(|word| word.strip_prefix(FILES));
                let config = named.map(|name| text(&file, name)).collect::<Result<Vec<_>, _>>()?.concat();
                haproxy(&config, &file)
            }
            Some("/keelway-cluster-controller") => own(&container.command, &flags, &file),
            Some("/keelway-fleet-controller") => fleet_controller(&flags, &file),
            other => Err(format!("no such program: {other:?}")),
        }
    }

    /// Returns the addresses on which the program listens.
    pub(super) fn listens(&self) -> Vec<SocketAddr> {
        match self {
            Self::Etcd(member) => vec![member.client, member.peer],
            Self::ApiServer { listen, .. } | Self::Controller { listen, .. } => vec![*listen],
            Self::Proxy { binds, .. } | Self::Responder { binds } => binds.clone(),
            Self::Gateway { connect, health } => vec![*connect, *health],
            Self::Egress { health } | Self::ClusterController { health } => vec![*health],
        }
    }

    /// Returns whether the program answers a health check with this path.
    pub(super) fn has_path(&self, path: &str) -> bool {
        matches!(self, Self::Responder { .. }) == (path == ASLEEP)
    }

    /// Returns whether the program is the main container of its component, and not an auxiliary one.
    pub(super) fn is_main(&self) -> bool {
        !matches!(self, Self::Egress { .. })
    }
}

/// Parses the configuration of a program of Keelway as strictly as the program itself.
fn own(command: &[String], flags: &Flags, file: &impl Fn(&str) -> Option<Vec<u8>>) -> Result<SimulatedProgram, String> {
    let path = flags.get("config")?.strip_prefix(FILES).ok_or("config")?;
    let config = text(file, path)?;
    let named = |path: &Path| {
        let name = path.strip_prefix(FILES).ok().and_then(Path::to_str);
        name.is_none_or(|name| file(name).is_some()).then_some(()).ok_or_else(|| format!("open {}", path.display()))
    };
    match command.get(1).map(String::as_str) {
        Some("gateway") => {
            let GatewayConfig { wire_guard, peers, connect, streams, health, .. } =
                serde_json::from_str(&config).map_err(|error| error.to_string())?;
            let tls = [&connect.tls].into_iter().chain(streams.as_ref().map(|streams| &streams.tls));
            tls.flat_map(|tls| [&tls.certificate_file, &tls.key_file, &tls.authority_file])
                .chain(&peers.kubeconfig)
                .chain([&wire_guard.private_key_file])
                .try_for_each(|path| named(path))?;
            let connect = *connect.listen.first().ok_or("connect.listen")?;
            Ok(SimulatedProgram::Gateway { connect, health })
        }
        Some("egress") => {
            let EgressConfig { cluster, health, .. } =
                serde_json::from_str(&config).map_err(|error| error.to_string())?;
            let tls = [&cluster.tls.certificate_file, &cluster.tls.key_file, &cluster.tls.authority_file];
            tls.into_iter().try_for_each(|path| named(path))?;
            Ok(SimulatedProgram::Egress { health })
        }
        Some("run") => {
            flags.get("identity")?;
            let health = flags.get("health")?.parse().map_err(|_| "health")?;
            let ControllerConfiguration { kubeconfig, authorities, .. } =
                serde_json::from_str(&config).map_err(|error| error.to_string())?;
            [&kubeconfig, &authorities].into_iter().try_for_each(|path| named(path))?;
            server_of(file)?;
            Ok(SimulatedProgram::ClusterController { health })
        }
        other => Err(format!("no such program: {other:?}")),
    }
}

/// Parses the configuration of the fleet-controller.
fn fleet_controller(flags: &Flags, file: &impl Fn(&str) -> Option<Vec<u8>>) -> Result<SimulatedProgram, String> {
    flags.get("identity")?;
    let health = flags.get("health")?.parse().map_err(|_| "health")?;
    let path = flags.get("config")?.strip_prefix(FILES).ok_or("config")?;
    let config: serde_json::Value = serde_json::from_str(&text(file, path)?).map_err(|error| error.to_string())?;
    for field in ["kubeconfig", "authorities"] {
        text(file, config[field].as_str().and_then(|path| path.strip_prefix(FILES)).ok_or(field)?)?;
    }
    config["endpoints"].as_array().ok_or("endpoints")?;
    server_of(file)?;
    Ok(SimulatedProgram::ClusterController { health })
}

/// Returns the API server in the kubeconfig of the program.
fn server_of(file: &impl Fn(&str) -> Option<Vec<u8>>) -> Result<SocketAddr, String> {
    let kubeconfig: serde_json::Value =
        serde_json::from_str(&text(file, "kubeconfig.json")?).map_err(|error| error.to_string())?;
    address(kubeconfig["clusters"][0]["cluster"]["server"].as_str().ok_or("a kubeconfig without a server")?)
}

struct Flags<'a>(BTreeMap<&'a str, &'a str>);

impl<'a> Flags<'a> {
    fn of(command: &'a [String]) -> Self {
        Self(command.iter().filter_map(|word| word.strip_prefix("--")?.split_once('=')).collect())
    }

    fn get(&self, name: &str) -> Result<&'a str, String> {
        self.0.get(name).copied().ok_or_else(|| format!("--{name} is missing"))
    }

    /// The program reads every named file at the start, so each must exist.
    fn check_files(&self, file: &impl Fn(&str) -> Option<Vec<u8>>) -> Result<(), String> {
        let mut named = self.0.values().filter_map(|value| value.strip_prefix(FILES));
        named.try_for_each(|name| file(name).map(|_| ()).ok_or_else(|| format!("open {FILES}{name}: no such file")))
    }

    fn etcd(&self) -> Result<SimulatedProgram, String> {
        let initial = self.get("initial-cluster")?.split(',').map(|pair| {
            let (name, url) = pair.split_once('=').ok_or("initial-cluster")?;
            Ok((name.parse().map_err(|_| "a member's name")?, address(url)?))
        });
        let member = SimulatedMember {
            cluster: self.get("initial-cluster-token")?.parse().map_err(|_| "initial-cluster-token")?,
            name: self.get("name")?.parse().map_err(|_| "name")?,
            client: address(self.get("listen-client-urls")?)?,
            peer: address(self.get("listen-peer-urls")?)?,
            initial: initial.collect::<Result<_, String>>()?,
            joins: self.get("initial-cluster-state").is_ok_and(|state| state == "existing"),
            is_forced: self.get("force-new-cluster").is_ok_and(|value| value == "true"),
            id: None,
        };
        match member.initial.get(&member.name) {
            Some(peer) if *peer == member.peer => Ok(SimulatedProgram::Etcd(member)),
            _ => Err("--initial-cluster does not have this member".to_owned()),
        }
    }

    fn api_server(&self) -> Result<SimulatedProgram, String> {
        let ip = self.get("bind-address")?.parse().map_err(|_| "bind-address")?;
        let port = self.get("secure-port")?.parse().map_err(|_| "secure-port")?;
        let stores = self.get("etcd-servers")?.split(',').map(address);
        Ok(SimulatedProgram::ApiServer { listen: SocketAddr::new(ip, port), stores: stores.collect::<Result<_, _>>()? })
    }

    fn controller(&self, file: &impl Fn(&str) -> Option<Vec<u8>>) -> Result<SimulatedProgram, String> {
        let ip = self.get("bind-address")?.parse().map_err(|_| "bind-address")?;
        let port = self.get("secure-port")?.parse().map_err(|_| "secure-port")?;
        Ok(SimulatedProgram::Controller { listen: SocketAddr::new(ip, port), server: server_of(file)? })
    }
}

fn haproxy(config: &str, file: &impl Fn(&str) -> Option<Vec<u8>>) -> Result<SimulatedProgram, String> {
    let mut binds = Vec::new();
    let mut servers = BTreeMap::new();
    let mut backend = "";
    let mut answers = false;
    for line in config.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let named = words.iter().skip_while(|word| **word != "crt").nth(1).and_then(|path| path.strip_prefix(FILES));
        if let Some(certificate) = named {
            text(file, certificate)?;
            text(file, &certificate.replace(".crt", ".key"))?;
        }
        answers |= words.contains(&ASLEEP);
        match words.as_slice() {
            ["bind", at, ..] if !at.starts_with('/') && !at.starts_with("unix@") => binds.push(address(at)?),
            ["backend", name, ..] => backend = name,
            ["server", name, at, ..] => {
                let state =
                    ServerState { address: address(at)?, admin: ServerAdmin::Serves, sessions: 0, ready: false };
                servers.insert(format!("{backend}/{name}"), state);
            }
            _ => {}
        }
    }
    if answers {
        return Ok(SimulatedProgram::Responder { binds });
    }
    Ok(SimulatedProgram::Proxy { binds, servers })
}

fn text(file: &impl Fn(&str) -> Option<Vec<u8>>, name: &str) -> Result<String, String> {
    let bytes = file(name).ok_or_else(|| format!("open {FILES}{name}: no such file"))?;
    String::from_utf8(bytes).map_err(|_| format!("{name} is no text"))
}

fn address(url: &str) -> Result<SocketAddr, String> {
    let bare = url.split_once("://").map_or(url, |(_, bare)| bare);
    bare.parse().map_err(|_| format!("{url:?} is no address"))
}
