//! Documents from a backup, on machines with real agents: `keelway recover` updates them to what the machines hold.

use std::{collections::BTreeMap, fs, path::PathBuf, process::Stdio};

use age::secrecy::ExposeSecret;
use keelway_api::Documents;
use keelway_cri::{CriRuntime, Deadlines};
use tempfile::TempDir;
use tokio::process::Command;

use crate::{
    kept::documents,
    machine::Machine,
    world::{Ended, end, program},
};

/// The index of the public machine. The machines before it are private.
const PUBLIC: u8 = 2;

/// Two private machines and a public one in one network, each with an agent.
struct AgentWorld {
    machines: Vec<Machine>,
    directory: TempDir,
}

impl AgentWorld {
    async fn start() -> Self {
        let prefix = format!("keelway-recovered-on-fake-{}-", std::process::id());
        let directory = tempfile::Builder::new().prefix(&prefix).tempdir().unwrap();
        let mut machines: Vec<Machine> = Vec::new();
        for number in 0..=PUBLIC {
            let folder = directory.path().join(format!("machine-{number}"));
            fs::create_dir(&folder).unwrap();
            let mut arguments = if let Some(first) = machines.first() {
                vec![format!("--beside={}", first.pid())]
            } else {
                let all = (0..=PUBLIC).flat_map(|number| [inner(number), outer(number)]);
                all.map(|address| format!("--address={address}")).collect()
            };
            arguments.push("--agent".to_owned());
            machines.push(Machine::start(&folder, &arguments).await);
        }
        Self { machines, directory }
    }

    /// Returns the documents of all machines and of one new cluster.
    async fn with_cluster(&self) -> String {
        let machines = self.machines.iter().zip(0..).map(|(machine, number)| {
            let (role, public) = if number < PUBLIC { ("Private", String::new()) } else { ("Public", outer(number)) };
            // The machines share a loopback interface, so each gets a port range of its own.
            let from = if number < PUBLIC { 20_000 + 1_000 * u16::from(number) } else { 30_000 };
            format!(
                "---\napiVersion: keelway.dev/v1alpha1\nkind: Hypervisor\nmetadata: {{name: hv-{number}}}\nspec:\n  role: {role}\n  \
                 endpoint: {{agent: {{unix: {{path: {}}}}}}}\n  addresses: {{private: [{}], public: [{public}]}}\n  \
                 portRange: {{from: {from}, to: {}}}\n",
                machine.root.join("agent.sock").display(),
                inner(number),
                from + 999,
            )
        });
        self.keelway(&["cluster", "inject", "--name", "c1"], &machines.collect::<String>()).await.done()
    }

