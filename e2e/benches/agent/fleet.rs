//! One driver and two hundred agents on ports of this machine. Each agent has the fake runtime, and a directory as the root of its machine. The
//! agents share one process. The driver is the `keelway` program.

use std::{
    fmt::Write,
    fs::{self, File},
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use keelway_api::{
    Documents,
    hypervisor::Applied,
    release::{self, KEELWAY, cluster_controller_image, haproxy_image},
};
use keelway_base::root_socket::RootSocket;
use keelway_cri::{Deadlines, fake::Fake};
use keelway_e2e::{Keelway, command::RunningCommand, host, process};
use keelway_hypervisor_agent::agent::{AgentListeners, AgentNetwork, ConnectionLimits, run};
use keelway_machine_io::{access::MachineAccess, local::LocalMachine};
use keelway_reconciler::{AgentCredentials, agent_credentials};
use keelway_tls::TlsFiles;
use tokio_util::sync::CancellationToken;

use crate::table::Table;

const PUBLIC: u16 = 40;
const PRIVATE: u16 = 160;
/// Highly available clusters: enough that each machine runs components.
const CLUSTERS: u16 = 70;
/// The port of the first agent.
const FIRST_PORT: u16 = 7_000;

/// The cost of one pass of the driver, until all agents have applied their first config.
struct Drive {
    took: Duration,
    mebibytes: f64,
}

pub(crate) fn measure(rounds: usize, table: &mut Table) {
    let drives: Vec<Drive> = (0..rounds).map(round).collect();
    let of = |what: fn(&Drive) -> f64| drives.iter().map(what).collect::<Vec<_>>();
    let machines = PUBLIC + PRIVATE;
    table.under(
        &format!(
            "{machines} agents with the fake runtime, {CLUSTERS} highly available clusters: one pass of one driver, until each agent \
             has done its first config"
        ),
        "s",
        &of(|drive| drive.took.as_secs_f64()),
        5.0,
    );
    table.under("the same: the driver's resident memory at most", "MiB", &of(|drive| drive.mebibytes), 60.0);
}

fn round(number: usize) -> Drive {
    let keelway = Keelway::new(&format!("driver-{number}"));
    // No agent listens yet. This run only mints keys and writes them into the documents.
    let minted = keelway.run(&["reconcile", "--once"], documents().as_bytes()).stdout;
    let documents = Documents::read(&minted).unwrap();
    let roots = host::directory(&format!("agents-{number}"));
    let agents = Agents::start(&documents, &roots);
    let running = keelway.start(&["reconcile", "--once"], &minted);
    let mebibytes = most_resident(&running);
    let finished = keelway.end(running);
    assert_eq!(finished.code(), 0, "{}", finished.stderr);
    agents.have_what_they_were_given(&Documents::read(&finished.stdout).unwrap());
    Drive { took: finished.took, mebibytes }
}

/// Returns the machines and clusters as a user writes them.
fn documents() -> String {
    let mut text = String::new();
    for machine in 0..PUBLIC + PRIVATE {
        let (role, public) = if machine < PUBLIC {
            ("Public", format!("203.0.113.{}", machine + 1))
        } else {
            ("Private", String::new())
        };
        let (port, [high, low]) = (FIRST_PORT + machine, machine.to_be_bytes());
        write!(
            text,
            "---\napiVersion: keelway.dev/v1alpha1\nkind: Hypervisor\nmetadata: {{name: hv-{machine}}}\nspec:\n  role: {role}\n  \
             endpoint: {{agent: {{address: '127.0.0.1:{port}'}}}}\n  addresses: {{private: [10.1.{high}.{low}], public: [{public}]}}\n"
        )
        .unwrap();
    }
    for cluster in 0..CLUSTERS {
        write!(
            text,
            "---\napiVersion: keelway.dev/v1alpha1\nkind: Cluster\nmetadata: {{name: c{cluster}, namespace: default}}\nspec:\n  version: {}\n  \
             etcd: {{replicas: 3}}\n  controlPlane: {{replicas: 3}}\n  ingress: {{replicas: 2}}\n",
            release::newest_version()
        )
        .unwrap();
    }
    text
}

/// Agents that run until this is dropped.
struct Agents {
    roots: PathBuf,
    stop: CancellationToken,
    _executor: tokio::runtime::Runtime,
}

impl Drop for Agents {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Agents {
    fn start(documents: &Documents, roots: &Path) -> Self {
        let executor = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        let stop = CancellationToken::new();
        for (name, machine) in &documents.hypervisors {
            let _entered = executor.enter();
            let address = machine.spec.endpoint.address().unwrap().parse().unwrap();
            let credentials = agent_credentials(documents, name).unwrap();
            start(&roots.join(name.as_str()), address, &credentials, stop.clone());
        }
        Self { roots: roots.to_owned(), stop, _executor: executor }
    }

    /// Asserts that each machine has applied the config that the documents record as issued.
    fn have_what_they_were_given(&self, documents: &Documents) {
        for (name, machine) in &documents.hypervisors {
            let record = fs::read(self.roots.join(name.as_str()).join("var/lib/keelway/applied")).unwrap();
            let applied: Applied = serde_json::from_slice(&record).unwrap();
            assert_eq!(machine.status.as_ref().unwrap().issued.as_ref(), Some(&applied), "{name}");
        }
    }
}

fn start(root: &Path, address: SocketAddr, credentials: &AgentCredentials, stop: CancellationToken) {
    for folder in ["var/lib", "var/log", "run", "tls"] {
        fs::create_dir_all(root.join(folder)).unwrap();
    }
    let file = |name: &str, content: &[u8]| {
        let path = root.join("tls").join(name);
        fs::write(&path, content).unwrap();
        path
    };
    let files = TlsFiles {
        certificate_file: file("tls.crt", &credentials.certificate),
        key_file: file("tls.key", &credentials.key),
        authority_file: file("ca.crt", &credentials.authorities),
        revocation_file: None,
    };
    let fake = Fake::new();
    for image in images() {
        fake.add_image(&image);
    }
    let access = MachineAccess::of_root(File::open(root).unwrap().into());
    let machine = LocalMachine::new(access, fake.runtime(Deadlines::default()), None);
    let entrances = AgentListeners {
        socket: RootSocket::bind(&root.join("run/agent.sock")).unwrap(),
        network: Some(
            AgentNetwork::of_files(files, ConnectionLimits::default()).unwrap().listening_on(address).unwrap(),
        ),
    };
    tokio::spawn(async move { run(machine, entrances, stop).await.unwrap() });
}

fn images() -> Vec<String> {
    let release = release::newest();
    let programs = ["kube-apiserver", "kube-controller-manager", "kube-scheduler"];
    let of_kubernetes = programs.iter().map(|program| release.kubernetes_image(program, None));
    let others = [
        release.etcd_image(None),
        release.pause_image(None),
        haproxy_image(None),
        cluster_controller_image(None, KEELWAY),
    ];
    of_kubernetes.chain(others).collect()
}

/// Returns the peak resident memory of the process in MiB, sampled until it exits.
fn most_resident(running: &RunningCommand) -> f64 {
    let mut most = 0.0;
    while !process::ends_within(running.pid(), Duration::from_millis(5)) {
        let text = process::status(running.pid(), "VmHWM").unwrap_or_default();
        let kibibytes: f64 = text.trim_end_matches(" kB").trim().parse().unwrap_or(most * 1024.0);
        most = kibibytes / 1024.0;
    }
    most
}
