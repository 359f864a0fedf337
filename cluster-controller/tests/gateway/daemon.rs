//! Gateways and egresses as processes without privilege, and their files.

use std::fs;
use std::net::TcpStream;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use jiff::{SignedDuration, Timestamp};
use keelway_pki::{Authority, CertificateUsage, LeafRequest, Validity};
use keelway_vpn::PublicKey;
use rand::SeedableRng;
use rand::rngs::ChaCha8Rng;
use serde_json::{Value, json};

use crate::PATIENCE;
use crate::lan::{Lan, address};
use crate::support::{Namespace, Process, private_text, public_key, wait_until};

/// The user of the programs.
pub(crate) const NOBODY: u32 = 65534;
/// The name in the certificates of gateways.
pub(crate) const GATEWAY_NAME: &str = "gateway.keelway";
/// The name in the certificates of egresses.
pub(crate) const EGRESS_NAME: &str = "keelway:egress";

/// Random numbers for the keys of a test. They are the same in each run.
pub(crate) struct Keys(Mutex<ChaCha8Rng>);

impl Keys {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(ChaCha8Rng::seed_from_u64(7)))
    }

    pub(crate) fn authority(&self) -> Authority {
        Authority::mint("infrastructure", day(), &mut *self.0.lock().unwrap()).unwrap()
    }

    /// Writes the certificate, the key and the trusted authorities of `name` into a folder.
    pub(crate) fn write(&self, folder: &Path, signed_by: &Authority, name: &str, trusts: &[&Authority]) {
        self.write_of(folder, signed_by, (name, &[]), trusts);
    }

    /// Does the same for a certificate with these organizations.
    pub(crate) fn write_of(
        &self,
        folder: &Path,
        signed_by: &Authority,
        (name, organizations): (&str, &[&str]),
        trusts: &[&Authority],
    ) {
        let request = LeafRequest {
            common_name: name.to_owned(),
            organizations: organizations.iter().map(ToString::to_string).collect(),
            dns_names: if name == GATEWAY_NAME { vec![name.to_owned()] } else { Vec::new() },
            ip_addresses: Vec::new(),
            usages: vec![if name == GATEWAY_NAME {
                CertificateUsage::ServerAuth
            } else {
                CertificateUsage::ClientAuth
            }],
            validity: day(),
        };
        let issued = signed_by.issue(&request, &mut *self.0.lock().unwrap()).unwrap();
        let bundle: String = trusts.iter().map(|authority| authority.certificate().pem()).collect();
        replace(&folder.join("ca.crt"), &bundle);
        replace(&folder.join("tls.crt"), &issued.certificate_pem);
        replace(&folder.join("tls.key"), issued.key_pem.expose());
    }
}

fn day() -> Validity {
    Validity::starting(Timestamp::now(), SignedDuration::from_hours(24)).unwrap()
}

/// Replaces a file in one step. The user of the programs can read it.
pub(crate) fn replace(path: &Path, text: &str) {
    let next = path.with_extension("new");
    fs::write(&next, text).unwrap();
    fs::set_permissions(&next, fs::Permissions::from_mode(0o600)).unwrap();
    chown(&next, Some(NOBODY), Some(NOBODY)).unwrap();
    fs::rename(&next, path).unwrap();
}

/// A program with its configuration on a machine.
pub(crate) struct Daemon {
    pub(crate) machine: Namespace,
    pub(crate) folder: PathBuf,
    pub(crate) process: Option<Process>,
    kind: &'static str,
}

impl Daemon {
    fn new(machine: Namespace, kind: &'static str) -> Self {
        let folder = Path::new("/run").join(format!("{kind}-{}", machine.name()));
        fs::create_dir(&folder).unwrap();
        chown(&folder, Some(NOBODY), Some(NOBODY)).unwrap();
        Self { machine, folder, process: None, kind }
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn tls(&self) -> Value {
        json!({
            "certificateFile": self.file("tls.crt"),
            "keyFile": self.file("tls.key"),
            "authorityFile": self.file("ca.crt"),
        })
    }

    pub(crate) fn write(&self, name: &str, content: &Value) {
        replace(&self.file(name), &content.to_string());
    }

    pub(crate) fn process(&mut self) -> &mut Process {
        self.process.as_mut().unwrap()
    }

    /// Starts the program without waiting for it.
    pub(crate) fn spawn(&mut self) {
        let config = self.file("config.json");
        let user = ["--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all", "--bounding-set=-all"];
        let run = [program(), self.kind, "--config", config.to_str().unwrap()];
        let arguments = [&user[..], &run].concat();
        self.process = Some(self.machine.spawn(Path::new("setpriv"), &arguments, &[]));
    }

    /// Starts the program, and waits until it logs that it is up.
    pub(crate) fn start(&mut self) {
        self.spawn();
        let process = self.process.as_mut().unwrap();
        wait_until("the program is up", PATIENCE, || {
            assert!(process.is_running(), "{}", process.log());
            process.log().contains("\"message\":\"up\"")
        });
    }

    /// Returns status and body of a health endpoint.
    pub(crate) fn health(&self, path: &str) -> (u16, String) {
        let path = path.to_owned();
        self.machine.within(move || crate::client::get(TcpStream::connect("127.0.0.1:8080").unwrap(), &path))
    }

    /// Returns the metrics. Only the program's own user may connect to their socket.
    pub(crate) fn metrics(&self) -> String {
        let socket = self.file("metrics.sock");
        assert_eq!(fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(self.health("/metrics").0, 404, "not for everybody on the machine");
        let (status, metrics) = crate::client::get(UnixStream::connect(&socket).unwrap(), "/metrics");
        assert_eq!(status, 200, "{metrics}");
        metrics
    }
}

/// Returns a copy of the program that the user of the programs can read, even if that user cannot read the checkout.
fn program() -> &'static str {
    const COPY: &str = "/run/keelway-cluster-controller";
    if !Path::new(COPY).exists() {
        fs::copy(env!("CARGO_BIN_EXE_keelway-cluster-controller"), COPY).unwrap();
        fs::set_permissions(COPY, fs::Permissions::from_mode(0o755)).unwrap();
    }
    COPY
}

/// A gateway. Number N has the address 100.80.255.N in the VPN.
pub(crate) struct Gateway {
    pub(crate) number: u8,
    pub(crate) daemon: Daemon,
    pub(crate) config: Value,
}

impl Gateway {
    /// Creates a gateway with its files, and does not start it.
    pub(crate) fn new(lan: &Lan, number: u8, keys: &Keys, authority: &Authority) -> Self {
        let daemon = Daemon::new(lan.machine(number), "gateway");
        keys.write(&daemon.folder, authority, GATEWAY_NAME, &[authority]);
        replace(&daemon.file("wireguard.key"), &private_text(number));
        let config = json!({
            "wireGuard": {
                "privateKeyFile": daemon.file("wireguard.key"),
                "listenPort": 31000,
                "addresses": [format!("100.80.255.{number}")],
                "addressCIDRs": ["100.80.0.0/16"],
                "podCIDRs": ["10.244.0.0/16"],
            },
            "peers": {"file": daemon.file("peers.json")},
            "connect": {
                "listen": [format!("{}:20010", address(number))],
                "tls": daemon.tls(),
                "clients": [EGRESS_NAME],
            },
            "health": "127.0.0.1:8080",
            "metrics": daemon.file("metrics.sock"),
        });
        Self { number, daemon, config }
    }

