//! Who keeps the daemon running.

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

/// The unit's name.
const UNIT: &str = "keelway-node.service";
/// Where the daemon writes what it does, unless there is a journal.
pub(crate) const NODE_LOG: &str = "node.log";
/// How long the daemon has to end by itself.
const GRACE: Duration = Duration::from_secs(20);

/// The daemon cannot be started or stopped.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// A file failed.
    #[error(transparent)]
    File(#[from] NodeFileError),
    /// The daemon cannot be started.
    #[error("cannot start {}", program.display())]
    Spawn {
        /// Which program.
        program: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// systemd said no.
    #[error("systemctl {arguments} failed: {said}")]
    Systemctl {
        /// What was asked for.
        arguments: String,
        /// What it said.
        said: String,
    },
    /// The daemon ended while it was waited for.
    #[error("the worker's daemon ended ({how}): its log is in {log}")]
    Ended {
        /// How.
        how: String,
        /// Where its log is.
        log: String,
    },
    /// It cannot be waited for.
    #[error("cannot end the worker's daemon")]
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

/// The unit. The kubelet and pods go on when the daemon is stopped, restarted or upgraded (`KillMode=process`).
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

/// A word of a command line as systemd reads it (systemd.service(5), "Command lines").
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

/// The daemon, as far as it is this process' own: whoever waits for what it does learns of its end.
pub(crate) struct StartedDaemon(Option<Child>);

impl StartedDaemon {
    /// Waits for its end, and returns how it ended; never where somebody else looks after it.
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

/// Starts the daemon, and sees to it that it is started again, where somebody can.
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

/// In a session of its own, which the daemon makes itself. One that runs goes on.
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

/// Stops the daemon, and sees to it that nobody starts it again. One that does not run is fine.
pub(crate) async fn stop(service: DaemonMode, layout: &Layout) -> Result<(), ServiceError> {
    // A unit is there also where the worker was told of another way since.
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

/// Daemons that `join` has started, by their arguments: one that starts has not yet written down which it is.
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
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(ServiceError::Systemctl { arguments: arguments.join(" "), said })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where there is systemd, it has no objection.
    #[test]
    fn systemd_takes_the_unit() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(UNIT);
        fs::write(&path, unit(Path::new("/bin/sh"), &Layout::new("/var/lib/keelway-node"))).unwrap();
        let verified = Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&path).output();
        let Ok(output) = verified else { return };
        let said = String::from_utf8_lossy(&output.stderr);
        // It looks at all units that this one names, and these at others, which are not ours.
        let of_ours: Vec<&str> = said.lines().filter(|line| line.contains("keelway-node")).collect();
        assert!(of_ours.is_empty(), "{said}");
    }

    #[test]
    fn the_unit_leaves_kubelet_and_pods_alone() {
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
    fn paths_are_words_whatever_is_in_them() {
        assert_eq!(quoted(Path::new("/a b/50%/$HOME")), r#""/a b/50%%/$$HOME""#);
        assert_eq!(quoted(Path::new(r#"/a"b\c"#)), r#""/a\"b\\c""#);
    }

    #[tokio::test]
    async fn the_end_of_a_daemon_is_seen() {
        let child = Command::new("sh").args(["-c", "exit 3"]).spawn().unwrap();
        assert!(StartedDaemon(Some(child)).ended().await.contains('3'));
    }
}
