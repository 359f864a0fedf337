//! The program that people run.

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

/// The state of a user who has no right on this machine, and who that is.
const NOBODY: &str = "nobody";
const NOBODYS_ID: u32 = 65534;

/// Runs `keelway` in a directory of its own, with `$XDG_STATE_HOME` in it, and keeps what it says on stderr.
pub struct Keelway {
    directory: PathBuf,
    said: Mutex<String>,
    /// The words before `keelway` itself, where it does not make machines.
    through: Vec<String>,
    /// The name of `$XDG_STATE_HOME`.
    state: &'static str,
    /// Where the programs are, if not beside this test.
    programs: Option<PathBuf>,
}

/// The same program in the same directory. What it says is kept by each.
impl Clone for Keelway {
    fn clone(&self) -> Self {
        Self {
            directory: self.directory.clone(),
            said: Mutex::default(),
            through: self.through.clone(),
            state: self.state,
            programs: self.programs.clone(),
        }
    }
}

impl Keelway {
    /// In a new directory of this name.
    pub fn new(name: &str) -> Self {
        Self {
            directory: host::directory(name),
            said: Mutex::default(),
            through: Vec::new(),
            state: "state",
            programs: None,
        }
    }

    /// Another build of the program, in the same directory.
    #[must_use]
    pub fn of_programs(&self, programs: PathBuf) -> Self {
        Self { programs: Some(programs), ..self.clone() }
    }

    /// The same program in a network namespace, but for what makes machines here.
    #[must_use]
    pub fn within(&self, network: &Path) -> Self {
        let through = vec!["nsenter".to_owned(), format!("--net={}", network.display())];
        Self { through, ..self.clone() }
    }

    /// The same program in a network namespace, run by a user without any right on this machine, but for what makes machines here.
    /// The directory is the same, and the state is that user's own.
    #[must_use]
    pub fn unprivileged_in(&self, network: &Path) -> Self {
        let state = self.directory.join(NOBODY);
        fs::create_dir_all(&state).unwrap();
        chown(&state, Some(NOBODYS_ID), Some(NOBODYS_ID)).unwrap();
        // Others pass through to it, and see no name on the way.
        fs::set_permissions(self.directory.parent().unwrap(), Permissions::from_mode(0o711)).unwrap();
        let mut within = self.within(network);
        let user = [format!("--reuid={NOBODYS_ID}"), format!("--regid={NOBODYS_ID}"), "--clear-groups".to_owned()];
        within.through.extend(["setpriv".to_owned()].into_iter().chain(user));
        Self { state: NOBODY, ..within }
    }

    /// The agent of machines, as it was built beside it.
    pub fn agent() -> PathBuf {
        program().with_file_name("keelway-hypervisor-agent")
    }

    /// Where it runs.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// `$XDG_STATE_HOME/keelway`.
    pub fn state(&self) -> PathBuf {
        self.directory.join(self.state).join("keelway")
    }

    /// Runs `keelway` with these arguments on these documents.
    pub fn run(&self, arguments: &[&str], stdin: &[u8]) -> FinishedCommand {
        self.ended(self.start(arguments, stdin).end(deadline::SETTLE))
    }

    /// Runs `keelway` until it comes to this failpoint, where a signal ends it.
    pub fn interrupt(&self, arguments: &[&str], stdin: &[u8], cut: &FailpointSignal) -> FinishedCommand {
        let own = self.directory.join(self.state);
        fs::create_dir_all(&own).unwrap();
        let mut command = self.command("keelway-cut", arguments);
        command.env("CUT", cut.to_string()).env("POINTS", own.join("points"));
        self.ended(RunningCommand::start(&mut command, stdin).end(deadline::SETTLE))
    }

    /// Runs a line of the documentation, in a shell in its directory.
    pub fn shell(&self, line: &str) -> FinishedCommand {
        let mut command = self.command("bash", &["-eo", "pipefail", "-c", line]);
        self.ended(RunningCommand::start(&mut command, &[]).end(deadline::SETTLE))
    }

    /// All that it ever said on stderr.
    pub fn stderr(&self) -> String {
        self.said.lock().unwrap().clone()
    }

    /// Starts `keelway`, for those who have something to do while it runs. See [`Self::end`].
    pub fn start(&self, arguments: &[&str], stdin: &[u8]) -> RunningCommand {
        RunningCommand::start(&mut self.command("keelway", arguments), stdin)
    }

    /// The end of what was started.
    pub fn end(&self, running: RunningCommand) -> FinishedCommand {
        self.ended(running.end(deadline::SETTLE))
    }

    fn command(&self, program: &str, arguments: &[&str]) -> Command {
        let programs = self.programs.as_deref().or_else(|| self::program().parent()).unwrap();
        let folders = [programs.to_owned(), cache().unwrap().join("bin")];
        let path = env::join_paths(folders.into_iter().chain(env::split_paths(&env::var_os("PATH").unwrap()))).unwrap();
        // Machines are root's, whoever drives them.
        let makes_machines = arguments.get(1) == Some(&"local");
        let through = if makes_machines { &[][..] } else { &self.through };
        let mut words = through.iter().map(String::as_str).chain([program]).chain(arguments.iter().copied());
        let mut command = Command::new(words.next().unwrap_or(program));
        command.args(words).current_dir(&self.directory).env("PATH", path);
        command.env("XDG_STATE_HOME", self.directory.join(self.state));
        command
    }

    fn ended(&self, ran: FinishedCommand) -> FinishedCommand {
        println!("{:>7} ms  {}  -> {}", ran.took.as_millis(), ran.command, ran.code());
        self.said.lock().unwrap().push_str(&ran.stderr);
        ran
    }
}

/// The program under test, with those of agents and of the manager beside it. They are other packages', so that cargo does not build them for these tests by itself.
pub(crate) fn program() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| env::var_os(host::PROGRAM).map_or_else(build, PathBuf::from))
}

/// Built as one of the whole workspace, so that `cargo build --workspace` has done the same work already; a benchmark's is
/// that of a release, without what only tests ask of its crates.
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
