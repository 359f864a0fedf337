//! Images from a real registry that requires credentials and has a private authority.
#![expect(clippy::unwrap_used, reason = "this is all test")]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::{Command, id},
    time::Duration,
};

use futures::FutureExt;
use jiff::{SignedDuration, Timestamp};
use keelway_api::{
    image_override::reported_name,
    machine::{Container, ContainerPhase, ContainerResources, MachineConfig, Pod, Start},
    name::{ClusterId, PodName},
    registry::RegistryCredentials,
};
use keelway_cri::testing::{Containerd, ContainerdOptions, ImageArchive, PROGRAM, build_program, cache};
use keelway_machine_io::local::LocalMachine;
use keelway_pki::{Authority, CertificateUsage, LeafRequest, Validity};
use rand::{SeedableRng, rngs::ChaCha8Rng};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

/// An address of the machine that is not loopback: runtimes treat registries on loopback differently.
const REGISTRY: &str = "192.0.2.10:5000";
const USER: &str = "puller";
const PASSWORD: &str = "opensesame";
/// The line that `htpasswd -B` prints for this user and password.
const HTPASSWD: &str = "puller:$2a$04$I59dNTXiXxI3qtM/EySAO.nXu.1mOObpFHrzdDhV3pRr5Vs0LN2mu\n";
const WITHIN: Duration = Duration::from_secs(60);
/// Runs a machine with a registry in its network. The registry ends with the runtime.
const SETUP: &str = r#"
mount --bind "$1/lib" /var/lib
mount --bind "$1/log" /var/log
ip link set lo up
ip address add 192.0.2.10/32 dev lo
setpriv --pdeathsig KILL "$2" serve "$1/registry.yaml" > "$1/registry.log" 2>&1 &
shift 2
exec "$@""#;

fn image(name: &str) -> String {
    format!("{REGISTRY}/mirror/{name}:1")
}

struct World {
    disk: TempDir,
    containerd: Containerd,
    machine: LocalMachine,
    cluster: ClusterId,
    generation: std::cell::Cell<u64>,
}

impl World {
    async fn new() -> Self {
        let disk = tempfile::Builder::new().prefix("keelway-registry-").tempdir().unwrap();
        for directory in ["lib", "log", "blobs"] {
            fs::create_dir(disk.path().join(directory)).unwrap();
        }
        write_registry(disk.path());
        let binaries = cache().unwrap().join("bin");
        let registry = binaries.join("registry");
        assert!(registry.exists(), "{} is not there: `cargo xtask images --missing` makes it", registry.display());
        let mut prefix: Vec<_> = ["unshare", "--net", "--mount", "sh", "-ec", SETUP, "sh"].map(Into::into).into();
        prefix.extend([disk.path().into(), registry.into()]);
        let test = "registry".to_owned();
        let options = ContainerdOptions { test, binaries, sandbox_image: image("pause"), prefix };
        let containerd = Containerd::start(&options).await.unwrap();
        let machine = LocalMachine::connect(&containerd.socket(), None).await.unwrap();
        let cluster = format!("{:016x}", id()).parse().unwrap();
        Self { disk, containerd, machine, cluster, generation: 0.into() }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.disk.path().join(path)
    }

    /// Adds the authority of the registry to the runtime's configuration as an administrator does, or removes it.
    fn trust(&self, trust: bool) {
        let hosts = self.containerd.directory().join("certs.d");
        let _ = fs::remove_dir_all(&hosts);
        if trust {
            let host = hosts.join(REGISTRY);
            fs::create_dir_all(&host).unwrap();
            fs::copy(self.path("ca.crt"), host.join("ca.crt")).unwrap();
            let authority = host.join("ca.crt");
            let text = format!("server = \"https://{REGISTRY}\"\nca = \"{}\"\n", authority.display());
            fs::write(host.join("hosts.toml"), text).unwrap();
        }
    }

