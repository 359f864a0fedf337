//! Two fake machines in one network, and the commands on them.

use std::{
    fs,
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    time::Duration,
};

use keelway_e2e::failpoint::FailpointSignal;
use tempfile::TempDir;
use tokio::{
    io::AsyncWriteExt,
    process::{Child, Command},
    time::timeout,
};

use crate::machine::{Machine, Seen};

const PRIVATE: &str = "198.19.0.11";
/// The public machine's address in the private network, and in the public one.
const PUBLIC: [&str; 2] = ["198.19.0.12", "198.18.0.12"];

/// When a command hangs, which is a fault of the program.
const HANGS: Duration = Duration::from_secs(60);

pub(crate) struct World {
    /// The private one, then the public one.
    pub(crate) machines: [Machine; 2],
    directory: TempDir,
}

/// How a command ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ended {
    pub(crate) fn killed(&self) -> bool {
        self.status.signal() == Some(9)
    }
}

impl World {
    pub(crate) async fn start() -> Self {
        let prefix = format!("keelway-interrupted-on-fake-{}-", std::process::id());
        let directory = tempfile::Builder::new().prefix(&prefix).tempdir().unwrap();
        let folder = |name: &str| {
            let folder = directory.path().join(name);
            fs::create_dir(&folder).unwrap();
            folder
        };
        let addresses = [PRIVATE, PUBLIC[0], PUBLIC[1]].map(|address| format!("--address={address}"));
        let private = Machine::start(&folder("private"), &addresses).await;
        let public = Machine::start(&folder("public"), &[format!("--beside={}", private.pid())]).await;
        Self { machines: [private, public], directory }
    }

    /// The documents of both machines and of one new cluster.
    pub(crate) async fn with_cluster(&self) -> String {
        let [private, public] = &self.machines;
        let private = hypervisor("hv-private", "Private", &private.socket, PRIVATE, "");
        let public = hypervisor("hv-public", "Public", &public.socket, PUBLIC[0], PUBLIC[1]);
        let machines = format!("{private}---\n{public}");
        self.keelway(&["cluster", "inject", "--name", "c1"], &machines).await.done()
    }

    /// The same documents with the cluster marked for deletion.
    pub(crate) async fn deleted(&self, documents: &str) -> String {
        self.keelway(&["cluster", "delete", "--name", "c1"], documents).await.done()
    }

    /// Reconciles to the end.
    pub(crate) async fn settle(&self, documents: &str) -> String {
        self.keelway(&["reconcile"], documents).await.done()
    }

    /// Runs the program on documents.
    pub(crate) async fn keelway(&self, arguments: &[&str], documents: &str) -> Ended {
        end(self.spawn(arguments), documents).await
    }

    /// The same of the program that tells of its failpoints, and ends itself at one of them.
    pub(crate) async fn keelway_until(
        &self,
        cut: Option<&FailpointSignal>,
        arguments: &[&str],
        documents: &str,
    ) -> Ended {
        let mut command = self.run(Path::new(env!("CARGO_BIN_EXE_keelway-cut")), arguments);
        command.env("POINTS", self.points()).stderr(Stdio::piped());
        if let Some(cut) = cut {
            command.env("CUT", cut.to_string());
        }
        end(command.spawn().unwrap(), documents).await
    }

    /// Where the failpoints are told of.
    pub(crate) fn points(&self) -> PathBuf {
        self.directory.path().join("points")
    }

    /// Starts the program; it waits for its documents.
    pub(crate) fn spawn(&self, arguments: &[&str]) -> Child {
        self.command(arguments).stderr(Stdio::piped()).spawn().unwrap()
    }

    fn command(&self, arguments: &[&str]) -> Command {
        self.run(&program(), arguments)
    }

    fn run(&self, program: &Path, arguments: &[&str]) -> Command {
        let mut command = Command::new(program);
        command
            .args(arguments)
            .env_clear()
            .env("XDG_STATE_HOME", self.directory.path().join("state"))
            .env("XDG_CACHE_HOME", self.directory.path().join("cache"))
            .env("NO_COLOR", "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true);
        command
    }

    /// A file of this world.
    pub(crate) fn file(&self, name: &str, text: &str) -> PathBuf {
        let file = self.directory.path().join(name);
        fs::write(&file, text).unwrap();
        file
    }

    /// Files with documents that a run keeps until they are written.
    pub(crate) fn left(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.directory.path().join("state/keelway")).into_iter().flatten();
        let files = entries.map(|entry| entry.unwrap().path());
        files.filter(|file| file.file_name().unwrap().to_str().unwrap().starts_with("reconcile-")).collect()
    }

    /// Calls that changed something, by machine.
    pub(crate) fn calls(&self) -> [Vec<String>; 2] {
        self.machines.each_ref().map(Machine::calls)
    }

    /// What is on both machines, with `ID` in the place of this cluster's id.
    pub(crate) async fn seen(&self, id: impl ToString) -> [Seen; 2] {
        let [private, public] = &self.machines;
        let id = id.to_string();
        [private.seen(&id).await, public.seen(&id).await]
    }
}

impl Ended {
    /// What a command wrote that did what it was asked for.
    pub(crate) fn done(self) -> String {
        assert!(self.status.success(), "{:?}: {}", self.status, self.stderr);
        self.stdout
    }
}

/// Gives a program its documents, and waits for its end.
pub(crate) async fn end(mut child: Child, documents: &str) -> Ended {
    let mut stdin = child.stdin.take().unwrap();
    let feed = async {
        // One that is killed reads no further.
        let _ = stdin.write_all(documents.as_bytes()).await;
        drop(stdin);
    };
    let (output, ()) = tokio::join!(timeout(HANGS, child.wait_with_output()), feed);
    let output = output.expect("keelway hangs").unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Ended { status: output.status, stdout: text(output.stdout), stderr: text(output.stderr) }
}

/// The program that ships, which the workspace's build puts beside the tests' own programs.
pub(crate) fn program() -> PathBuf {
    let program = Path::new(env!("CARGO_BIN_EXE_fake-machine")).with_file_name("keelway");
    assert!(program.exists(), "{} is missing: cargo build --workspace makes it", program.display());
    program
}

pub(crate) fn hypervisor(name: &str, role: &str, socket: &Path, private: &str, public: &str) -> String {
    format!(
        "apiVersion: keelway.dev/v1alpha1
kind: Hypervisor
metadata: {{name: {name}}}
spec:
  role: {role}
  endpoint: {{unix: {{path: {}}}}}
  addresses: {{private: [{private}], public: [{public}]}}
",
        socket.display()
    )
}
