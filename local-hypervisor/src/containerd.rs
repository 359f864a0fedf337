//! A machine's containerd: brought up, or found running.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use rustix::thread::{CapabilitySet, capabilities};
use tokio::{
    net::{UnixDatagram, UnixStream},
    process::{Child, Command},
    time::timeout,
};

use crate::{
    Error, Launcher, Progress, Step, config,
    create::blocking,
    files::{make_dir, write_atomically},
    fleet::Machine,
    launch::{Bind, Launch},
    processes,
    tools::Tools,
};

/// From the start to the message that all plugins are ready. Measured: 0.3 s; with all cores busy, some seconds.
const PATIENCE: Duration = Duration::from_secs(60);

/// The directories that a machine has for itself.
const OWN: [&str; 3] = ["/run", "/var/lib", "/var/log"];

/// Where containerd reports to, as a service of systemd would; seen from within the machine.
const NOTIFY: &str = "/run/notify";

/// Lines of the log that an error quotes.
const QUOTED_LINES: usize = 15;

/// Starts a machine's containerd unless it runs, and waits until it is ready for calls.
pub(crate) async fn ensure_running(
    machine: &Machine,
    tools: &Tools,
    launcher: &Launcher,
    progress: Progress<'_>,
) -> Result<(), Error> {
    if UnixStream::connect(machine.socket()).await.is_ok() {
        return Ok(());
    }
    let hung = machine.clone();
    blocking(move || processes::end_containerd(&hung)).await?;
    progress(&Step::Start { machine: machine.name() });
    write_files(machine, tools)?;
    let notify = notify_path(machine);
    let reports = UnixDatagram::bind(&notify).map_err(Error::file("listen on", &notify))?;
    let child = spawn(machine, launcher)?;
    let result = wait_until_ready(machine, child, &reports).await;
    let removed = fs::remove_file(&notify).map_err(Error::file("remove", notify));
    result.and(removed)
}

fn write_files(machine: &Machine, tools: &Tools) -> Result<(), Error> {
    let directory = machine.run().join("containerd");
    make_dir(&directory, 0o711)?;
    let config = config::render(!may_lower_oom_scores()?);
    write_atomically(&directory.join("config.toml"), config.as_bytes())?;
    copy_resolv_conf(machine)?;
    let notify = notify_path(machine);
    if notify.exists() {
        fs::remove_file(&notify).map_err(Error::file("remove", notify))?;
    }
    let launch = launch(machine, tools, processes::any_shim(machine)?);
    let path = machine.launch();
    let text = serde_json::to_vec_pretty(&launch).map_err(|source| Error::Record { path: path.clone(), source })?;
    write_atomically(&path, &text)
}

fn launch(machine: &Machine, tools: &Tools, beside: Option<i32>) -> Launch {
    let sources = [machine.run(), machine.lib(), machine.log()];
    let own = OWN.iter().zip(sources).map(|(target, source)| Bind { source, target: target.into() });
    let hidden = tools.directories.iter().filter(|path| own_of(path).is_some());
    let tools_again = hidden.map(|path| Bind { source: path.clone(), target: path.clone() });
    Launch {
        host_name: machine.name(),
        network: machine.namespace(),
        cgroup: machine.cgroup(),
        beside,
        binds: own.chain(tools_again).collect(),
        program: tools.containerd.clone(),
        arguments: ["--config", "/run/containerd/config.toml"].map(str::to_owned).to_vec(),
        environment: vec![("PATH".to_owned(), tools.path()), ("NOTIFY_SOCKET".to_owned(), NOTIFY.to_owned())],
    }
}

/// The one of the machine's own directories that a path is in.
fn own_of(path: &Path) -> Option<&'static str> {
    OWN.into_iter().find(|own| path.starts_with(own))
}

/// Each sandbox gets a copy of `/etc/resolv.conf`, which on many hosts is a link into `/run`.
fn copy_resolv_conf(machine: &Machine) -> Result<(), Error> {
    let Ok(real) = fs::canonicalize("/etc/resolv.conf") else {
        return Ok(());
    };
    let Ok(within_run) = real.strip_prefix("/run") else {
        return Ok(());
    };
    let copy = machine.run().join(within_run);
    make_dir(copy.parent().unwrap_or(&copy), 0o755)?;
    fs::copy(&real, &copy).map(drop).map_err(Error::file("write", copy))
}

fn spawn(machine: &Machine, launcher: &Launcher) -> Result<Child, Error> {
    let path = machine.containerd_log();
    let log = File::options().create(true).append(true).open(&path).map_err(Error::file("open", &path))?;
    let second = log.try_clone().map_err(Error::file("open", &path))?;
    Command::new(&launcher.program)
        .args(&launcher.arguments)
        .arg(machine.launch())
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(log)
        .stderr(second)
        .spawn()
        .map_err(|source| Error::Spawn { program: launcher.program.clone(), source })
}

/// Either it says so, or it ends, or time is up.
async fn wait_until_ready(machine: &Machine, mut child: Child, reports: &UnixDatagram) -> Result<(), Error> {
    let outcome = timeout(PATIENCE, async {
        tokio::select! {
            ready = says_ready(reports) => ready.map(|()| None),
            ended = child.wait() => ended.map(Some),
        }
    });
    match outcome.await {
        Ok(Ok(None)) => Ok(()),
        Ok(Ok(Some(status))) => Err(Error::Ended { machine: machine.name(), status, log: end_of_log(machine) }),
        Ok(Err(source)) => Err(Error::system("wait for containerd")(source)),
        Err(_) => {
            child.kill().await.map_err(Error::system("end containerd"))?;
            Err(Error::NotReady { machine: machine.name(), waited: PATIENCE, log: end_of_log(machine) })
        }
    }
}

/// The messages are those of `sd_notify(3)`.
async fn says_ready(reports: &UnixDatagram) -> io::Result<()> {
    let mut buffer = [0; 512];
    loop {
        let length = reports.recv(&mut buffer).await?;
        let message = String::from_utf8_lossy(&buffer[..length]);
        if message.lines().any(|line| line == "READY=1") {
            return Ok(());
        }
    }
}

fn end_of_log(machine: &Machine) -> String {
    let text = fs::read_to_string(machine.containerd_log()).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(QUOTED_LINES)..].join("\n")
}

fn notify_path(machine: &Machine) -> PathBuf {
    machine.run().join("notify")
}

fn may_lower_oom_scores() -> Result<bool, Error> {
    let own = capabilities(None).map_err(Error::system("read this process' capabilities"))?;
    Ok(own.effective.contains(CapabilitySet::SYS_RESOURCE))
}
