//! One machine: an agent on a network with the fake runtime, and servers that respond to probes in place of the programs in its containers. It has a
//! thread, a network, and a directory as its root.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    sync::mpsc,
    thread,
};

use keelway_api::release::{self, KEELWAY, cluster_controller_image, haproxy_image};
use keelway_base::root_socket::RootSocket;
use keelway_cri::{Deadlines, fake::Fake};
use keelway_e2e::fake_machine::ProgramRunner;
use keelway_hypervisor_agent::agent::{AgentListeners, AgentNetwork, ConnectionLimits, run};
use keelway_machine_io::{access::MachineAccess, local::LocalMachine};
use keelway_reconciler::AgentCredentials;
use keelway_tls::TlsFiles;
use rustix::thread::gettid;
use tokio_util::sync::CancellationToken;

use crate::{
    effects::Effects,
    network::{self, Addresses},
};

/// The port of the agents.
pub(crate) const PORT: u16 = 7443;
/// The socket of the agents, relative to the root of the machine.
pub(crate) const SOCKET: &str = "run/agent.sock";
/// The processors and memory that the kernel of each machine reports: enough for any number of components.
const PROCESSORS: usize = 256;
const KIBIBYTES: u64 = 1 << 30;

pub(crate) struct Machine {
    pub(crate) root: PathBuf,
    pub(crate) addresses: Addresses,
    pub(crate) credentials: AgentCredentials,
    pub(crate) effects: Effects,
}

impl Machine {
    /// Starts the machine, and returns when its agent listens.
    pub(crate) fn start(self, number: usize) {
        let (entered, has_entered) = mpsc::channel();
        let (plugged, is_plugged) = mpsc::channel();
        let (listens, is_listening) = mpsc::channel();
        let body = move || {
            network::enter(self.addresses);
            entered.send(gettid()).unwrap();
            is_plugged.recv().unwrap();
            network::plugged(self.addresses);
            let executor = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            executor.block_on(self.run(move || listens.send(()).unwrap()));
        };
        thread::Builder::new().name(format!("machine-{number}")).spawn(body).unwrap();
        network::plug(number, has_entered.recv().unwrap());
        plugged.send(()).unwrap();
        is_listening.recv().unwrap();
    }

    async fn run(self, listens: impl FnOnce()) {
        let Self { root, addresses, credentials, effects } = self;
        for folder in ["var/lib", "var/log", "run", "tls", "proc"] {
            fs::create_dir_all(root.join(folder)).unwrap();
        }
        let processors: Vec<String> = (0..PROCESSORS).map(|number| format!("cpu{number} 0 0 0 0\n")).collect();
        fs::write(root.join("proc/stat"), processors.concat()).unwrap();
        fs::write(root.join("proc/meminfo"), format!("MemTotal: {KIBIBYTES} kB\n")).unwrap();
        let fake = Fake::new();
        for image in images() {
            fake.add_image(&image);
        }
        let programs = fake.clone();
        let access = MachineAccess::of_root(File::open(&root).unwrap().into());
        let access = access.with_answers(move |container| programs.runs(container));
        let machine = LocalMachine::new(access, fake.runtime(Deadlines::default()), None);
        let network = AgentNetwork::of_files(files(&root, &credentials), ConnectionLimits::default()).unwrap();
        let entrances = AgentListeners {
            socket: RootSocket::bind(&root.join(SOCKET)).unwrap(),
            network: Some(network.listening_on((addresses.private, PORT).into()).unwrap()),
        };
        let stage = ProgramRunner::below(&root, fake.clone());
        listens();
        tokio::select! {
            ended = run(machine, entrances, CancellationToken::new()) => ended.unwrap(),
            () = stage.poll_programs() => {}
            () = tell(&fake, &effects) => {}
        }
    }
}

/// Records each change of the runtime as an effect.
async fn tell(fake: &Fake, effects: &Effects) {
    loop {
        fake.changed().await;
        effects.note();
    }
}

fn files(root: &Path, credentials: &AgentCredentials) -> TlsFiles {
    let file = |name: &str, content: &[u8]| {
        let path = root.join("tls").join(name);
        fs::write(&path, content).unwrap();
        path
    };
    TlsFiles {
        certificate_file: file("tls.crt", &credentials.certificate),
        key_file: file("tls.key", &credentials.key),
        authority_file: file("ca.crt", &credentials.authorities),
        revocation_file: None,
    }
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
