//! Who keeps the daemon running.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use crate::{
    files::{self, FileError},
    process::{self, ProcessId},
    settings::{Layout, Service},
};

/// The unit's name.
const UNIT: &str = "keelway-node.service";
/// How long the daemon has to end by itself.
const GRACE: Duration = Duration::from_secs(20);

/// The daemon cannot be started or stopped.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// A file failed.
    #[error(transparent)]
    File(#[from] FileError),
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
pub(crate) fn unit(program: &Path, layout: &Layout) -> String {
    format!(
        "[Unit]
Description=Keelway worker: tunnels, API balancer, kubelet
After=network-online.target containerd.service
Wants=network-online.target

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
        program.display(),
        layout.root().display()
    )
}

/// Starts the daemon, and sees to it that it is started again, where somebody can.
pub(crate) fn start(service: Service, program: &Path, layout: &Layout) -> Result<(), ServiceError> {
    tracing::debug!(action = "daemon", "begins");
    match service {
        Service::Systemd => {
            files::write(&unit_path(), unit(program, layout), 0o644)?;
            systemctl(&["daemon-reload"])?;
            systemctl(&["enable", UNIT])?;
            systemctl(&["restart", UNIT])?;
        }
        Service::Detached => detach(program, layout)?,
        Service::None => {}
    }
    tracing::debug!(action = "daemon", "done");
    Ok(())
}

/// In a session of its own, which the daemon makes itself. One that runs goes on.
fn detach(program: &Path, layout: &Layout) -> Result<(), ServiceError> {
    if ProcessId::kept(&layout.daemon_process())?.is_some() || daemons(layout).next().is_some() {
        return Ok(());
    }
    files::make_dir(&layout.logs(), 0o700)?;
    let log = layout.logs().join("node.log");
    let open = || fs::File::options().create(true).append(true).open(&log).map_err(FileError::new("open", &log));
    let child = Command::new(program)
        .args(["node", "run", "--detached", "--state-dir"])
        .arg(layout.root())
        .stdin(Stdio::null())
        .stdout(open()?)
        .stderr(open()?)
        .spawn();
    child.map(drop).map_err(|source| ServiceError::Spawn { program: program.to_owned(), source })
}

/// Stops the daemon, and sees to it that nobody starts it again. One that does not run is fine.
pub(crate) async fn stop(service: Service, layout: &Layout) -> Result<(), ServiceError> {
    if service == Service::Systemd && unit_path().exists() {
        systemctl(&["disable", "--now", UNIT])?;
        files::remove(&unit_path())?;
        systemctl(&["daemon-reload"])?;
    }
    let kept = ProcessId::kept(&layout.daemon_process())?;
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
        let unit = unit(Path::new("/usr/local/bin/keelway"), &Layout::new("/var/lib/keelway-node"));
        assert!(unit.contains("\nKillMode=process\n"));
        assert!(unit.contains("\nExecStart=/usr/local/bin/keelway node run --state-dir /var/lib/keelway-node\n"));
    }
}
