//! The machines of one test.

use std::{fs, path::Path, process::Command, sync::Mutex, thread};

use keelway_api::Documents;

use crate::{
    FinishedCommand, Keelway, TestMachine, deadline, host, keelway, operator, outage, process, proxy::Proxies,
    reach_mode::ReachMode,
};

/// The network of the host. It is connected to the network of clients, and to no other network of the fleet.
const OF_CLIENTS: &str = "/proc/self/ns/net";

/// A fleet that `keelway` creates. It is removed on drop, even if the test fails.
pub struct TestFleet {
    /// The program, in the directory of this fleet.
    pub keelway: Keelway,
    /// The name of the fleet.
    pub fleet: String,
    /// The documents, as `keelway` created them.
    made: Vec<u8>,
    /// The proxies in front of runtimes.
    proxies: Mutex<Option<Proxies>>,
}

impl TestFleet {
    /// Creates a fleet without machines. `tag` is short, starts with `e2e`, and is unique to the test.
    pub fn new(tag: &str) -> Self {
        let fleet = host::fleet(tag);
        Self { keelway: Keelway::new(tag), fleet, made: Vec::new(), proxies: Mutex::default() }
    }

    /// Creates machines with this command.
    pub fn create(&mut self, create: impl FnOnce(&Keelway, &str) -> FinishedCommand) -> Vec<u8> {
        let made = create(&self.keelway, &self.fleet).succeeded().stdout;
        self.made.clone_from(&made);
        made
    }

    /// Creates machines that are reached in this way. From then on, the driver runs where it can reach them. Except for sockets, its user has no
    /// rights on any of the machines.
    pub fn create_reached(&mut self, reach: ReachMode, public: &str, private: &str) -> Vec<u8> {
        let made = self.create(|keelway, fleet| {
            let create = ["hypervisor", "local", "create", "--fleet", fleet];
            keelway.run(&[&create[..], &["--public", public, "--private", private, reach.agent()]].concat(), &[])
        });
        self.reach(reach, &made)
    }

    /// Creates four machines, at least one with each type of endpoint: a public and a private one with agents on the network, a private one whose
    /// runtime is behind a proxy, and a private one with a runtime on this host. The driver runs as root, in the networks of the machines.
    pub fn create_mixed(&mut self) -> Vec<u8> {
        let made = self.create(|keelway, fleet| {
            let create = |public: &str, private: &str, agent: &str| {
                let arguments = ["--fleet", fleet, "--public", public, "--private", private, agent];
                keelway.run(&[&["hypervisor", "local", "create"][..], &arguments].concat(), &[])
            };
            let _ = create("0", "2", ReachMode::Proxy.agent()).succeeded();
            create("1", "3", ReachMode::Network.agent())
        });
        let machines = TestMachine::all(&Documents::read(&made).unwrap());
        let behind = machines.iter().find(|machine| !machine.has_agent()).unwrap();
        let enrolled = self.keelway.run(&["hypervisor", "local", "enroll"], &made).succeeded().stdout;
        let documents = self.put_behind_proxies(&[behind], &enrolled);
        self.keelway = self.keelway.within(&operator::place(&self.fleet, &machines));
        self.made.clone_from(&documents);
        documents
    }

    fn reach(&mut self, reach: ReachMode, made: &[u8]) -> Vec<u8> {
        let machines = self.machines();
        let documents = match reach.enrolled_from() {
            Some(from) => self.keelway.run(&["hypervisor", "local", "enroll", "--from", from], made).succeeded().stdout,
            None if reach == ReachMode::Proxy => self.put_behind_proxies(&machines.iter().collect::<Vec<_>>(), made),
            None => made.to_owned(),
        };
        match reach {
            ReachMode::Socket | ReachMode::AgentSocket => {}
            ReachMode::Network | ReachMode::Proxy => {
                self.keelway = self.keelway.unprivileged_in(&operator::place(&self.fleet, &machines));
            }
            ReachMode::Via | ReachMode::DialOut => self.keelway = self.keelway.unprivileged_in(Path::new(OF_CLIENTS)),
        }
        self.made.clone_from(&documents);
        documents
    }

