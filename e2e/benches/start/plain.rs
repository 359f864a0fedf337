//! The programs of a cluster as plain processes: the same binaries, arguments, users, keys and ports, and no container.

use std::{
    collections::BTreeMap,
    fs,
    net::SocketAddr,
    os::unix::fs::{PermissionsExt, chown},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use keelway_api::component::ComponentSpec;
use keelway_e2e::{ControlPlane, Machine, deadline, found::tree, https::Https, process};

use crate::memory::Group;

/// What containers see of their pod's directories, and what stands for it here.
const FILES: &str = "/etc/keelway";
const STATE: [&str; 2] = ["/var/lib/etcd", "/run/haproxy"];

/// A cluster's programs, ready to be started. Their keys are on disk.
pub(crate) struct Plain {
    programs: BTreeMap<String, Program>,
    readyz: Https,
    ingress: SocketAddr,
}

/// One of them.
struct Program {
    /// Index of its machine.
    machine: usize,
    arguments: Vec<String>,
    user: u32,
}

/// The programs while they run. They are killed at the end.
pub(crate) struct Running {
    pub(crate) children: BTreeMap<String, Child>,
    pub(crate) groups: BTreeMap<String, Group>,
    /// From the first start to an answer of `/readyz` through the ingress.
    pub(crate) took: Duration,
}

impl Plain {
    /// Copies all that the components of a running cluster have.
    pub(crate) fn of(plane: &ControlPlane<'_>, directory: &Path) -> Self {
        let _ = fs::remove_dir_all(directory);
        fs::create_dir_all(directory).unwrap();
        let mut programs = BTreeMap::new();
        for (name, component) in plane.components() {
            let on = |machine: &Machine| machine.name() == component.spec.hypervisor.as_str();
            let machine = plane.machines.iter().position(on).unwrap();
            let copy = Copy { plane, machine: &plane.machines[machine], home: directory.join(&name) };
            let user = component.spec.user;
            programs.insert(
                name.clone(),
                Program { machine, arguments: copy.make(&name, &component.spec, directory), user },
            );
        }
        let readyz = Https::new(&plane.secret("kubernetes-ca", "bundle.crt"), "kubernetes", None);
        Self { programs, readyz, ingress: plane.ingress() }
    }

    /// Starts all at once, each in the network of its machine, and waits until the API is ready.
    pub(crate) fn start(&self, machines: &[Machine], directory: &Path) -> Running {
        for name in self.programs.keys() {
            for state in ["data", "run"] {
                empty(&directory.join(name).join(state), self.programs[name].user);
            }
        }
        let mut running = Running { children: BTreeMap::new(), groups: BTreeMap::new(), took: Duration::ZERO };
        let groups = self.programs.keys().map(|name| (name.clone(), Group::new(name)));
        running.groups.extend(groups);
        let started = Instant::now();
        for (name, program) in &self.programs {
            let child = program.start(&machines[program.machine], &running.groups[name], &directory.join(name));
            running.children.insert(name.clone(), child);
        }
        self.await_ready();
        running.took = started.elapsed();
        running
    }

    /// Starts one again that has ended.
    pub(crate) fn start_again(&self, name: &str, machines: &[Machine], running: &mut Running, directory: &Path) {
        let program = &self.programs[name];
        let child = program.start(&machines[program.machine], &running.groups[name], &directory.join(name));
        running.children.insert(name.to_owned(), child);
    }

    /// Waits for an answer of `/readyz` through the ingress.
    pub(crate) fn await_ready(&self) {
        ready(&self.readyz, self.ingress);
    }
}

/// Waits until `/readyz` is answered there.
pub(crate) fn ready(readyz: &Https, address: SocketAddr) {
    let answers = || {
        let stream = std::net::TcpStream::connect_timeout(&address, deadline::ANSWER);
        stream.and_then(|stream| readyz.get(stream, "/readyz")).is_ok_and(|answer| answer.status == 200)
    };
    deadline::until("/readyz", deadline::KUBERNETES, answers);
}

struct Copy<'a> {
    plane: &'a ControlPlane<'a>,
    machine: &'a Machine,
    home: PathBuf,
}

impl Copy<'_> {
    /// Copies program and files, and returns the command line with the paths of the copies.
    fn make(&self, name: &str, spec: &ComponentSpec, directory: &Path) -> Vec<String> {
        let user = spec.user;
        let container = &self.machine.running()[name].container;
        let pid = self.machine.container_pid(container);
        fs::create_dir_all(&self.home).unwrap();
        let program = directory.join(format!("program-{}", spec.role));
        if !program.exists() {
            fs::copy(format!("/proc/{pid}/exe"), &program).unwrap();
            fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        }
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
        let line = String::from_utf8(process::file(pid, "cmdline").unwrap()).unwrap();
        let arguments = line.trim_end_matches('\0').split('\0').skip(1).map(|argument| self.moved(argument));
        [program.display().to_string()].into_iter().chain(arguments).collect()
    }

    fn moved(&self, text: &str) -> String {
        let home = self.home.display();
        let text = text.replace(FILES, &format!("{home}/files"));
        text.replace(STATE[0], &format!("{home}/data")).replace(STATE[1], &format!("{home}/run"))
    }
}

impl Program {
    fn start(&self, machine: &Machine, group: &Group, home: &Path) -> Child {
        const ENTER: &str = "echo $$ > \"$PROCS\"; exec \"$@\"";
        let user = self.user.to_string();
        let log = fs::File::create(home.join("log")).unwrap();
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
    /// Kills one, and waits until it has ended.
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
