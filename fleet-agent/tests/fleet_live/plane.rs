//! A control plane as plain processes: etcd and kube-apiserver, and for the fleet a kube-controller-manager that signs.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU16, Ordering},
};

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use keelway_cri::testing::cache;
use keelway_pki::{
    Authority, AuthoritySource, CertificateUsage, ClientIdentity, Kubeconfig, KubeconfigCluster, LeafRequest,
    ServiceAccountKey, Validity,
};
use kube::{Client, Config, config::KubeConfigOptions};
use rand::{SeedableRng, rngs::ChaCha8Rng};

use crate::{SIGNED, host::WORK, wait};

/// A running control plane. Its processes end with it.
pub(crate) struct Plane {
    name: &'static str,
    authority: Authority,
    port: u16,
    others: Vec<Child>,
    api: Option<Child>,
    api_flags: Vec<String>,
}

fn validity() -> Validity {
    Validity::starting(Timestamp::now(), SignedDuration::from_hours(24)).unwrap()
}

fn random() -> ChaCha8Rng {
    ChaCha8Rng::from_rng(&mut rand::rng())
}

fn leaf(name: &str, groups: &[&str], usage: CertificateUsage) -> LeafRequest {
    let is_server = usage == CertificateUsage::ServerAuth;
    LeafRequest {
        common_name: name.to_owned(),
        organizations: groups.iter().map(|&group| group.to_owned()).collect(),
        dns_names: if is_server { ["kubernetes", "localhost"].map(str::to_owned).to_vec() } else { vec![] },
        ip_addresses: if is_server { vec!["127.0.0.1".parse().unwrap()] } else { vec![] },
        usages: vec![usage],
        validity: validity(),
    }
}

/// Returns a port that no other program on the test's host uses.
pub(crate) fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(25_000);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

pub(crate) fn path(name: &str) -> PathBuf {
    Path::new(WORK).join(name)
}

pub(crate) fn write(name: &str, content: impl AsRef<[u8]>) -> String {
    fs::write(path(name), content).unwrap();
    path(name).display().to_string()
}

