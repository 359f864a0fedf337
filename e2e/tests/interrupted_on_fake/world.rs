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

/// A command that runs longer than this hangs, which is a bug of the program.
const HANGS: Duration = Duration::from_secs(60);

pub(crate) struct World {
    /// The private machine, then the public one.
    pub(crate) machines: [Machine; 2],
    directory: TempDir,
}

/// The result of a command.
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

    /// Returns the documents of both machines and of one new cluster.
    pub(crate) async fn with_cluster(&self) -> String {
        let [private, public] = &self.machines;
        let private = hypervisor("hv-private", "Private", &private.socket, PRIVATE, "");
        let public = hypervisor("hv-public", "Public", &public.socket, PUBLIC[0], PUBLIC[1]);
        let machines = format!("{private}---\n{public}");
        self.keelway(&["cluster", "inject", "--name", "c1"], &machines).await.done()
    }

    /// Returns the same documents with the cluster marked for deletion.
    pub(crate) async fn deleted(&self, documents: &str) -> String {
        self.keelway(&["cluster", "delete", "--name", "c1"], documents).await.done()
    }

    /// Reconciles until settled.
    pub(crate) async fn settle(&self, documents: &str) -> String {
        self.keelway(&["reconcile"], documents).await.done()
    }

    /// Runs `keelway` on these documents.
    pub(crate) async fn keelway(&self, arguments: &[&str], documents: &str) -> Ended {
        end(self.spawn(arguments), documents).await
    }

    /// Runs `keelway-cut`, which records its failpoints and can send itself a signal at one of them.
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

    /// The file in which failpoints are recorded.
    pub(crate) fn points(&self) -> PathBuf {
        self.directory.path().join("points")
    }

    /// Starts `keelway`, which then waits for its documents.
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

    /// Writes a file into the directory of this fleet.
    pub(crate) fn file(&self, name: &str, text: &str) -> PathBuf {
        let file = self.directory.path().join(name);
        fs::write(&file, text).unwrap();
        file
    }

    /// Returns the files in which runs keep documents until they are written.
    pub(crate) fn left(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.directory.path().join("state/keelway")).into_iter().flatten();
        let files = entries.map(|entry| entry.unwrap().path());
        files.filter(|file| file.file_name().unwrap().to_str().unwrap().starts_with("reconcile-")).collect()
    }

    /// Returns the calls that changed something, by machine.
    pub(crate) fn calls(&self) -> [Vec<String>; 2] {
        self.machines.each_ref().map(Machine::calls)
    }

    /// Returns the state of both machines, with `ID` in place of this cluster's id.
    pub(crate) async fn seen(&self, id: impl ToString) -> [Seen; 2] {
        let [private, public] = &self.machines;
        let id = id.to_string();
        [private.seen(&id).await, public.seen(&id).await]
    }
}

impl Ended {
    /// Asserts that the command succeeded, and returns its output.
    pub(crate) fn done(self) -> String {
        assert!(self.status.success(), "{:?}: {}", self.status, self.stderr);
        self.stdout
    }
}

/// Writes documents to the stdin of a program, and waits until it exits.
pub(crate) async fn end(mut child: Child, documents: &str) -> Ended {
    let mut stdin = child.stdin.take().unwrap();
    let feed = async {
        // A program that is killed stops reading.
        let _ = stdin.write_all(documents.as_bytes()).await;
        drop(stdin);
    };
    let (output, ()) = tokio::join!(timeout(HANGS, child.wait_with_output()), feed);
    let output = output.expect("keelway hangs").unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Ended { status: output.status, stdout: text(output.stdout), stderr: text(output.stderr) }
}

/// The program that ships. The build of the workspace puts it beside the programs of tests.
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
