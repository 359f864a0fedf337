//! The programs of a cluster as plain processes: the same binaries, arguments, users, keys and ports, without containers.

use std::{
    collections::BTreeMap,
    fs,
    net::SocketAddr,
    os::unix::fs::{PermissionsExt, chown},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use keelway_e2e::{
    TestControlPlane, TestMachine, deadline, https::HttpsClient, machine::RunningComponent as Container,
    machine_facts::tree, process,
};

use crate::memory::Group;

/// Paths in containers. [`STATE`] maps each path to the directory in the program's home that replaces it.
const FILES: &str = "/etc/keelway";
const STATE: [(&str, &str); 5] = [
    ("/var/lib/etcd", "data"),
    ("/run/haproxy", "run"),
    ("/run/keelway-cluster-controller", "run"),
    ("/run/keelway-egress", "egress"),
    ("/var/lib/keelway-gateway", "peers"),
];

/// The programs of a cluster, ready to be started. Their keys are on disk.
pub(crate) struct Plain {
    programs: BTreeMap<String, Program>,
    readyz: HttpsClient,
    ingress: SocketAddr,
}

struct Program {
    /// The index of its machine.
    machine: usize,
    arguments: Vec<String>,
    user: u32,
    /// The directory with the copies of its pod's directories.
    home: PathBuf,
}

/// The running programs. They are killed on drop.
pub(crate) struct Running {
    pub(crate) children: BTreeMap<String, Child>,
    pub(crate) groups: BTreeMap<String, Group>,
    /// The time from the first start to a successful response of `/readyz` through the ingress.
    pub(crate) took: Duration,
    /// When that response arrived.
    pub(crate) ready: Instant,
}

impl Plain {
    /// Copies the programs and files of all components of a running cluster.
    pub(crate) fn of(plane: &TestControlPlane<'_>, directory: &Path) -> Self {
        let _ = fs::remove_dir_all(directory);
        fs::create_dir_all(directory).unwrap();
        let mut programs = BTreeMap::new();
        for (name, component) in plane.components() {
            let on = |machine: &TestMachine| machine.name() == component.spec.hypervisor.as_str();
            let machine = plane.machines.iter().position(on).unwrap();
            let home = directory.join(&name);
            let copy = Copy { plane, machine: &plane.machines[machine], home: home.clone() };
            let user = component.spec.user;
            copy.files(&name, user);
            let running = &copy.machine.running()[&name];
            let arguments = copy.command(running, &directory.join(format!("program-{}", component.spec.role)));
            programs.insert(name.clone(), Program { machine, arguments, user, home: home.clone() });
            if let Some(running) = copy.machine.running_beside().get(&name) {
                let arguments = copy.command(running, &directory.join("program-beside"));
                programs.insert(format!("beside-{name}"), Program { machine, arguments, user, home });
            }
        }
        let readyz = HttpsClient::new(&plane.secret("kubernetes-ca", "bundle.crt"), "kubernetes", None);
        Self { programs, readyz, ingress: plane.ingress() }
    }

    /// Starts all programs at once, each in the network of its machine, and waits until the API is ready.
    pub(crate) fn start(&self, machines: &[TestMachine]) -> Running {
        for program in self.programs.values() {
            for (_, state) in STATE {
                empty(&program.home.join(state), program.user);
            }
        }
        let groups = self.programs.keys().map(|name| (name.clone(), Group::new(name))).collect();
        let started = Instant::now();
        let mut running = Running { children: BTreeMap::new(), groups, took: Duration::ZERO, ready: started };
        for (name, program) in &self.programs {
            let child = program.start(name, &machines[program.machine], &running.groups[name]);
            running.children.insert(name.clone(), child);
        }
        running.ready = ready(&self.readyz, self.ingress);
        running.took = running.ready - started;
        running
    }

    /// Restarts a program that has ended.
    pub(crate) fn start_again(&self, name: &str, machines: &[TestMachine], running: &mut Running) {
        let program = &self.programs[name];
        let child = program.start(name, &machines[program.machine], &running.groups[name]);
        running.children.insert(name.to_owned(), child);
    }
}

/// Waits until `/readyz` at this address responds with 200, and returns when it did.
pub(crate) fn ready(readyz: &HttpsClient, address: SocketAddr) -> Instant {
    let answers = || {
        let stream = std::net::TcpStream::connect_timeout(&address, deadline::ANSWER);
        stream.and_then(|stream| readyz.get(stream, "/readyz")).is_ok_and(|answer| answer.status == 200)
    };
    deadline::until("/readyz", deadline::KUBERNETES, answers);
    Instant::now()
}

struct Copy<'a> {
    plane: &'a TestControlPlane<'a>,
    machine: &'a TestMachine,
    home: PathBuf,
}

