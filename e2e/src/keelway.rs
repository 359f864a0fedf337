//! The `keelway` program, as users run it.

use std::{
    env,
    fs::{self, Permissions},
    os::unix::fs::{PermissionsExt, chown},
    path::{Path, PathBuf},
    process::Command,
    sync::{Mutex, OnceLock},
};

use keelway_cri::testing::cache;

use crate::{
    command::{FinishedCommand, RunningCommand},
    deadline,
    failpoint::FailpointSignal,
    host,
};

/// The state directory and the user id of a user without rights on this machine.
const NOBODY: &str = "nobody";
const NOBODYS_ID: u32 = 65534;

/// Runs `keelway` in a separate directory that contains `$XDG_STATE_HOME`, and records its standard error.
pub struct Keelway {
    directory: PathBuf,
    stderr: Mutex<String>,
    /// The command before `keelway`, except if `keelway` creates machines.
    through: Vec<String>,
    /// The name of the directory `$XDG_STATE_HOME`.
    state: &'static str,
    /// The directory of the programs, if they are not beside this test.
    programs: Option<PathBuf>,
}

/// A clone runs the same program in the same directory. Each records the standard error of its own runs.
impl Clone for Keelway {
    fn clone(&self) -> Self {
        Self {
            directory: self.directory.clone(),
            stderr: Mutex::default(),
            through: self.through.clone(),
            state: self.state,
            programs: self.programs.clone(),
        }
    }
}

impl Keelway {
    /// Creates a directory of this name.
    pub fn new(name: &str) -> Self {
        Self {
            directory: host::directory(name),
            stderr: Mutex::default(),
            through: Vec::new(),
            state: "state",
            programs: None,
        }
    }

    /// Returns the same directory with another build of the program.
    #[must_use]
    pub fn of_programs(&self, programs: PathBuf) -> Self {
        Self { programs: Some(programs), ..self.clone() }
    }

    /// Runs the program in a network namespace, except for commands that create machines on this host.
    #[must_use]
    pub fn within(&self, network: &Path) -> Self {
        let through = vec!["nsenter".to_owned(), format!("--net={}", network.display())];
        Self { through, ..self.clone() }
    }

    /// Returns the same directory, with commands that run as root on this host, as those of people do.
    #[must_use]
    pub fn on_host(&self) -> Self {
        Self { through: Vec::new(), state: "state", ..self.clone() }
    }

    /// Runs the program in a network namespace as a user without rights on this machine, except for commands that create machines on this host. The
    /// directory is the same. The state directory belongs to that user.
    #[must_use]
    pub fn unprivileged_in(&self, network: &Path) -> Self {
        let state = self.directory.join(NOBODY);
        fs::create_dir_all(&state).unwrap();
        chown(&state, Some(NOBODYS_ID), Some(NOBODYS_ID)).unwrap();
        // With this mode, that user can reach the directory and cannot list its parent.
        fs::set_permissions(self.directory.parent().unwrap(), Permissions::from_mode(0o711)).unwrap();
        let mut within = self.within(network);
        let user = [format!("--reuid={NOBODYS_ID}"), format!("--regid={NOBODYS_ID}"), "--clear-groups".to_owned()];
        within.through.extend(["setpriv".to_owned()].into_iter().chain(user));
        Self { state: NOBODY, ..within }
    }

    /// Returns the path of the agent from the same build.
    pub fn agent() -> PathBuf {
        program().with_file_name("keelway-hypervisor-agent")
    }

    /// Returns the working directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns `$XDG_STATE_HOME/keelway`.
    pub fn state(&self) -> PathBuf {
        self.directory.join(self.state).join("keelway")
    }

    /// Runs `keelway` with these arguments and documents.
    pub fn run(&self, arguments: &[&str], stdin: &[u8]) -> FinishedCommand {
        self.ended(self.start(arguments, stdin).end(deadline::SETTLE))
    }

