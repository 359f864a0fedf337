//! A control plane as plain processes: etcd, kube-apiserver, kube-controller-manager.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU16, Ordering},
};

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use keelway_cri::testing::cache;
use keelway_pki::{
    Authority, AuthoritySource, CertificateUsage, ClientIdentity, IssuedCertificate, Kubeconfig, KubeconfigCluster,
    LeafRequest, ServiceAccountKey, Validity,
};
use kube::{Client, Config, config::KubeConfigOptions};
use rand::{SeedableRng, rngs::ChaCha8Rng};

use crate::{host::WORK, wait};

/// The release of these programs.
pub(crate) const RELEASE: &str = "1.37.0";

/// The file of the authorities whose client certificates the API server accepts.
pub(crate) const CLIENTS: &str = "clients.crt";
/// The file that configures how the API server authenticates clients.
pub(crate) const AUTHENTICATION: &str = "authentication.json";
/// The log of requests by ServiceAccounts, one in a line.
pub(crate) const AUDIT_LOG: &str = "audit.log";
const AUDIT_POLICY: &str = "
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules: [{level: Metadata, userGroups: ['system:serviceaccounts']}]
";

/// The content that a pass writes to [`AUTHENTICATION`].
pub(crate) const GIVEN: &str = include_str!("../../../lib/planner/src/pod/authentication.json");

/// A running control plane. Its processes end with their host.
pub(crate) struct Plane {
    authority: Authority,
    port: u16,
    processes: Vec<Child>,
    /// The API server, and its arguments.
    api: Option<Child>,
    api_flags: Vec<String>,
}

/// Returns a request for a certificate with this subject.
fn leaf(name: &str, groups: &[&str], usage: CertificateUsage) -> LeafRequest {
    let is_server = usage == CertificateUsage::ServerAuth;
    LeafRequest {
        common_name: name.to_owned(),
        organizations: groups.iter().map(|&group| group.to_owned()).collect(),
        dns_names: if is_server { ["kubernetes", "localhost", name].map(str::to_owned).to_vec() } else { vec![] },
        ip_addresses: if is_server { vec!["127.0.0.1".parse().unwrap()] } else { vec![] },
        usages: vec![usage],
        validity: validity(),
    }
}

fn validity() -> Validity {
    Validity::starting(Timestamp::now(), SignedDuration::from_hours(24)).unwrap()
}

fn random() -> ChaCha8Rng {
    ChaCha8Rng::from_rng(&mut rand::rng())
}

pub(crate) fn path(name: &str) -> PathBuf {
    Path::new(WORK).join(name)
}

pub(crate) fn write(name: &str, content: impl AsRef<[u8]>) -> String {
    let path = path(name);
    fs::write(&path, content).unwrap();
    path.display().to_string()
}

/// Replaces a file in one step.
pub(crate) fn replace(name: &str, content: &str) -> String {
    let next = write(&format!("{name}.next"), content);
    fs::rename(next, path(name)).unwrap();
    path(name).display().to_string()
}

/// Returns a port that no other program on the test's host uses. The kernel assigns none below 32768 by itself, and ingresses use those from
/// 20000 on.
pub(crate) fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(25_000);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Returns the path of a program, unpacked from its image.
fn program(image: &str, name: &str) -> String {
    let image = cache().unwrap().join("images").join(format!("registry.k8s.io_{image}.tar"));
    let unpack = format!("tar -xOf {} layer.tar | tar -xf - -C {WORK} usr/local/bin/{name}", image.display());
    let status = Command::new("sh").args(["-ec", &unpack]).status().unwrap();
    assert!(status.success(), "{} has no {name}: run `make images`", image.display());
    path(&format!("usr/local/bin/{name}")).display().to_string()
}

/// Starts a program, and writes its output to a file.
pub(crate) fn start(name: &str, program: &str, arguments: &[String]) -> Child {
    let log = fs::File::options().create(true).append(true).open(path(&format!("{name}.log"))).unwrap();
    Command::new(program)
        .args(arguments)
        .current_dir(WORK)
        .stdin(Stdio::null())
        .stdout(log.try_clone().unwrap())
        .stderr(log)
        .spawn()
        .unwrap()
}

/// Returns the output of a program.
pub(crate) fn log(name: &str) -> String {
    fs::read_to_string(path(&format!("{name}.log"))).unwrap_or_default()
}

