//! etcd members as processes.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Arc,
};

use jiff::{SignedDuration, Timestamp};
use keelway_cri::testing::cache;
use keelway_etcd_client::{EtcdClient, MemberTls};
use keelway_pki::{Authority, CertificateUsage, IssuedCertificate, LeafRequest, Validity};
use keelway_tls::component::client_from_pem;
use rand::{SeedableRng, rngs::ChaCha8Rng};
use tokio::net::TcpStream;

use crate::host::WORK;

/// The quota of the databases: small, so that a few writes reach it.
pub(crate) const QUOTA: i64 = 8 << 20;

/// The most members.
const MEMBERS: usize = 3;

/// Up to three members, which end with their host.
pub(crate) struct StoreProcesses {
    authority: Authority,
    client: IssuedCertificate,
    running: [Option<Child>; MEMBERS],
}

pub(crate) fn path(name: &str) -> PathBuf {
    Path::new(WORK).join(name)
}

fn write(name: &str, content: &str) -> String {
    let path = path(name);
    fs::write(&path, content).unwrap();
    path.display().to_string()
}

fn random() -> ChaCha8Rng {
    ChaCha8Rng::from_rng(&mut rand::rng())
}

fn validity() -> Validity {
    Validity::starting(Timestamp::now(), SignedDuration::from_hours(24)).unwrap()
}

/// etcd uses the certificate of a member as a server and as a client of its peers.
fn issue(authority: &Authority, name: &str) -> IssuedCertificate {
    let request = LeafRequest {
        common_name: name.to_owned(),
        organizations: vec![],
        dns_names: vec![name.to_owned()],
        ip_addresses: vec!["127.0.0.1".parse().unwrap()],
        usages: vec![CertificateUsage::ServerAuth, CertificateUsage::ClientAuth],
        validity: validity(),
    };
    authority.issue(&request, &mut random()).unwrap()
}

/// Returns the path of etcd, unpacked from its image.
fn etcd() -> PathBuf {
    let image = cache().unwrap().join("images/registry.k8s.io_etcd_3.7.0-0.tar");
    let unpack = format!("tar -xOf {} layer.tar | tar -xf - -C {WORK} usr/local/bin/etcd", image.display());
    let status = Command::new("sh").args(["-ec", &unpack]).status().unwrap();
    assert!(status.success(), "{} has no etcd: run `make images`", image.display());
    path("usr/local/bin/etcd")
}

pub(crate) fn client_port(member: usize) -> u16 {
    [25_000, 25_010, 25_020][member]
}

impl StoreProcesses {
    /// Starts the only member of a new store.
    pub(crate) fn of_one_member() -> Self {
        let mut store = Self::prepare();
        store.start(0, &[0], "new");
        store
    }

    /// Starts the three members of a new store.
    pub(crate) fn of_three_members() -> Self {
        let mut store = Self::prepare();
        for member in 0..MEMBERS {
            store.start(member, &[0, 1, 2], "new");
        }
        store
    }

    fn prepare() -> Self {
        etcd();
        let authority = Authority::mint("etcd", validity(), &mut random()).unwrap();
        let client = issue(&authority, "driver");
        write("ca.crt", authority.certificate().pem());
        write("client.crt", &client.certificate_pem);
        write("client.key", client.key_pem.expose());
        let store = Self { authority, client, running: [const { None }; MEMBERS] };
        for member in 0..MEMBERS {
            let issued = issue(&store.authority, &format!("etcd-{member}"));
            write(&format!("etcd-{member}.crt"), &issued.certificate_pem);
            write(&format!("etcd-{member}.key"), issued.key_pem.expose());
        }
        store
    }

    /// Returns the authority, the client certificate and its key.
    pub(crate) fn identity(&self) -> [String; 3] {
        let (authority, client) = (self.authority.certificate().pem(), &self.client);
        [authority.to_owned(), client.certificate_pem.clone(), client.key_pem.expose().to_owned()]
    }

    #[expect(clippy::unused_self, reason = "the programs have to run meanwhile")]
    pub(crate) fn peer_url(&self, member: usize) -> String {
        format!("https://127.0.0.1:{}", client_port(member) + 1)
    }

    /// Starts a member that was added to the running store.
    pub(crate) fn start_added(&mut self, member: usize) {
        self.start(member, &[0, 1], "existing");
    }

    /// Starts a member that was stopped. It has data, and ignores the arguments of its first start.
    pub(crate) fn start_again(&mut self, member: usize) {
        self.start(member, &[0, 1], "existing");
    }