    /// Runs `keelway` up to this failpoint, where a signal ends it.
    pub fn interrupt(&self, arguments: &[&str], stdin: &[u8], cut: &FailpointSignal) -> FinishedCommand {
        let own = self.directory.join(self.state);
        fs::create_dir_all(&own).unwrap();
        let mut command = self.command("keelway-cut", arguments);
        command.env("CUT", cut.to_string()).env("POINTS", own.join("points"));
        self.ended(RunningCommand::start(&mut command, stdin).end(deadline::SETTLE))
    }

    /// Runs a line of the documentation in a shell in the working directory.
    pub fn shell(&self, line: &str) -> FinishedCommand {
        let mut command = self.command("bash", &["-eo", "pipefail", "-c", line]);
        self.ended(RunningCommand::start(&mut command, &[]).end(deadline::SETTLE))
    }

    /// Returns the standard error of all runs.
    pub fn stderr(&self) -> String {
        self.stderr.lock().unwrap().clone()
    }

    /// Starts `keelway`, for a caller that acts while it runs. See [`Self::end`].
    pub fn start(&self, arguments: &[&str], stdin: &[u8]) -> RunningCommand {
        RunningCommand::start(&mut self.command("keelway", arguments), stdin)
    }

    /// Waits for the end of a command that [`Self::start`] started.
    pub fn end(&self, running: RunningCommand) -> FinishedCommand {
        self.ended(running.end(deadline::SETTLE))
    }

    fn command(&self, program: &str, arguments: &[&str]) -> Command {
        let programs = self.programs.as_deref().or_else(|| self::program().parent()).unwrap();
        let folders = [programs.to_owned(), cache().unwrap().join("bin")];
        let path = env::join_paths(folders.into_iter().chain(env::split_paths(&env::var_os("PATH").unwrap()))).unwrap();
        // Only root can create machines, whatever user drives them.
        let makes_machines = arguments.get(1) == Some(&"local");
        let through = if makes_machines { &[][..] } else { &self.through };
        let mut words = through.iter().map(String::as_str).chain([program]).chain(arguments.iter().copied());
        let mut command = Command::new(words.next().unwrap_or(program));
        command.args(words).current_dir(&self.directory).env("PATH", path);
        command.env("XDG_STATE_HOME", self.directory.join(self.state));
        command
    }

    fn ended(&self, finished: FinishedCommand) -> FinishedCommand {
        println!("{:>7} ms  {}  -> {}", finished.took.as_millis(), finished.command, finished.code());
        self.stderr.lock().unwrap().push_str(&finished.stderr);
        finished
    }
}

/// Returns the program under test. The agent and the manager are beside it. They belong to other packages, so Cargo does not build them for
/// these tests.
pub(crate) fn program() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| env::var_os(host::PROGRAM).map_or_else(build, PathBuf::from))
}

/// Returns the directory of the program under test. A worker that joins with it as `--install-dir` installs no copy of that large program.
pub fn program_directory() -> &'static str {
    program().parent().and_then(Path::to_str).unwrap()
}

/// Builds the programs as part of the entire workspace, so that `cargo build --workspace` has already done the same work. A benchmark builds them in
/// release mode, without the features that only tests enable.
fn build() -> PathBuf {
    if let Some(cargo) = env::var_os("CARGO") {
        let of_release = ["--release", "-p", "keelway-cli", "-p", "keelway-hypervisor-agent", "-p", "keelway-manager"];
        let packages = if cfg!(debug_assertions) { &["--workspace"][..] } else { &of_release };
        let built = Command::new(cargo)
            .args(["build", "--quiet", "--bin", "keelway", "--bin", "keelway-hypervisor-agent"])
            .args(["--bin", "keelway-manager"])
            .args(packages)
            .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap())
            .status()
            .unwrap();
        assert!(built.success(), "keelway was not built: {built}");
    }
    // target/PROFILE/deps/live-HASH
    env::current_exe().unwrap().ancestors().nth(2).unwrap().join("keelway")
}