/// Prints the last output of the programs if the test fails.
impl Drop for Plane {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        for entry in
            fs::read_dir(WORK).unwrap().flatten().filter(|entry| entry.path().extension().is_some_and(|e| e == "log"))
        {
            let text = fs::read_to_string(entry.path()).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            println!("-- {}", entry.path().display());
            lines.iter().skip(lines.len().saturating_sub(25)).for_each(|line| println!("{line}"));
        }
    }
}

fn flags(flags: &[(&str, &str)]) -> Vec<String> {
    flags.iter().map(|(name, value)| format!("--{name}={value}")).collect()
}

/// Issues a client certificate for this user and these groups.
pub(crate) fn client_identity(authority: &Authority, user: &str, groups: &[&str]) -> IssuedCertificate {
    authority.issue(&leaf(user, groups, CertificateUsage::ClientAuth), &mut random()).unwrap()
}

impl Plane {
    /// Starts the control plane, and waits until it is ready.
    pub(crate) async fn start() -> Self {
        Self::start_with(&[]).await
    }

    /// The same with more arguments of the API server.
    pub(crate) async fn start_with(arguments: &[(&str, &str)]) -> Self {
        let authority = Authority::mint("kubernetes", validity(), &mut random()).unwrap();
        let accounts = ServiceAccountKey::mint(&mut random()).unwrap();
        let (etcd, peer, port) = (free_port(), free_port(), free_port());
        let mut plane = Self { authority, port, processes: Vec::new(), api: None, api_flags: Vec::new() };
        let server = plane.server_identity("kube-apiserver");
        let ca = write("ca.crt", plane.authority());
        let clients = write(CLIENTS, plane.authority());
        let authentication = write(AUTHENTICATION, GIVEN);
        let audit_policy = write("audit.yaml", AUDIT_POLICY);
        let signer = write("ca.key", plane.authority.key_pem().expose());
        // The authority is in the chain, so that a joining worker can check it against the token.
        let chain = server.certificate_pem.clone() + plane.authority();
        let certificate = write("server.crt", chain);
        let key = write("server.key", server.key_pem.expose());
        let account = write("account.key", accounts.private_pem().expose());
        let account_public = write("account.pub", accounts.public_pem().as_str());
        let etcd_url = format!("http://127.0.0.1:{etcd}");
        let peer_url = format!("http://127.0.0.1:{peer}");
        let store = start(
            "etcd",
            &program("etcd_3.7.0-0", "etcd"),
            &flags(&[
                ("data-dir", &path("etcd").display().to_string()),
                ("listen-client-urls", &etcd_url),
                ("advertise-client-urls", &etcd_url),
                ("listen-peer-urls", &peer_url),
                ("initial-advertise-peer-urls", &peer_url),
                ("initial-cluster", &format!("default={peer_url}")),
                ("unsafe-no-fsync", "true"),
            ]),
        );
        plane.processes.push(store);
        plane.api_flags = flags(&[
            ("etcd-servers", &etcd_url),
            ("bind-address", "127.0.0.1"),
            ("advertise-address", "127.0.0.1"),
            ("secure-port", &port.to_string()),
            ("endpoint-reconciler-type", "none"),
            ("service-cluster-ip-range", "10.96.0.0/16"),
            ("client-ca-file", &clients),
            ("authentication-config", &authentication),
            ("tls-cert-file", &certificate),
            ("tls-private-key-file", &key),
            ("audit-policy-file", &audit_policy),
            ("audit-log-path", &path(AUDIT_LOG).display().to_string()),
            ("authorization-mode", "Node,RBAC"),
            ("enable-admission-plugins", "NodeRestriction"),
            ("enable-bootstrap-token-auth", "true"),
            ("allow-privileged", "true"),
            ("service-account-issuer", "https://kubernetes.default.svc.cluster.local"),
            ("service-account-key-file", &account_public),
            ("service-account-signing-key-file", &account),
            ("requestheader-client-ca-file", &ca),
            ("requestheader-allowed-names", "front-proxy-client"),
            ("requestheader-username-headers", "X-Remote-User"),
            ("requestheader-group-headers", "X-Remote-Group"),
        ]);
        plane.api_flags.extend(flags(arguments));
        let _ = program("kube-apiserver_v1.37.0", "kube-apiserver");
        plane.start_api().await;
        let admin = plane.kubeconfig("admin", &["system:masters"]);
        let controllers = start(
            "kube-controller-manager",
            &program("kube-controller-manager_v1.37.0", "kube-controller-manager"),
            &flags(&[
                ("kubeconfig", &admin),
                ("bind-address", "127.0.0.1"),
                ("secure-port", &free_port().to_string()),
                ("leader-elect", "false"),
                ("allocate-node-cidrs", "true"),
                ("cluster-cidr", "10.244.0.0/16"),
                ("cluster-signing-cert-file", &ca),
                ("cluster-signing-key-file", &signer),
                (
                    "controllers",
                    "certificatesigningrequest-signing-controller,node-ipam-controller,garbage-collector-controller,\
                     namespace-controller,clusterrole-aggregation-controller",
                ),
            ]),
        );
        plane.processes.push(controllers);
        plane
    }

