//! Starts and stops the daemon, with systemd or without.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use crate::{
    files::{self, NodeFileError},
    logs, memory,
    process::{self, ProcessId},
    settings::{DaemonMode, Layout},
};

/// The name of the unit.
const UNIT: &str = "keelway-node.service";
/// The daemon's log file, if there is no journal.
pub(crate) const NODE_LOG: &str = "node.log";
/// How long the daemon may take to end after SIGTERM.
const GRACE: Duration = Duration::from_secs(20);

/// The daemon cannot be started or stopped.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// A file operation failed.
    #[error(transparent)]
    File(#[from] NodeFileError),
    /// The daemon cannot be started.
    #[error("cannot start {}", program.display())]
    Spawn {
        /// The program of the daemon.
        program: PathBuf,
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
    /// systemctl failed.
    #[error("systemctl {arguments} failed: {stderr}")]
    Systemctl {
        /// The arguments of systemctl.
        arguments: String,
        /// The output of systemctl.
        stderr: String,
    },
    /// The daemon ended unexpectedly.
    #[error("the worker's daemon exited ({how}); see its log in {log}")]
    Ended {
        /// The exit status.
        how: String,
        /// The location of its log.
        log: String,
    },
    /// The wait for the daemon's end failed.
    #[error("cannot stop the worker's daemon")]
    End(#[source] io::Error),
}

/// Whether systemd runs this machine.
#[must_use]
pub fn has_systemd() -> bool {
    Path::new("/run/systemd/system").exists()
}

fn unit_path() -> PathBuf {
    Path::new("/etc/systemd/system").join(UNIT)
}

/// Returns the unit. Kubelet and pods continue to run when the daemon is stopped, restarted or upgraded (`KillMode=process`).
#[must_use]
pub fn unit(program: &Path, layout: &Layout) -> String {
    format!(
        "[Unit]
Description=Keelway worker: tunnels, API balancer, kubelet
After=network-online.target containerd.service
Wants=network-online.target
StartLimitIntervalSec=0

[Service]
Type=notify
ExecStart={} node run --state-dir {}
Restart=always
RestartSec=1
KillMode=process
Delegate=yes
LimitNOFILE=1048576
TasksMax=infinity

[Install]
WantedBy=multi-user.target
",
        quoted(program),
        quoted(layout.root())
    )
}

/// Quotes a word of a command line for systemd (systemd.service(5), "Command lines").
fn quoted(path: &Path) -> String {
    let mut word = String::from("\"");
    for letter in path.to_string_lossy().chars() {
        match letter {
            '"' | '\\' => word.extend(['\\', letter]),
            '%' | '$' => word.extend([letter, letter]),
            _ => word.push(letter),
        }
    }
    word + "\""
}

/// The daemon, if it is a child of this process. A caller that waits for the Node observes its end.
pub(crate) struct StartedDaemon(Option<Child>);

impl StartedDaemon {
    /// Waits for the daemon's end, and returns the exit status. It never returns if the daemon is not a child of this process.
    pub(crate) async fn ended(self) -> String {
        let handle = self.0.as_ref().and_then(|child| ProcessId::of(child.id())).and_then(ProcessId::open);
        match (self.0, handle) {
            (None, _) => std::future::pending().await,
            (Some(mut child), handle) => {
                if let Some(handle) = handle
                    && handle.ended().await.is_err()
                {
                    std::future::pending::<()>().await;
                }
                child.wait().map_or_else(|error| error.to_string(), |status| status.to_string())
            }
        }
    }
}

/// Starts the daemon. With systemd, the daemon is also restarted when it ends.
pub(crate) fn start(service: DaemonMode, program: &Path, layout: &Layout) -> Result<StartedDaemon, ServiceError> {
    tracing::debug!(action = "daemon", "begins");
    let started = begin(service, program, layout)?;
    tracing::debug!(action = "daemon", "done");
    Ok(started)
}

fn begin(service: DaemonMode, program: &Path, layout: &Layout) -> Result<StartedDaemon, ServiceError> {
    match service {
        DaemonMode::Systemd => {
            files::write(&unit_path(), unit(program, layout), 0o644)?;
            systemctl(&["daemon-reload"])?;
            systemctl(&["enable", UNIT])?;
            systemctl(&["restart", UNIT])?;
        }
        DaemonMode::Detached => return detach(program, layout).map(StartedDaemon),
        DaemonMode::None => {}
    }
    Ok(StartedDaemon(None))
}

/// Starts the daemon, which creates a session of its own. If one already runs, nothing happens.
fn detach(program: &Path, layout: &Layout) -> Result<Option<Child>, ServiceError> {
    if ProcessId::load(&layout.daemon_process())?.is_some() || daemons(layout).next().is_some() {
        return Ok(None);
    }
    let log = layout.logs().join(NODE_LOG);
    let mut command = Command::new(program);
    command.args(["node", "run", "--detached", "--state-dir"]).arg(layout.root());
    process::clear_environment(&mut command);
    let child = memory::spawn_small(command.stdin(Stdio::null()).stdout(logs::open(&log)?).stderr(logs::open(&log)?));
    child.map(Some).map_err(|source| ServiceError::Spawn { program: program.to_owned(), source })
}

/// Stops the daemon, and prevents systemd from starting it again. It succeeds if the daemon does not run.
pub(crate) async fn stop(service: DaemonMode, layout: &Layout) -> Result<(), ServiceError> {
    // The unit may also exist if the worker has since joined with another mode.
    if files::read(&unit_path())?.is_some_and(|unit| service == DaemonMode::Systemd || is_of(&unit, layout)) {
        if has_systemd() {
            systemctl(&["disable", "--now", UNIT])?;
        }
        files::remove(&unit_path())?;
        if has_systemd() {
            systemctl(&["daemon-reload"])?;
        }
    }
    let kept = ProcessId::load(&layout.daemon_process())?;
    for daemon in kept.into_iter().chain(daemons(layout)).filter_map(ProcessId::open) {
        daemon.end(GRACE).await.map_err(ServiceError::End)?;
    }
    Ok(())
}

/// Finds detached daemons by their arguments, because a daemon that has just started has not yet written its process file.
fn daemons(layout: &Layout) -> impl Iterator<Item = ProcessId> {
    let root = layout.root().as_os_str().as_encoded_bytes().to_owned();
    let is_daemon = move |pid: &u32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let words: Vec<&[u8]> = line.split(|byte| *byte == 0).skip(1).collect();
        words.starts_with(&[b"node", b"run", b"--detached", b"--state-dir", &root])
    };
    process::of_this_network().into_iter().filter(is_daemon).filter_map(ProcessId::of)
}

fn is_of(unit: &str, layout: &Layout) -> bool {
    let ending = format!(" node run --state-dir {}", quoted(layout.root()));
    unit.lines().any(|line| line.starts_with("ExecStart=") && line.ends_with(&ending))
}

fn systemctl(arguments: &[&str]) -> Result<(), ServiceError> {
    let program = PathBuf::from("systemctl");
    let output = Command::new(&program).args(arguments).output();
    let output = output.map_err(|source| ServiceError::Spawn { program, source })?;
    if output.status.success() {
        return Ok(());
    }
    let stderr = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(ServiceError::Systemctl { arguments: arguments.join(" "), stderr })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs only if the machine has systemd.
    #[test]
    fn systemd_accepts_the_unit() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(UNIT);
        fs::write(&path, unit(Path::new("/bin/sh"), &Layout::new("/var/lib/keelway-node"))).unwrap();
        let verified = Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&path).output();
        let Ok(output) = verified else { return };
        let stderr = String::from_utf8_lossy(&output.stderr);
        // systemd also verifies units that this one names, which do not belong to Keelway.
        let of_ours: Vec<&str> = stderr.lines().filter(|line| line.contains("keelway-node")).collect();
        assert!(of_ours.is_empty(), "{stderr}");
    }

    #[test]
    fn the_unit_does_not_stop_kubelet_and_pods() {
        let layout = Layout::new("/var/lib/keelway-node");
        let unit = unit(Path::new("/usr/local/bin/keelway"), &layout);
        assert!(unit.contains("\nKillMode=process\n"));
        assert!(unit.contains("\nStartLimitIntervalSec=0\n"));
        let start = "\nExecStart=\"/usr/local/bin/keelway\" node run --state-dir \"/var/lib/keelway-node\"\n";
        assert!(unit.contains(start), "{unit}");
        assert!(is_of(&unit, &layout));
        assert!(!is_of(&unit, &Layout::new("/var/lib/keelway")));
    }

    #[test]
    fn paths_are_quoted() {
        assert_eq!(quoted(Path::new("/a b/50%/$HOME")), r#""/a b/50%%/$$HOME""#);
        assert_eq!(quoted(Path::new(r#"/a"b\c"#)), r#""/a\"b\\c""#);
    }

    #[tokio::test]
    async fn the_exit_of_a_daemon_is_reported() {
        let child = Command::new("sh").args(["-c", "exit 3"]).spawn().unwrap();
        assert!(StartedDaemon(Some(child)).ended().await.contains('3'));
    }
}
