//! A worker's machine: a network behind a NAT, directories of its own, a containerd, and nothing else.

use std::{
    fs,
    io::Write,
    os::fd::AsFd,
    path::PathBuf,
    process::{Child, Command, Output, Stdio},
    sync::LazyLock,
    thread,
};

use keelway_cri::{CriRuntime, Deadlines, testing::cache};
use rustix::{
    process::{Pid, Signal, kill_process},
    thread::{LinkNameSpaceType, move_into_link_name_space},
};

use crate::{
    built,
    plane::{path, write},
    wait,
};

/// Kernel settings that kubelets change and that belong to no network namespace. They are restored on drop.
pub(crate) struct Settings(Vec<(PathBuf, String)>);

impl Settings {
    pub(crate) fn kept() -> Self {
        let names = ["vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops"];
        let paths = names.iter().map(|name| PathBuf::from("/proc/sys").join(name));
        Self(paths.map(|path| (path.clone(), fs::read_to_string(path).unwrap())).collect())
    }
}

impl Drop for Settings {
    fn drop(&mut self) {
        self.0.iter().for_each(|(path, before)| drop(fs::write(path, before)));
    }
}

/// Mounts the directories that belong to the machine alone.
const SETUP: &str = "
mount --make-rprivate /
for directory in /run /var/lib /var/log /usr/libexec; do mount -t tmpfs tmpfs $directory; done
mkdir -p /run/containerd
hostname w1
echo \"$1\" > /run/containerd/config.toml
";
/// containerd is the first process.
const BARE: &str = "exec \"$2\" --config /run/containerd/config.toml";

const CONFIGURATION: &str = "version = 3
root = '/var/lib/containerd'
state = '/run/containerd'
disabled_plugins = ['io.containerd.nri.v1.nri', 'io.containerd.internal.v1.opt', 'io.containerd.snapshotter.v1.btrfs', 'io.containerd.snapshotter.v1.zfs', 'io.containerd.snapshotter.v1.devmapper', 'io.containerd.snapshotter.v1.erofs', 'io.containerd.differ.v1.erofs', 'io.containerd.mount-handler.v1.erofs']

[grpc]
address = '/run/containerd/containerd.sock'