/// Unpacks a program from its image. Returns its path.
fn program(image: &str, name: &str) -> String {
    let unpacked = path(&format!("usr/local/bin/{name}"));
    if !unpacked.exists() {
        let image = cache().unwrap().join("images").join(format!("registry.k8s.io_{image}.tar"));
        let unpack = format!("tar -xOf {} layer.tar | tar -xf - -C {WORK} usr/local/bin/{name}", image.display());
        let status = Command::new("sh").args(["-ec", &unpack]).status().unwrap();
        assert!(status.success(), "{} has no {name}: run `make images`", image.display());
    }
    unpacked.display().to_string()
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

/// Ends the programs, and prints their last output if the test fails.
impl Drop for Plane {
    fn drop(&mut self) {
        for program in self.others.iter_mut().chain(&mut self.api) {
            // One that has ended already is fine.
            let _ = program.kill();
            let _ = program.wait();
        }
        if !std::thread::panicking() {
            return;
        }
        for entry in fs::read_dir(WORK).unwrap().flatten() {
            let file = entry.path();
            let is_own = file.file_name().and_then(|name| name.to_str()).is_some_and(|name| {
                Path::new(name).extension().is_some_and(|extension| extension == "log")
                    && !name.contains("etcd")
                    && (name.starts_with(self.name) || name.starts_with("agent"))
            });
            if is_own {
                let text = fs::read_to_string(&file).unwrap_or_default();
                let lines: Vec<&str> = text.lines().collect();
                println!("-- {}", file.display());
                lines.iter().skip(lines.len().saturating_sub(25)).for_each(|line| println!("{line}"));
            }
        }
    }
}

fn flags(flags: &[(&str, &str)]) -> Vec<String> {
    flags.iter().map(|(name, value)| format!("--{name}={value}")).collect()
}

impl Plane {
    /// Starts a control plane, and waits until it is ready. `controllers` names the controllers of its kube-controller-manager, if it has one. `minor` is
    /// the minor version whose API and features it has, if it is not that of its programs.
    pub(crate) async fn start(name: &'static str, controllers: Option<&str>, minor: Option<&str>) -> Self {
        let authority = Authority::mint(name, validity(), &mut random()).unwrap();
        let accounts = ServiceAccountKey::mint(&mut random()).unwrap();
        let server =
            authority.issue(&leaf("kube-apiserver", &[], CertificateUsage::ServerAuth), &mut random()).unwrap();
        let file = |kind: &str| format!("{name}.{kind}");
        let ca = write(&file("ca.crt"), authority.certificate().pem());
        let signer = write(&file("ca.key"), authority.key_pem().expose());
        let certificate = write(&file("server.crt"), &server.certificate_pem);
        let key = write(&file("server.key"), server.key_pem.expose());
        let account = write(&file("account.key"), accounts.private_pem().expose());
        let account_public = write(&file("account.pub"), accounts.public_pem().as_str());
        let (etcd, peer, port) = (free_port(), free_port(), free_port());
        let etcd_url = format!("http://127.0.0.1:{etcd}");
        let peer_url = format!("http://127.0.0.1:{peer}");
        let store = flags(&[
            ("data-dir", &path(&file("etcd")).display().to_string()),
            ("listen-client-urls", &etcd_url),
            ("advertise-client-urls", &etcd_url),
            ("listen-peer-urls", &peer_url),
            ("initial-advertise-peer-urls", &peer_url),
            ("initial-cluster", &format!("default={peer_url}")),
            ("unsafe-no-fsync", "true"),
        ]);
        let others = vec![start(&format!("{name}-etcd"), &program("etcd_3.7.0-0", "etcd"), &store)];
        let mut api_flags = flags(&[
            ("etcd-servers", &etcd_url),
            ("bind-address", "127.0.0.1"),
            ("advertise-address", "127.0.0.1"),
            ("secure-port", &port.to_string()),
            ("endpoint-reconciler-type", "none"),
            ("service-cluster-ip-range", "10.96.0.0/16"),
            ("client-ca-file", &ca),
            ("tls-cert-file", &certificate),
            ("tls-private-key-file", &key),
            ("authorization-mode", "RBAC"),
            ("disable-admission-plugins", "ServiceAccount"),
            ("enable-bootstrap-token-auth", "true"),
            ("service-account-issuer", "https://kubernetes.default.svc.cluster.local"),
            ("service-account-key-file", &account_public),
            ("service-account-signing-key-file", &account),
        ]);
        if let Some(minor) = minor {
            api_flags.extend(flags(&[("emulated-version", minor), ("min-compatibility-version", minor)]));
        }
        let mut plane = Self { name, authority, port, others, api: None, api_flags };
        plane.start_api().await;
        if let Some(controllers) = controllers {
            let manager = flags(&[
                ("kubeconfig", &plane.kubeconfig("admin", &["system:masters"])),
                ("bind-address", "127.0.0.1"),
                ("secure-port", &free_port().to_string()),
                ("leader-elect", "false"),
                ("cluster-signing-cert-file", &ca),
                ("cluster-signing-key-file", &signer),
                ("cluster-signing-duration", SIGNED),
                ("controllers", controllers),
            ]);
            let program = program("kube-controller-manager_v1.37.0", "kube-controller-manager");
            plane.others.push(start(&format!("{name}-controller-manager"), &program, &manager));
        }
        plane
    }

    /// Starts the API server, and waits until it is ready.
    pub(crate) async fn start_api(&mut self) {
        let program = program("kube-apiserver_v1.37.0", "kube-apiserver");
        self.api = Some(start(&format!("{}-apiserver", self.name), &program, &self.api_flags));
        let client = self.admin().await;
        wait::until(&format!("the API server of {} is ready", self.name), async || {
            client.request_text(http::Request::get("/readyz").body(vec![]).unwrap()).await.is_ok()
        })
        .await;
    }

    /// Kills the API server.
    pub(crate) fn stop_api(&mut self) {
        let mut api = self.api.take().unwrap();
        api.kill().unwrap();
        api.wait().unwrap();
    }

    pub(crate) fn url(&self) -> String {
        format!("https://127.0.0.1:{}", self.port)
    }

    /// Returns the authority's certificate in PEM.
    pub(crate) fn authority(&self) -> &str {
        self.authority.certificate().pem()
    }

    /// Writes a kubeconfig with a certificate of this user and these groups. Returns its path.
    pub(crate) fn kubeconfig(&self, user: &str, groups: &[&str]) -> String {
        let identity = self.authority.issue(&leaf(user, groups, CertificateUsage::ClientAuth), &mut random()).unwrap();
        let cluster = KubeconfigCluster {
            server: self.url(),
            authority: AuthoritySource::Embedded(self.authority().to_owned()),
            tls_server_name: Some("kubernetes".to_owned()),
        };
        let builder = Kubeconfig::builder().cluster("test", cluster).user("me", ClientIdentity::Embedded(identity));
        let kubeconfig = builder.context("me", "test", "me").build("me").unwrap();
        let file = format!("{}.{}.kubeconfig", self.name, user.replace(':', "-"));
        write(&file, kubeconfig.to_yaml().unwrap().as_bytes())
    }

    /// Returns a client as this user of these groups.
    pub(crate) async fn client(&self, user: &str, groups: &[&str]) -> Client {
        let kubeconfig = kube::config::Kubeconfig::read_from(self.kubeconfig(user, groups)).unwrap();
        let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
        Client::try_from(config).unwrap()
    }

    /// Returns a client as an administrator.
    pub(crate) async fn admin(&self) -> Client {
        self.client("admin", &["system:masters"]).await
    }
}