    /// Pushes images to the registry, and removes them from the machine.
    async fn push(&self, names: &[&str]) {
        self.trust(true);
        until(async || {
            let log = fs::read_to_string(self.path("registry.log")).unwrap_or_default();
            log.contains("listening on")
        })
        .await;
        let program = build_program(self.containerd.directory()).unwrap();
        let hosts = self.containerd.directory().join("certs.d");
        for name in names {
            let (image, archive) = (image(name), self.path("image.tar"));
            ImageArchive::new(&image).file(&program, PROGRAM).entrypoint([PROGRAM]).write(&archive).unwrap();
            let runtime = self.machine.runtime();
            runtime.import_images(tokio::fs::File::open(&archive).await.unwrap()).await.unwrap();
            let login = format!("{USER}:{PASSWORD}");
            self.ctr(&["push", "--user", &login, "--hosts-dir", hosts.to_str().unwrap(), &image]);
            self.ctr(&["remove", "--sync", &image]);
            until(async || runtime.image_status(&image).await.unwrap().is_none()).await;
        }
    }

    /// Returns the digest of a pushed image, from the files of the registry.
    fn digest(&self, name: &str) -> String {
        let revisions =
            self.path("blobs/docker/registry/v2/repositories/mirror").join(name).join("_manifests/revisions/sha256");
        let mut pushed = fs::read_dir(revisions).unwrap().map(|entry| entry.unwrap().file_name());
        let digest = pushed.next().unwrap().into_string().unwrap();
        assert_eq!(pushed.next(), None);
        digest
    }