    /// Starts the API server. If it runs already, restarts it, because it reads some files only at its start.
    pub(crate) async fn start_api(&mut self) {
        if let Some(mut running) = self.api.take() {
            running.kill().unwrap();
            running.wait().unwrap();
        }
        let program = path("usr/local/bin/kube-apiserver").display().to_string();
        self.api = Some(start("kube-apiserver", &program, &self.api_flags));
        let client = self.admin().await;
        wait::until("/readyz", async || {
            client.request_text(http::Request::get("/readyz").body(vec![]).unwrap()).await.is_ok()
        })
        .await;
    }

    /// Returns the port of the API server on loopback.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Returns the authority's certificate in PEM.
    pub(crate) fn authority(&self) -> &str {
        self.authority.certificate().pem()
    }

    /// Returns the authority of another cluster.
    pub(crate) fn another_authority() -> Authority {
        Authority::mint("kubernetes", validity(), &mut random()).unwrap()
    }

    /// Issues a server certificate with this name.
    pub(crate) fn server_identity(&self, name: &str) -> IssuedCertificate {
        self.authority.issue(&leaf(name, &[], CertificateUsage::ServerAuth), &mut random()).unwrap()
    }

    /// Writes a kubeconfig with a certificate of this user and these groups. Returns its path.
    pub(crate) fn kubeconfig(&self, user: &str, groups: &[&str]) -> String {
        let identity = client_identity(&self.authority, user, groups);
        let cluster = KubeconfigCluster {
            server: format!("https://127.0.0.1:{}", self.port()),
            authority: AuthoritySource::Embedded(self.authority().to_owned()),
            tls_server_name: Some("kubernetes".to_owned()),
        };
        let builder = Kubeconfig::builder().cluster("test", cluster).user("me", ClientIdentity::Embedded(identity));
        let kubeconfig = builder.context("me", "test", "me").build("me").unwrap();
        write(&format!("{}.kubeconfig", user.replace(':', "-")), kubeconfig.to_yaml().unwrap().as_bytes())
    }

    /// Returns a client as this user of these groups.
    pub(crate) async fn client(&self, user: &str, groups: &[&str]) -> Client {
        client(&self.kubeconfig(user, groups)).await
    }

    /// Returns a client as an administrator.
    pub(crate) async fn admin(&self) -> Client {
        self.client("admin", &["system:masters"]).await
    }

    /// Returns a client as a node.
    pub(crate) async fn node(&self, name: &str) -> Client {
        self.client(&format!("system:node:{name}"), &["system:nodes"]).await
    }

    /// Returns a client with a certificate and its key, both PEM in base64.
    pub(crate) async fn identified(&self, certificate: &str, key: &str) -> Client {
        self.someone(
            "identified",
            &serde_json::json!({
                "client-certificate-data": certificate,
                "client-key-data": key,
            }),
        )
        .await
    }

    /// Returns a client with a bearer token.
    pub(crate) async fn bearer(&self, token: &str) -> Client {
        self.someone("bearer", &serde_json::json!({ "token": token })).await
    }

    /// Returns a client without credentials.
    pub(crate) async fn stranger(&self) -> Client {
        self.someone("stranger", &serde_json::json!({})).await
    }

    async fn someone(&self, file: &str, user: &serde_json::Value) -> Client {
        let kubeconfig = serde_json::json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{ "name": "test", "cluster": {
                "server": format!("https://127.0.0.1:{}", self.port),
                "certificate-authority": path("ca.crt"),
                "tls-server-name": "kubernetes",
            } }],
            "users": [{ "name": "me", "user": user }],
            "contexts": [{ "name": "me", "context": { "cluster": "test", "user": "me" } }],
            "current-context": "me",
        });
        client(&write(&format!("{file}.kubeconfig"), kubeconfig.to_string())).await
    }
}

async fn client(kubeconfig: &str) -> Client {
    let kubeconfig = kube::config::Kubeconfig::read_from(kubeconfig).unwrap();
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
    Client::try_from(config).unwrap()
}