    /// Starts proxies in front of the runtimes of these machines, and returns documents that use them.
    fn put_behind_proxies(&self, machines: &[&TestMachine], documents: &[u8]) -> Vec<u8> {
        let mut proxies = Proxies::new(self.keelway.directory().join("proxies"));
        for machine in machines {
            proxies.before(machine);
        }
        let documents = proxies.documents(Documents::read(documents).unwrap());
        *self.proxies.lock().unwrap() = Some(proxies);
        documents
    }

    /// Creates one public and one private machine without agents.
    pub fn create_two_without_agents(&mut self) -> Vec<u8> {
        self.create(|keelway, fleet| two(keelway, fleet, "--agent=false"))
    }

    /// Starts the missing parts of the machines again, and returns their documents.
    pub fn restart_missing(&self) -> Vec<u8> {
        two(&self.keelway, &self.fleet, "--agent").succeeded().stdout
    }

    /// Starts the missing parts of machines without agents again.
    pub fn make_whole_without_agents(&self) {
        let _ = two(&self.keelway, &self.fleet, "--agent=false").succeeded();
    }

    /// Creates one public and one private machine with agents.
    pub fn create_two(&mut self) -> Vec<u8> {
        self.create(|keelway, fleet| two(keelway, fleet, "--agent"))
    }

    /// Changes the power of a hypervisor: `stop` or `start`.
    pub fn power(&self, change: &str, machine: &str) {
        let _ = self.keelway.run(&["hypervisor", "local", change, "--fleet", &self.fleet, machine], &[]).succeeded();
        let known = self.machines().into_iter().find(|known| known.name() == machine).unwrap();
        if let Some(proxies) = self.proxies.lock().unwrap().as_mut().filter(|_| change == "start") {
            proxies.before(&known);
        }
    }

    /// Switches a hypervisor off. Returns the time at which its runtime ended, as [`outage::now`] returns it.
    pub fn cut(&self, machine: &str) -> f64 {
        let machines = self.machines();
        let runtime = machines.iter().find(|known| known.name() == machine).unwrap().pid();
        thread::scope(|scope| {
            let off = scope.spawn(|| {
                assert!(process::ends_within(runtime, deadline::KUBERNETES), "the runtime of {machine} goes on");
                outage::now()
            });
            self.power("stop", machine);
            off.join().unwrap()
        })
    }

    /// Returns the machines.
    pub fn machines(&self) -> Vec<TestMachine> {
        TestMachine::all(&Documents::read(&self.made).unwrap())
    }

    /// Copies the logs of components and workers to `failed/FLEET` beside the program, and prints that path.
    fn keep_logs(&self) {
        let kept = keelway::program().with_file_name("failed").join(&self.fleet);
        let _ = fs::remove_dir_all(&kept);
        let machines = fs::read_dir(Path::new("/var/lib/keelway-local").join(&self.fleet));
        for machine in machines.into_iter().flatten().flatten() {
            let to = kept.join(machine.file_name());
            for logs in ["log/keelway", "lib/keelway-node/log"].map(|logs| machine.path().join(logs)) {
                if logs.exists() {
                    copy(&logs, &to);
                }
            }
        }
    }
}

fn copy(logs: &Path, to: &Path) {
    let copied = fs::create_dir_all(to).and_then(|()| Command::new("cp").arg("-r").arg(logs).arg(to).status());
    match copied {
        Ok(status) if status.success() => println!("what was written: {}", to.display()),
        other => println!("{} is not kept: {other:?}", logs.display()),
    }
}

fn two(keelway: &Keelway, fleet: &str, agent: &str) -> FinishedCommand {
    keelway.run(&["hypervisor", "local", "create", "--fleet", fleet, "--public", "1", "--private", "1", agent], &[])
}

impl Drop for TestFleet {
    fn drop(&mut self) {
        if thread::panicking() {
            self.keep_logs();
        }
        let gone = self.keelway.run(&["hypervisor", "local", "destroy"], &self.made);
        if gone.code() != 0 {
            println!("the fleet stays: {}", gone.stderr);
        }
    }
}
