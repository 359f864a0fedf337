//! Starts a machine's containerd, or finds it running.

use std::{
    fs,
    path::{Path, PathBuf},
};

use rustix::thread::{CapabilitySet, capabilities};

use crate::{
    FleetProgress, FleetStep, Launcher, LocalHypervisorError, config,
    create::blocking,
    files::{make_dir, write_atomically},
    fleet::FleetMachine,
    launch::{Bind, Launch, Overlay},
    prepared_images,
    processes::{self, RUNTIME_GROUP},
    service::{MachineService, answers},
    tools::Tools,
};

/// The directories that belong to the machine.
const OWN: [&str; 3] = ["/run", "/var/lib", "/var/log"];

/// The directories of the host in which a worker's changes are visible only to the worker.
const SHARED: [&str; 3] = ["/etc", "/opt", "/usr/local"];

/// The files in which systemd-resolved and NetworkManager list the DNS servers that they use.
const UPSTREAM_SERVERS: [&str; 3] =
    ["/run/systemd/resolve/resolv.conf", "/run/NetworkManager/no-stub-resolv.conf", "/run/NetworkManager/resolv.conf"];

/// Starts a machine's containerd unless it runs and responds, and waits until it accepts calls. `seen` are directories of the host that the
/// machine has at the same path, even below its own directories.
pub(crate) async fn ensure_running(
    machine: &FleetMachine,
    tools: &Tools,
    seen: &[PathBuf],
    launcher: &Launcher,
    progress: FleetProgress<'_>,
) -> Result<(), LocalHypervisorError> {
    if answers(&machine.socket()).await {
        return Ok(());
    }
    let hung = machine.clone();
    blocking(move || processes::end_containerd(&hung)).await?;
    progress(&FleetStep::Start { machine: machine.name() });
    write_files(machine)?;
    if let Some(prepared) = &tools.prepared_images {
        prepared_images::share(machine, prepared)?;
    }
    let service = MachineService {
        machine,
        program: "containerd",
        notify: "notify",
        launch: machine.launch(),
        log: machine.containerd_log(),
    };
    let mut launch = launch(machine, tools, seen, processes::any_inside(machine)?);
    launch.environment.push(service.notify_socket());
    service.start(&launch, launcher).await
}

fn write_files(machine: &FleetMachine) -> Result<(), LocalHypervisorError> {
    let directory = machine.run().join("containerd");
    make_dir(&directory, 0o711)?;
    // All pods of a hypervisor use the machine's network, so containerd never reads this directory.
    let networks = if machine.is_worker() { "/etc/cni/net.d" } else { "/run/cni/net.d" };
    let config = config::render(!may_lower_oom_scores()?, networks);
    write_atomically(&directory.join("config.toml"), config.as_bytes())?;
    copy_resolv_confs(machine)
}

fn launch(machine: &FleetMachine, tools: &Tools, seen: &[PathBuf], beside: Option<i32>) -> Launch {
    let sources = [machine.run(), machine.lib(), machine.log()];
    let own = OWN.iter().zip(sources).map(|(target, source)| Bind { source, target: target.into() });
    let hidden =
        tools.directories.iter().chain(&tools.prepared_images).chain(seen).filter(|path| own_of(path).is_some());
    let seen_again = hidden.map(|path| Bind { source: path.clone(), target: path.clone() });
    Launch {
        host_name: machine.name(),
        network: machine.namespace(),
        cgroup: machine.cgroup(),
        group: RUNTIME_GROUP.to_owned(),
        beside,
        binds: own.chain(seen_again).collect(),
        overlays: if machine.is_worker() { SHARED.map(|target| overlay(machine, target)).to_vec() } else { Vec::new() },
        user: None,
        program: tools.containerd.clone(),
        arguments: ["--config", "/run/containerd/config.toml"].map(str::to_owned).to_vec(),
        environment: vec![("PATH".to_owned(), tools.path())],
    }
}

fn overlay(machine: &FleetMachine, target: &str) -> Overlay {
    let own = machine.over().join(target.trim_start_matches('/'));
    Overlay { target: target.into(), upper: own.join("upper"), work: own.join("work") }
}

/// Returns the machine's own directory that contains a path.
fn own_of(path: &Path) -> Option<&'static str> {
    OWN.into_iter().find(|own| path.starts_with(own))
}

/// Copies `/etc/resolv.conf`, because each sandbox gets a copy of it, and on many hosts it is a link into `/run`. It may name only a server of the
/// host itself, so a worker's kubelet also looks for the servers behind it.
fn copy_resolv_confs(machine: &FleetMachine) -> Result<(), LocalHypervisorError> {
    let own = fs::canonicalize("/etc/resolv.conf");
    for file in own.into_iter().chain(UPSTREAM_SERVERS.map(PathBuf::from)).filter(|file| file.exists()) {
        let Ok(within_run) = file.strip_prefix("/run") else { continue };
        let copy = machine.run().join(within_run);
        make_dir(copy.parent().unwrap_or(&copy), 0o755)?;
        fs::copy(&file, &copy).map_err(LocalHypervisorError::file("write", copy))?;
    }
    Ok(())
}

fn may_lower_oom_scores() -> Result<bool, LocalHypervisorError> {
    let own = capabilities(None).map_err(LocalHypervisorError::system("read this process' capabilities"))?;
    Ok(own.effective.contains(CapabilitySet::SYS_RESOURCE))
}