[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = 'registry.k8s.io/pause:3.10.2'

[plugins.'io.containerd.cri.v1.runtime']
restrict_oom_score_adj = true
cdi_spec_dirs = []
stats_collect_period = '10m'

[plugins.'io.containerd.cri.v1.runtime'.cni]
bin_dirs = ['/var/lib/cni-plugins/bin']
conf_dir = '/run/cni/net.d'
";

/// Another snapshotter than the default one, for CRI and for imports.
const NATIVE: &str = "
[plugins.'io.containerd.cri.v1.images']
snapshotter = 'native'

[[plugins.'io.containerd.transfer.v1.local'.unpack_config]]
platform = 'linux'
snapshotter = 'native'
";

pub(crate) struct Machine {
    process: Child,
    /// The process whose namespaces are the machine's.
    pid: u32,
}

impl Machine {
    /// Starts a machine in the network `w1`.
    pub(crate) async fn start() -> Self {
        let process = spawn("containerd.log", &[], CONFIGURATION, BARE);
        let pid = process.id();
        let machine = Self { process, pid };
        machine.is_ready().await;
        machine
    }

    /// Starts a machine with a process table of its own, whose containerd has another snapshotter. `last` becomes its first process, and must start
    /// containerd.
    pub(crate) async fn with_init(last: &str) -> Self {
        let process = spawn(
            "init.log",
            &["--pid", "--fork", "--mount-proc", "--kill-child"],
            &(CONFIGURATION.to_owned() + NATIVE),
            last,
        );
        let children = format!("/proc/{0}/task/{0}/children", process.id());
        let child = || fs::read_to_string(&children).unwrap().trim().parse::<u32>();
        wait::until("the machine begins", async || child().is_ok()).await;
        let machine = Self { pid: child().unwrap(), process };
        machine.is_ready().await;
        machine
    }

    /// Kills the first process. If the machine has a process table of its own, all other processes end as well.
    pub(crate) fn end(mut self) {
        let first = Pid::from_raw(self.pid.cast_signed()).unwrap();
        kill_process(first, Signal::KILL).unwrap();
        // This process ends once all processes of the table have ended.
        self.process.wait().unwrap();
    }

    async fn is_ready(&self) {
        let runtime = self.runtime();
        wait::until("containerd answers", async || runtime.version().await.is_ok()).await;
        for image in ["registry.keelway.dev_node_v1.37.0", "registry.k8s.io_pause_3.10.2"] {
            let archive = cache().unwrap().join("images").join(format!("{image}.tar"));
            let archive = tokio::fs::File::open(&archive).await.expect("run `make images`");
            runtime.import_images(archive).await.unwrap();
        }
    }

    fn root(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root", self.pid))
    }

    /// Returns the path on the host of a file of the machine.
    pub(crate) fn file(&self, path: &str) -> PathBuf {
        self.root().join(path.trim_start_matches('/'))
    }

    /// Returns a client of the machine's containerd.
    pub(crate) fn runtime(&self) -> CriRuntime {
        CriRuntime::on_socket(self.file("/run/containerd/containerd.sock"), Deadlines::default()).unwrap()
    }

    fn command(&self, program: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new("nsenter");
        let target = format!("--target={}", self.pid);
        command.args([&target, "--net", "--mount", "--uts"]);
        if self.pid != self.process.id() {
            command.arg("--pid");
        }
        command.args(["--", program]).args(arguments);
        command
    }

    /// Runs a program on the machine until it ends.
    pub(crate) fn run(&self, program: &str, arguments: &[&str]) -> Output {
        self.command(program, arguments).stdin(Stdio::null()).output().unwrap()
    }

    /// Returns the standard output of a program that must succeed.
    pub(crate) fn output_of(&self, program: &str, arguments: &[&str]) -> String {
        let output = self.run(program, arguments);
        assert!(output.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs `keelway node` with this input, in a shell whose umask is strict.
    pub(crate) async fn node(&self, arguments: &[&str], stdin: &str) -> Output {
        let keelway = built("keelway").display().to_string();
        let shell = ["-c", "umask 077; exec \"$@\"", "sh", &keelway, "node"];
        self.run_with_input("sh", &[&shell, arguments].concat(), stdin).await
    }

    /// Runs a program with this input. Meanwhile the test can serve requests.
    pub(crate) async fn run_with_input(&self, program: &str, arguments: &[&str], stdin: &str) -> Output {
        let mut child = self
            .command(program, arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(fs::File::create(path("keelway.err")).unwrap())
            .spawn()
            .unwrap();
        // A program that is cut may not read its input.
        let _ = child.stdin.take().unwrap().write_all(stdin.as_bytes());
        let mut output = tokio::task::spawn_blocking(move || child.wait_with_output().unwrap()).await.unwrap();
        output.stderr = fs::read(path("keelway.err")).unwrap();
        output
    }

    /// Runs a function in the machine's network namespace.
    pub(crate) fn within<T: Send>(&self, function: impl FnOnce() -> T + Send) -> T {
        let namespace = fs::File::open(format!("/proc/{}/ns/net", self.pid)).unwrap();
        let inside = || {
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            function()
        };
        thread::scope(|scope| scope.spawn(inside).join().unwrap())
    }

    /// Runs `keelway node` with this input, and returns the standard output. The command must succeed.
    pub(crate) async fn node_well(&self, arguments: &[&str], stdin: &str) -> String {
        let output = self.node(arguments, stdin).await;
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Copies the worker's logs to those that are printed if the test fails.
    fn keep_logs(&self) {
        for name in ["node", "kubelet"] {
            let text = fs::read_to_string(self.file(&format!("/var/lib/keelway-node/log/{name}.log")));
            write(&format!("worker-{name}.log"), text.unwrap_or_default());
        }
    }
}

/// Keeps the worker's logs if the test fails. The processes end with the test's host.
impl Drop for Machine {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.keep_logs();
        }
    }
}

/// Starts the machine's first process, which becomes what the shell command `last` starts. There, `$2` is containerd.
fn spawn(log: &str, unshare: &[&str], configuration: &str, last: &str) -> Child {
    let bin = cache().unwrap().join("bin");
    let log = fs::File::create(path(log)).unwrap();
    let search = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    Command::new("nsenter")
        .args(["--net=/run/netns/w1", "unshare", "--mount", "--uts"])
        .args(unshare)
        .args(["sh", "-ec", &(SETUP.to_owned() + last), "sh", configuration])
        .arg(bin.join("containerd"))
        .arg(group())
        .env("PATH", search)
        .stdin(Stdio::null())
        .stdout(log.try_clone().unwrap())
        .stderr(log)
        .spawn()
        .unwrap()
}

/// Returns the cgroup for the pods of this run's workers. Only its name separates it from the cgroups of other runs.
pub(crate) fn group() -> &'static str {
    static GROUP: LazyLock<String> = LazyLock::new(|| format!("/keelway-node-test-{:08x}", rand::random::<u32>()));
    &GROUP
}

/// Returns the arguments of `keelway node` for a join on this machine.
pub(crate) fn join() -> [&'static str; 7] {
    // The machine shares `/usr/local/bin` with this host, so no program is installed there.
    static DIRECTORY: LazyLock<String> = LazyLock::new(|| built("keelway").parent().unwrap().display().to_string());
    ["join", "-", "--allow-cgroup-v1", "--cgroup-root", group(), "--install-dir", &DIRECTORY]
}
