//! A fleet that belongs to one test.

use std::{
    env, fs,
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    sync::atomic::{AtomicUsize, Ordering},
    time::Instant,
};

use keelway_api::Hypervisor;
use keelway_cri::{CriRuntime, Deadlines, testing::cache};
use keelway_local_hypervisor::{
    CreateRequest, Fleet, FleetStep, Launcher, LocalHypervisorError, ProgramSearch, create, destroy,
};
use rustix::{
    net::sockopt::socket_peercred,
    process::{Signal, getpid, kill_process},
};

use crate::host::outer_pid;

/// A fleet. It is destroyed on drop, with its cgroups, which the hosts of tests share.
pub(crate) struct OwnedFleet {
    pub(crate) request: CreateRequest,
}

impl OwnedFleet {
    /// `tag` is short, and no other test uses it.
    pub(crate) fn new(tag: &str) -> Self {
        let fleet = Fleet::new(format!("{tag}-{}", outer_pid())).unwrap();
        let search = ProgramSearch { cache_bin: cache().unwrap().join("bin"), path: env::var_os("PATH").unwrap() };
        let program = PathBuf::from(env!("CARGO_BIN_EXE_keelway-local-machine"));
        let launcher = Launcher { program, arguments: Vec::new() };
        Self {
            request: CreateRequest { fleet, public: 0, private: 0, zones: Vec::new(), search, launcher, agent: None },
        }
    }

    pub(crate) fn fleet(&self) -> &Fleet {
        &self.request.fleet
    }

    pub(crate) async fn try_create(&self, public: u8, private: u8) -> Result<Vec<Hypervisor>, LocalHypervisorError> {
        let request = CreateRequest { public, private, ..self.request.clone() };
        let started = Instant::now();
        let result = create(&request, &|step| println!("{:>6} ms  {step}", started.elapsed().as_millis())).await;
        println!("created {public}+{private} in {} ms", started.elapsed().as_millis());
        result
    }

    pub(crate) async fn create(&self, public: u8, private: u8) -> Vec<Hypervisor> {
        self.try_create(public, private).await.unwrap()
    }

    /// Creates one public and one private machine. This process is killed before the step with this number.
    pub(crate) async fn create_until_killed(&self, number: usize) {
        let begun = AtomicUsize::new(0);
        let request = CreateRequest { public: 1, private: 1, ..self.request.clone() };
        let count = |_: &FleetStep| {
            if begun.fetch_add(1, Ordering::SeqCst) == number {
                kill_process(getpid(), Signal::KILL).unwrap();
            }
        };
        create(&request, &count).await.unwrap();
    }

    pub(crate) async fn destroy(&self) {
        let started = Instant::now();
        destroy(self.fleet(), &|_| {}).await.unwrap();
        println!("destroyed in {} ms", started.elapsed().as_millis());
    }
}

impl Drop for OwnedFleet {
    fn drop(&mut self) {
        let fleet = self.fleet().clone();
        let removal = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(destroy(&fleet, &|_| {}))
        });
        if let Err(error) = removal.join().unwrap() {
            println!("the fleet stays: {error:?}");
        }
    }
}

pub(crate) fn socket(machine: &Hypervisor) -> &Path {
    Path::new(machine.spec.endpoint.socket().unwrap())
}

/// Returns the process that listens on a machine's socket. Its `/proc` entries lead to the rest of the machine.
pub(crate) fn peer(machine: &Hypervisor) -> i32 {
    peer_at(socket(machine))
}

/// Returns the process that listens on a socket.
pub(crate) fn peer_at(socket: &Path) -> i32 {
    let stream = UnixStream::connect(socket).unwrap();
    socket_peercred(stream).unwrap().pid.as_raw_nonzero().get()
}

/// Returns the path of a machine's file, as the test can open it.
pub(crate) fn file_of(machine: &Hypervisor, path: &str) -> PathBuf {
    file_at(socket(machine), path)
}

/// Returns the path of a file of the machine that listens on this socket.
pub(crate) fn file_at(socket: &Path, path: &str) -> PathBuf {
    format!("/proc/{}/root{path}", peer_at(socket)).into()
}

pub(crate) fn namespace(pid: i32, kind: &str) -> String {
    fs::read_link(format!("/proc/{pid}/ns/{kind}")).unwrap().display().to_string()
}

pub(crate) fn runtime(machine: &Hypervisor) -> CriRuntime {
    CriRuntime::on_socket(socket(machine), Deadlines::default()).unwrap()
}

pub(crate) fn named<'a>(machines: &'a [Hypervisor], suffix: &str) -> &'a Hypervisor {
    machines.iter().find(|machine| machine.metadata.name.as_deref().unwrap().ends_with(suffix)).unwrap()
}