    pub(crate) fn key(&self) -> PublicKey {
        public_key(self.number)
    }

    /// Writes `peers.json` with these workers, as an earlier gateway leaves it.
    pub(crate) fn keep(&self, objects: &[Value]) {
        let peers: Vec<Value> = objects.iter().map(|object| json!({"object": object, "endpoint": null})).collect();
        self.daemon.write("peers.json", &json!({"peers": peers}));
    }

    /// Waits until `peers.json` has the endpoints of these workers. The gateway may write them a second late.
    pub(crate) fn keeps_places(&self, workers: &[u8]) {
        let file = self.daemon.file("peers.json");
        wait_until("their places are on disk", PATIENCE, || {
            let text = fs::read_to_string(&file).unwrap();
            workers.iter().all(|number| text.contains(&format!("{}:51820", address(*number))))
        });
    }

    /// Changes the objects in `peers.json`, and keeps their endpoints.
    pub(crate) fn change_kept(&self, change: impl FnOnce(&mut Vec<Value>)) {
        let text = fs::read(self.daemon.file("peers.json")).unwrap();
        let kept: Value = serde_json::from_slice(&text).unwrap();
        let entries = kept["peers"].as_array().unwrap();
        let seen = |object: &Value| {
            let entry = entries.iter().find(|entry| entry["object"]["name"] == object["name"]);
            json!({"object": object, "endpoint": entry.unwrap()["endpoint"]})
        };
        let mut objects: Vec<Value> = entries.iter().map(|entry| entry["object"].clone()).collect();
        change(&mut objects);
        self.daemon.write("peers.json", &json!({"peers": objects.iter().map(seen).collect::<Vec<_>>()}));
    }

    /// Writes the configuration, and starts the gateway.
    pub(crate) fn start(&mut self) {
        self.daemon.write("config.json", &self.config);
        self.daemon.start();
    }
}

pub(crate) struct Egress {
    pub(crate) daemon: Daemon,
    pub(crate) config: Value,
}

impl Egress {
    /// Creates an egress for the gateways with these numbers, and does not start it.
    pub(crate) fn new(lan: &Lan, number: u8, keys: &Keys, authority: &Authority, gateways: &[u8]) -> Self {
        let daemon = Daemon::new(lan.machine(number), "egress");
        keys.write(&daemon.folder, authority, EGRESS_NAME, &[authority]);
        let gateways = gateways.iter().map(|number| gateway_entry(*number));
        let config = json!({
            "cluster": {
                "socket": daemon.file("cluster.sock"),
                "gateways": gateways.collect::<Vec<_>>(),
                "serverName": GATEWAY_NAME,
                "tls": daemon.tls(),
            },
            "controlPlane": {"socket": daemon.file("controlplane.sock"), "forbiddenCIDRs": ["10.231.0.0/24"]},
            "shutdownGraceSeconds": 1,
            "health": "127.0.0.1:8080",
            "metrics": daemon.file("metrics.sock"),
        });
        Self { daemon, config }
    }

    /// Returns the socket for connections to workers.
    pub(crate) fn cluster(&self) -> PathBuf {
        self.daemon.file("cluster.sock")
    }

    /// Returns the socket for all other connections.
    pub(crate) fn control_plane(&self) -> PathBuf {
        self.daemon.file("controlplane.sock")
    }

    /// Writes the configuration, and starts the egress.
    pub(crate) fn start(&mut self) {
        self.daemon.write("config.json", &self.config);
        self.daemon.start();
    }
}

/// Returns the entry of a gateway in the configuration of an egress.
pub(crate) fn gateway_entry(number: u8) -> Value {
    json!({"name": format!("gateway-{number}"), "address": format!("{}:20010", address(number))})
}