    fn ctr(&self, arguments: &[&str]) {
        let mut ctr = Command::new(cache().unwrap().join("bin/ctr"));
        let ctr = ctr.arg("--address").arg(self.containerd.socket()).args(["--namespace", "k8s.io", "images"]);
        let output = ctr.args(arguments).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// Applies a config with this image, and returns the errors.
    async fn run(&self, image: &str, password: Option<&str>) -> Vec<String> {
        self.generation.set(self.generation.get() + 1);
        let name = PodName { cluster: self.cluster.clone(), component: "etcd-0".parse().unwrap() };
        let config = MachineConfig {
            format: keelway_api::machine::ConfigFormat::NEWEST,
            installation: "00000000000000ff".parse().unwrap(),
            term: 1,
            generation: self.generation.get(),
            pods: [(name, pod(image, password))].into(),
            others: BTreeSet::new(),
            removals: std::collections::BTreeMap::new(),
        };
        let report = self.machine.apply(&config, &CancellationToken::new(), &|_| {}).await.unwrap();
        report.failed.into_iter().map(|failure| failure.error).collect()
    }
}

fn pod(image_of_container: &str, password: Option<&str>) -> Pod {
    let container = Container {
        name: "one".to_owned(),
        image: image_of_container.to_owned(),
        command: vec![PROGRAM.to_owned(), "serve".to_owned()],
        mounts: Vec::new(),
        resources: ContainerResources {
            cpu_request_millis: 50,
            cpu_limit_millis: Some(500),
            memory_limit_bytes: 32 << 20,
        },
        stop_seconds: 5,
        liveness: None,
    };
    let pause_image = image("pause");
    let credentials = |password: &str| RegistryCredentials { username: USER.to_owned(), password: password.to_owned() };
    let images = [container.image.clone(), pause_image.clone()];
    let registries: BTreeMap<_, _> =
        images.into_iter().filter_map(|image| Some((image, password.map(credentials)?))).collect();
    Pod {
        user: 20_418,
        files: Vec::new(),
        data: Vec::new(),
        containers: vec![container],
        pause_image,
        servers: None,
        start: Start::Always,
        hold: false,
        registries,
        prefetch: BTreeSet::new(),
    }
}

/// Writes the configuration, users and certificate of the registry, and the certificate of its authority.
fn write_registry(folder: &Path) {
    let now = Timestamp::now();
    let validity = Validity::new(now - SignedDuration::from_hours(1), now + SignedDuration::from_hours(1)).unwrap();
    let mut random = ChaCha8Rng::seed_from_u64(7);
    let authority = Authority::mint("registry", validity, &mut random).unwrap();
    let request = LeafRequest {
        common_name: "registry".to_owned(),
        organizations: Vec::new(),
        dns_names: Vec::new(),
        ip_addresses: vec!["192.0.2.10".parse().unwrap()],
        usages: vec![CertificateUsage::ServerAuth],
        validity,
    };
    let leaf = authority.issue(&request, &mut random).unwrap();
    let write = |name: &str, text: &str| fs::write(folder.join(name), text).unwrap();
    write("ca.crt", authority.certificate().pem());
    write("tls.crt", &leaf.certificate_pem);
    write("tls.key", leaf.key_pem.expose());
    write("htpasswd", HTPASSWD);
    let folder = folder.display();
    let configuration = format!(
        "version: 0.1\nstorage: {{filesystem: {{rootdirectory: {folder}/blobs}}}}\nhttp: {{addr: '{REGISTRY}', tls: {{certificate: \
         {folder}/tls.crt, key: {folder}/tls.key}}}}\nauth: {{htpasswd: {{realm: keelway, path: {folder}/htpasswd}}}}\n"
    );
    write("registry.yaml", &configuration);
}

async fn until(seen: impl AsyncFn() -> bool) {
    let mut again = tokio::time::interval(Duration::from_millis(20));
    let looking = async {
        while !seen().await {
            again.tick().await;
        }
    };
    tokio::time::timeout(WITHIN, looking).await.unwrap();
}

#[tokio::test]
async fn images_are_pulled_with_credentials_from_a_trusted_registry() {
    let world = World::new().await;
    let outcome = std::panic::AssertUnwindSafe(Box::pin(pulled(&world))).catch_unwind().await;
    if let Err(panic) = outcome {
        let log = fs::read_to_string(world.path("registry.log")).unwrap_or_default();
        println!("{}\n{log}", world.containerd.log().unwrap());
        std::panic::resume_unwind(panic);
    }
}

async fn pulled(world: &World) {
    world.push(&["pause", "program"]).await;
    let program = image("program");
    // Whether the runtime trusts the registry, the image, the password, and the help in the error.
    let refusals = [
        (false, image("program"), Some(PASSWORD), "/etc/containerd/certs.d/192.0.2.10:5000"),
        (true, image("program"), None, "it requires credentials: name a Secret with them in spec.images.pullSecrets"),
        (true, image("program"), Some("wrong-word"), "it refused these credentials"),
    ];
    for (trusted, image, password, help) in refusals {
        world.trust(trusted);
        let failed = world.run(&image, password).await.join("\n");
        assert!(failed.contains(help) && failed.contains(REGISTRY), "{failed}");
        assert!(!failed.contains(PASSWORD) && !failed.contains("wrong-word"), "{failed}");
    }

    let other = format!("{program}@sha256:{}", "0".repeat(64));
    let failed = world.run(&other, Some(PASSWORD)).await.join("\n");
    assert!(failed.contains("it has no such image") && failed.contains(&other), "{failed}");
    let by_digest = format!("{program}@sha256:{}", world.digest("program"));
    for _ in 0..2 {
        assert_eq!(world.run(&by_digest, Some(PASSWORD)).await, [""; 0]);
        let seen = world.machine.observe().await.unwrap();
        assert_eq!(seen.containers.len(), 1);
        assert!(seen.images.contains(&*reported_name(&by_digest)) && !seen.images.contains(&program), "{seen:?}");
    }

    assert_eq!(world.run(&program, Some(PASSWORD)).await, [""; 0]);
    let seen = world.machine.observe().await.unwrap();
    let phases: Vec<_> = seen.containers.iter().map(|container| container.phase).collect();
    assert_eq!(phases, [ContainerPhase::Running]);
    assert!(seen.images.is_superset(&BTreeSet::from([program, image("pause")])), "{:?}", seen.images);

    let absent = world.run(&image("nothing"), Some(PASSWORD)).await.join("\n");
    assert!(absent.contains("it has no such image: push the image"), "{absent}");
    let closed = "192.0.2.10:5001/mirror/program:1";
    let unreachable = world.run(closed, Some(PASSWORD)).await.join("\n");
    assert!(unreachable.contains("192.0.2.10:5001") && unreachable.contains("cannot reach it"), "{unreachable}");
    let log = world.containerd.log().unwrap();
    assert!(!log.contains(PASSWORD) && !log.contains("wrong-word"));

    // Removes everything from the machine.
    world.generation.set(world.generation.get() + 1);
    let empty = MachineConfig {
        format: keelway_api::machine::ConfigFormat::NEWEST,
        installation: "00000000000000ff".parse().unwrap(),
        term: 1,
        generation: world.generation.get(),
        pods: BTreeMap::new(),
        others: BTreeSet::new(),
        removals: std::collections::BTreeMap::new(),
    };
    let report = world.machine.apply(&empty, &CancellationToken::new(), &|_| {}).await.unwrap();
    assert!(report.is_complete(), "{report:#?}");
}
