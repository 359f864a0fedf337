//! A real API server with a real etcd, as plain processes.

use std::fs;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::{SignedDuration, Timestamp};
use keelway_pki::{Authority, CertificateUsage, LeafRequest, ServiceAccountKey, Validity};
use kube::Client;
use kube::config::{KubeConfigOptions, Kubeconfig};
use rand::SeedableRng;
use rand::rngs::ChaCha8Rng;
use serde_json::{Value, json};

use crate::PATIENCE;
use crate::lan::{Lan, address};
use crate::support::{Namespace, Process, run, wait_until};

/// An API server and its etcd.
pub(crate) struct ApiServer {
    pub(crate) machine: Namespace,
    folder: PathBuf,
    number: u8,
    authority: Authority,
    rng: ChaCha8Rng,
    etcd: Process,
    server: Option<Process>,
    /// Further arguments of the API server.
    pub(crate) more: Vec<String>,
}

impl ApiServer {
    /// Starts an API server without any objects.
    pub(crate) fn start(lan: &Lan, number: u8) -> Self {
        Self::start_with(lan, number, Vec::new())
    }

    /// Starts an API server with these further arguments.
    pub(crate) fn start_with(lan: &Lan, number: u8, more: Vec<String>) -> Self {
        let machine = lan.machine(number);
        let folder = PathBuf::from("/run/cluster");
        fs::create_dir(&folder).unwrap();
        let (etcd, _) = (program(&folder, "etcd"), program(&folder, "kube-apiserver"));
        let data = folder.join("data");
        // No data outlives the test.
        let arguments = ["--data-dir", data.to_str().unwrap(), "--unsafe-no-fsync", "--log-level", "error"];
        let etcd = machine.spawn(&etcd, &arguments, &[]);
        let mut rng = ChaCha8Rng::seed_from_u64(11);
        let authority = Authority::mint("kubernetes", day(), &mut rng).unwrap();
        let mut cluster = Self { machine, folder, number, authority, rng, etcd, server: None, more };
        cluster.write_files();
        cluster.resume();
        cluster
    }

    fn write_files(&mut self) {
        let key = ServiceAccountKey::mint(&mut self.rng).unwrap();
        fs::write(self.folder.join("sa.key"), key.private_pem().expose()).unwrap();
        fs::write(self.folder.join("sa.pub"), key.public_pem().as_str()).unwrap();
        fs::write(self.folder.join("ca.crt"), self.authority.certificate().pem()).unwrap();
        let issued = self.issue("kube-apiserver", &[], CertificateUsage::ServerAuth);
        fs::write(self.folder.join("tls.crt"), &issued.certificate_pem).unwrap();
        fs::write(self.folder.join("tls.key"), issued.key_pem.expose()).unwrap();
    }

    fn issue(&mut self, name: &str, groups: &[&str], usage: CertificateUsage) -> keelway_pki::IssuedCertificate {
        let request = LeafRequest {
            common_name: name.to_owned(),
            organizations: groups.iter().map(ToString::to_string).collect(),
            dns_names: Vec::new(),
            ip_addresses: if usage == CertificateUsage::ServerAuth {
                vec![address(self.number).parse().unwrap()]
            } else {
                Vec::new()
            },
            usages: vec![usage],
            validity: day(),
        };
        self.authority.issue(&request, &mut self.rng).unwrap()
    }

    /// Starts the API server, and waits until it is ready.
    pub(crate) fn resume(&mut self) {
        let file = |name: &str| self.folder.join(name).display().to_string();
        let arguments = [
            "--etcd-servers=http://127.0.0.1:2379".to_owned(),
            "--secure-port=6443".to_owned(),
            format!("--advertise-address={}", address(self.number)),
            "--endpoint-reconciler-type=none".to_owned(),
            "--authorization-mode=RBAC".to_owned(),
            "--service-cluster-ip-range=10.96.0.0/16".to_owned(),
            "--service-account-issuer=https://kubernetes".to_owned(),
            format!("--service-account-key-file={}", file("sa.pub")),
            format!("--service-account-signing-key-file={}", file("sa.key")),
            format!("--client-ca-file={}", file("ca.crt")),
            format!("--tls-cert-file={}", file("tls.crt")),
            format!("--tls-private-key-file={}", file("tls.key")),
        ];
        let arguments: Vec<&str> = arguments.iter().chain(&self.more).map(String::as_str).collect();
        self.server = Some(self.machine.spawn(&self.folder.join("kube-apiserver"), &arguments, &[]));
        wait_until("the API is ready", PATIENCE * 2, || {
            assert!(self.server.as_mut().unwrap().is_running() && self.etcd.is_running());
            self.ask(|client| async move { client.request_text(readyz()).await.is_ok() })
        });
    }

    /// Kills the API server.
    pub(crate) fn stop(&mut self) {
        self.server.take().unwrap().kill();
    }

    /// Calls `act` with an administrator's client.
    pub(crate) fn ask<T, F>(&mut self, act: impl FnOnce(Client) -> F + Send + 'static) -> T
    where
        T: Send + 'static,
        F: Future<Output = T>,
    {
        let kubeconfig = self.kubeconfig("admin", &["system:masters"]);
        self.machine.within(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let kubeconfig: Kubeconfig = serde_json::from_value(kubeconfig).unwrap();
                let options = KubeConfigOptions::default();
                let config = kube::Config::from_custom_kubeconfig(kubeconfig, &options).await.unwrap();
                act(Client::try_from(config).unwrap()).await
            })
        })
    }

    /// Issues a certificate for this user and these groups, and returns a kubeconfig with it.
    pub(crate) fn kubeconfig(&mut self, name: &str, groups: &[&str]) -> Value {
        let issued = self.issue(name, groups, CertificateUsage::ClientAuth);
        json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c1", "cluster": {
                "server": format!("https://{}:6443", address(self.number)),
                "certificate-authority-data": STANDARD.encode(self.authority.certificate().pem()),
            }}],
            "users": [{"name": name, "user": {
                "client-certificate-data": STANDARD.encode(&issued.certificate_pem),
                "client-key-data": STANDARD.encode(issued.key_pem.expose()),
            }}],
            "contexts": [{"name": "c1", "context": {"cluster": "c1", "user": name}}],
            "current-context": "c1",
        })
    }
}

fn readyz() -> http::Request<Vec<u8>> {
    http::Request::get("/readyz").body(Vec::new()).unwrap()
}

fn day() -> Validity {
    Validity::starting(Timestamp::now(), SignedDuration::from_hours(24)).unwrap()
}

/// Returns the path of a program, unpacked from the image that `cargo xtask images` makes.
fn program(folder: &Path, name: &str) -> PathBuf {
    let set = |variable| std::env::var_os(variable).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = set("KEELWAY_CACHE")
        .or_else(|| set("XDG_CACHE_HOME").map(|cache| cache.join("keelway")))
        .or_else(|| set("HOME").map(|home| home.join(".cache/keelway")));
    let images = fs::read_dir(cache.unwrap().join("images")).unwrap().map(|entry| entry.unwrap().path());
    let prefix = format!("registry.k8s.io_{name}_");
    let mut fitting: Vec<PathBuf> =
        images.filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with(&prefix)).collect();
    fitting.sort();
    let image = fitting.pop().unwrap_or_else(|| panic!("{name} is missing: cargo xtask images --missing"));
    let unpack = format!("tar xOf {} layer.tar | tar xf - -O usr/local/bin/{name}", image.display());
    let path = folder.join(name);
    run("sh", &["-ec", &format!("{unpack} > {0} && chmod 755 {0}", path.display())]);
    path
}