    /// Kills a member.
    pub(crate) fn stop(&mut self, member: usize) {
        let mut running = self.running[member].take().unwrap();
        running.kill().unwrap();
        running.wait().unwrap();
    }

    fn start(&mut self, member: usize, initial: &[usize], state: &str) {
        let url = format!("https://127.0.0.1:{}", client_port(member));
        let initial_cluster: Vec<_> = initial.iter().map(|of| format!("etcd-{of}={}", self.peer_url(*of))).collect();
        let file = |name: &str| path(name).display().to_string();
        let (certificate, key) = (file(&format!("etcd-{member}.crt")), file(&format!("etcd-{member}.key")));
        let flags = [
            ("name", format!("etcd-{member}")),
            ("data-dir", file(&format!("etcd-{member}"))),
            ("listen-client-urls", url.clone()),
            ("advertise-client-urls", url),
            ("listen-peer-urls", self.peer_url(member)),
            ("initial-advertise-peer-urls", self.peer_url(member)),
            ("initial-cluster", initial_cluster.join(",")),
            ("initial-cluster-state", state.to_owned()),
            ("cert-file", certificate.clone()),
            ("key-file", key.clone()),
            ("trusted-ca-file", file("ca.crt")),
            ("client-cert-auth", "true".to_owned()),
            ("peer-cert-file", certificate),
            ("peer-key-file", key),
            ("peer-trusted-ca-file", file("ca.crt")),
            ("peer-client-cert-auth", "true".to_owned()),
            ("quota-backend-bytes", QUOTA.to_string()),
            ("unsafe-no-fsync", "true".to_owned()),
        ];
        let log = fs::File::options().create(true).append(true).open(path(&format!("etcd-{member}.log"))).unwrap();
        let mut command = Command::new(path("usr/local/bin/etcd"));
        command.args(flags.map(|(name, value)| format!("--{name}={value}")));
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        self.running[member] = Some(command.spawn().unwrap());
    }

    /// Returns a client that shows the client certificate.
    pub(crate) fn client(&self, member: usize) -> EtcdClient {
        self.client_of_name(member, &format!("etcd-{member}"))
    }

    /// Returns a client that expects this name of the server.
    pub(crate) fn client_of_name(&self, member: usize, name: &str) -> EtcdClient {
        let shown = (self.client.certificate_pem.as_bytes(), self.client.key_pem.expose().as_bytes());
        self.client_with(member, name, Some(shown))
    }

    /// Returns a client without a certificate.
    pub(crate) fn stranger(&self, member: usize) -> EtcdClient {
        self.client_with(member, &format!("etcd-{member}"), None)
    }

    fn client_with(&self, member: usize, name: &str, shown: Option<(&[u8], &[u8])>) -> EtcdClient {
        let config = client_from_pem(self.authority.certificate().pem().as_bytes(), shown).unwrap();
        let tls = MemberTls::new(&Arc::new(config), name).unwrap();
        let port = client_port(member);
        EtcdClient::new(tls, move || TcpStream::connect(("127.0.0.1", port)))
    }

    /// Writes a value of this size.
    pub(crate) fn put(&self, member: usize, key: &str, size: usize) -> Result<(), String> {
        let value = write("value", &"x".repeat(size));
        self.etcdctl_with(member, &["put", key], fs::File::open(value).unwrap().into())
    }

    /// Runs etcdctl. The error is its text.
    pub(crate) fn etcdctl(&self, member: usize, arguments: &[&str]) -> Result<(), String> {
        self.etcdctl_with(member, arguments, Stdio::null())
    }

    #[expect(clippy::unused_self, reason = "the programs have to run meanwhile")]
    fn etcdctl_with(&self, member: usize, arguments: &[&str], input: Stdio) -> Result<(), String> {
        let mut command = Command::new(cache().unwrap().join("bin/etcdctl"));
        command.arg(format!("--endpoints=https://127.0.0.1:{}", client_port(member)));
        for (flag, file) in [("cacert", "ca.crt"), ("cert", "client.crt"), ("key", "client.key")] {
            command.arg(format!("--{flag}={}", path(file).display()));
        }
        let ran = command.args(arguments).stdin(input).output().unwrap();
        if ran.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&ran.stderr).into_owned()) }
    }
}

/// Prints the last output of the members if the test fails.
impl Drop for StoreProcesses {
    fn drop(&mut self) {
        for member in (0..MEMBERS).filter(|_| std::thread::panicking()) {
            let text = fs::read_to_string(path(&format!("etcd-{member}.log"))).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            println!("-- etcd-{member}");
            lines.iter().skip(lines.len().saturating_sub(20)).for_each(|line| println!("{line}"));
        }
    }
}