    async fn keelway(&self, arguments: &[&str], documents: &str) -> Ended {
        let mut command = Command::new(program());
        command
            .args(arguments)
            .env_clear()
            .env("XDG_STATE_HOME", self.path("state"))
            .env("XDG_CACHE_HOME", self.path("cache"))
            .env("NO_COLOR", "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        end(command.spawn().unwrap(), documents).await
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Returns the runtime's ids of all sandboxes, by machine and name.
    async fn sandboxes(&self) -> BTreeMap<(usize, String), String> {
        let mut found = BTreeMap::new();
        for (number, machine) in self.machines.iter().enumerate() {
            let runtime = CriRuntime::on_socket(&machine.socket, Deadlines::default()).unwrap();
            let pods = runtime.list_pod_sandboxes(&BTreeMap::new()).await.unwrap();
            found.extend(pods.into_iter().map(|pod| ((number, pod.name), pod.id)));
        }
        found
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn documents_of_a_backup_are_recovered_and_nothing_is_restarted() {
    let world = AgentWorld::start().await;
    let backup = world.keelway(&["reconcile"], &world.with_cluster().await).await.done();
    let newest = world.keelway(&["reconcile"], &scaled(&backup)).await.done();
    let (sandboxes, wanted) = (world.sandboxes().await, documents(&newest));
    assert_eq!(world.keelway(&["recover"], &newest).await.done(), newest, "current documents stay as they are");

    // The backup, with the change that its user requested later.
    let backup = scaled(&backup);
    let refused = world.keelway(&["reconcile"], &backup).await;
    assert!(!refused.status.success() && refused.stderr.contains("keelway recover"), "{}", refused.stderr);
    let looked = world.keelway(&["recover", "--dry-run"], &backup).await;
    assert!(looked.status.success() && looked.stdout.is_empty(), "{}", looked.stderr);
    let recovered = world.keelway(&["recover"], &backup).await;
    assert_eq!(recovered.stderr, looked.stderr);
    println!("{}", recovered.stderr);
    let adopted = recovered.stderr.lines().filter(|line| line.contains("adopted  ")).count();
    assert_eq!(adopted, wanted.components.len() - documents(&backup).components.len());
    let recovered = recovered.done();
    is_as_it_was(&documents(&recovered), &wanted);

    let plan = world.keelway(&["plan", "--exit-code"], &recovered).await;
    assert_eq!(plan.done(), "Nothing to do: the machines match the documents.\n");
    let settled = world.keelway(&["reconcile"], &recovered).await.done();
    assert_eq!(world.sandboxes().await, sandboxes, "nothing was restarted");
    is_as_it_was(&documents(&settled), &wanted);

    let store = format!("dir:{}", world.path("store").display());
    world.keelway(&["pivot", "--to", &store], &backup).await.done();
    let in_place = world.keelway(&["recover", "--from", &store], "").await;
    assert!(in_place.stdout.is_empty() && in_place.stderr == looked.stderr, "{}", in_place.stderr);
    let moved = world.keelway(&["pivot", "--from", &store], "").await.done();
    is_as_it_was(&documents(&moved), &wanted);
    world.keelway(&["reconcile"], &moved).await.done();
    assert_eq!(world.sandboxes().await, sandboxes);
}

/// All documents are lost. A backup that is older than the machines brings them back, and undoes nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_documents_are_recovered_from_a_sealed_backup() {
    let world = AgentWorld::start().await;
    let older = world.keelway(&["reconcile"], &world.with_cluster().await).await.done();
    let key = BackupKey::create(&world, "operator");
    let file = world.path("keelway.backup").display().to_string();
    let written = world.keelway(&["backup", "--recipient", &key.recipient, "--to", &file], &older).await;
    assert!(written.stderr.starts_with("backed up 3 Hypervisors, 1 Clusters, "), "{}", written.stderr);
    written.done();
    let sealed = fs::read(&file).unwrap();
    assert!(
        !sealed.windows(10).any(|bytes| bytes == b"apiVersion" || bytes == b"PRIVATE KE"),
        "nothing is in plain text"
    );
    let newest = documents(&world.keelway(&["reconcile"], &scaled(&older)).await.done());
    let sandboxes = world.sandboxes().await;

    let recover = ["recover", "--backup", &file, "--identity", &key.file];
    let recovered = world.keelway(&recover, "").await;
    println!("{}", recovered.stderr);
    assert!(
        recovered.stderr.contains("the replicas are raised") && recovered.stderr.contains("the backup was taken at ")
    );
    let recovered = recovered.done();
    is_as_it_was(&documents(&recovered), &newest);
    let settled = world.keelway(&["reconcile"], &recovered).await.done();
    assert_eq!(world.sandboxes().await, sandboxes, "nothing was restarted or removed");
    is_as_it_was(&documents(&settled), &newest);

    // The documents alone, without a machine.
    let offline = world.keelway(&[&recover[..], &["--offline"]].concat(), "").await.done();
    assert!(documents(&offline) == documents(&older));

    // Into the directory of a manager, and only what it lacks.
    let store = format!("dir:{}", world.path("store").display());
    let into = [&recover[..], &["--from", &store]].concat();
    world.keelway(&into, "").await.done();
    let secret = world.path("store").join("secrets").join(authority_of(&newest));
    fs::remove_file(&secret).unwrap();
    let again = world.keelway(&into, "").await;
    assert!(again.stderr.contains("restored"), "{}", again.stderr);
    again.done();
    assert!(secret.exists());
    let copied = world.path("store.backup").display().to_string();
    world.keelway(&["backup", "--recipient", &key.recipient, "--to", &copied, "--from", &store], "").await.done();
    let from_store = world.keelway(&["recover", "--backup", &copied, "--identity", &key.file], "").await.done();
    is_as_it_was(&documents(&from_store), &newest);
    assert_eq!(world.sandboxes().await, sandboxes);
}

/// Every refusal names the file, the problem and what to do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn backups_that_cannot_be_used_are_refused() {
    let world = AgentWorld::start().await;
    let text = world.with_cluster().await;
    let (key, other) = (BackupKey::create(&world, "operator"), BackupKey::create(&world, "stranger"));
    let file = world.path("c1.backup").display().to_string();
    world.keelway(&["backup", "--recipient", &key.recipient, "--to", &file], &text).await.done();
    let refusal = async |arguments: &[&str], input: &str| {
        let ended = world.keelway(arguments, input).await;
        assert!(ended.status.code() == Some(2) && ended.stdout.is_empty(), "{}", ended.stderr);
        ended.stderr
    };
    let opened = refusal(&["recover", "--backup", &file, "--identity", &other.file], "").await;
    assert!(opened.contains("c1.backup cannot be used") && opened.contains("sealed to another recipient"), "{opened}");
    let sealed = fs::read(&file).unwrap();
    let short = world.path("short.backup");
    fs::write(&short, &sealed[..sealed.len() / 2]).unwrap();
    let short = short.display().to_string();
    let truncated = refusal(&["recover", "--backup", &short, "--identity", &key.file], "").await;
    assert!(truncated.contains("truncated or damaged"), "{truncated}");
    let plain = refusal(&["recover", "--backup", &key.file, "--identity", &key.file], "").await;
    assert!(plain.contains("not a backup of Keelway") && !plain.contains("SECRET"), "{plain}");
    let secret = fs::read_to_string(&key.file).unwrap();
    let secret = refusal(&["backup", "--recipient", secret.trim(), "--to", &file], &text).await;
    assert!(secret.contains("it is a secret key") && !secret.contains("SECRET"), "{secret}");
    let none = refusal(&["backup", "--to", &file], &text).await;
    assert!(none.contains("no recipient is given"), "{none}");
    assert!(fs::read(&file).unwrap() == sealed, "a refusal leaves the earlier backup");
}

/// A key of age, with its file.
struct BackupKey {
    recipient: String,
    file: String,
}

impl BackupKey {
    fn create(world: &AgentWorld, name: &str) -> Self {
        let identity = age::x25519::Identity::generate();
        let file = world.path(&format!("{name}.agekey"));
        fs::write(&file, identity.to_string().expose_secret()).unwrap();
        Self { recipient: identity.to_public().to_string(), file: file.display().to_string() }
    }
}

/// The file of the authority of etcd, below the Secrets of a store.
fn authority_of(documents: &Documents) -> PathBuf {
    let name = documents.secrets.keys().find(|name| name.name == "etcd-ca").unwrap();
    PathBuf::from(&name.namespace).join("etcd-ca.yaml")
}

/// Changes the clusters to two replicas of each control plane role. etcd and the ingress stay at one.
fn scaled(text: &str) -> String {
    let mut documents = documents(text);
    for cluster in documents.clusters.values_mut() {
        cluster.spec.control_plane.replicas = 2;
    }
    documents.write()
}

/// Asserts that specs, keys and issued configs do not differ. `spec.placement` is not compared.
fn is_as_it_was(found: &Documents, wanted: &Documents) {
    let names = |documents: &Documents| documents.components.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(found), names(wanted));
    for (name, component) in &wanted.components {
        let mut spec = found.components[name].spec.clone();
        spec.placement.clone_from(&component.spec.placement);
        assert_eq!(spec, component.spec);
    }
    for (name, secret) in &wanted.secrets {
        // Not compared as a whole, because a failure would print keys.
        assert!(found.secrets[name].data == secret.data, "{name:?} changed");
    }
    for (name, machine) in &wanted.hypervisors {
        let issued =
            |machine: &keelway_api::Hypervisor| machine.status.as_ref().and_then(|status| status.issued.clone());
        assert_eq!(issued(&found.hypervisors[name]), issued(machine), "{name}");
    }
}

fn inner(number: u8) -> String {
    format!("198.19.0.{}", 11 + number)
}

fn outer(number: u8) -> String {
    format!("198.18.0.{}", 11 + number)
}