impl Copy<'_> {
    /// Copies a program, and returns its command line with the paths of the copies.
    fn command(&self, running: &Container, program: &Path) -> Vec<String> {
        let pid = self.machine.container_pid(&running.container);
        if !program.exists() {
            fs::copy(format!("/proc/{pid}/exe"), program).unwrap();
            fs::set_permissions(program, fs::Permissions::from_mode(0o755)).unwrap();
        }
        let line = String::from_utf8(process::file(pid, "cmdline").unwrap()).unwrap();
        let arguments = line.trim_end_matches('\0').split('\0').skip(1).map(|argument| self.moved(argument));
        [program.display().to_string()].into_iter().chain(arguments).collect()
    }

    /// Copies the files of a pod.
    fn files(&self, name: &str, user: u32) {
        fs::create_dir_all(&self.home).unwrap();
        let files = self.machine.path(&format!("/var/lib/keelway/{}/{name}/files", self.plane.id()));
        for file in tree(&files) {
            let copy = self.home.join("files").join(file.strip_prefix(&files).unwrap());
            if file.is_dir() {
                fs::create_dir_all(copy).unwrap();
            } else {
                fs::create_dir_all(copy.parent().unwrap()).unwrap();
                fs::write(&copy, self.moved(&fs::read_to_string(file).unwrap())).unwrap();
                fs::set_permissions(&copy, fs::Permissions::from_mode(0o600)).unwrap();
                chown(&copy, Some(user), Some(user)).unwrap();
            }
        }
    }

    fn moved(&self, text: &str) -> String {
        let home = self.home.display();
        let text = text.replace(FILES, &format!("{home}/files"));
        STATE.iter().fold(text, |text, (path, copy)| text.replace(path, &format!("{home}/{copy}")))
    }
}

impl Program {
    fn start(&self, name: &str, machine: &TestMachine, group: &Group) -> Child {
        const ENTER: &str = "echo $$ > \"$PROCS\"; exec \"$@\"";
        let user = self.user.to_string();
        let log = fs::File::create(self.home.join(format!("{name}.log"))).unwrap();
        let mut command = Command::new("sh");
        command
            .args(["-c", ENTER, "sh", "setpriv", "--no-new-privs", "--clear-groups"])
            .args(["--reuid", &user, "--regid", &user, "--bounding-set", "-all"])
            .args(&self.arguments)
            .env("PROCS", group.procs())
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log);
        machine.within(|| command.spawn().unwrap())
    }
}

impl Running {
    /// Kills a program, and waits until it has ended.
    pub(crate) fn kill(&mut self, name: &str) {
        if let Some(mut child) = self.children.remove(name) {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let names: Vec<String> = self.children.keys().cloned().collect();
        for name in names {
            self.kill(&name);
        }
    }
}

fn empty(directory: &Path, user: u32) {
    let _ = fs::remove_dir_all(directory);
    fs::create_dir_all(directory).unwrap();
    fs::set_permissions(directory, fs::Permissions::from_mode(0o700)).unwrap();
    chown(directory, Some(user), Some(user)).unwrap();
}
