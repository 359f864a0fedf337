//! `keelway node`.

pub(crate) mod arguments;
mod failure;
mod upgrade;
mod view;

use std::{env, time::Duration};

use failure::{into_failure, only_root};
use keelway_node::{
    DaemonMode, JoinOptions, JoinStep, Layout, LeaveOptions, LeaveStep, NodeOptions, RegistryConfig, WorkerLock,
};
use tokio_util::sync::CancellationToken;

use super::print;
use crate::{
    args::GlobalArguments,
    commands::node::arguments::{
        JoinArguments, LeaveArguments, NodeOutput, NodeRunArguments, NodeService, NodeStatusArguments, WorkerCommand,
    },
    exit::{Code, CommandFailure},
    progress::ProgressLine,
    signals::cancel_on_signal,
};

pub(super) fn run(global: &GlobalArguments, command: WorkerCommand) -> Result<Code, CommandFailure> {
    match command {
        WorkerCommand::Join(arguments) => join(global, *arguments),
        WorkerCommand::Run(arguments) => daemon(&arguments),
        WorkerCommand::Status(arguments) => status(&arguments),
        WorkerCommand::Upgrade(arguments) => upgrade::upgrade(global, arguments),
        WorkerCommand::Leave(arguments) => leave(global, &arguments),
        WorkerCommand::Forget(state) => {
            let layout = Layout::new(state.state_dir);
            let _held = alone(&layout, false)?;
            let name = runtime()?.block_on(keelway_node::forget(&layout)).map_err(into_failure)?;
            if let Some(name) = name.filter(|_| !global.quiet) {
                print_left(&name);
            }
            Ok(Code::Done)
        }
    }
}

/// Requires root, and locks the worker: no other command can join, leave or forget at the same time.
fn alone(layout: &Layout, may_make: bool) -> Result<Option<WorkerLock>, CommandFailure> {
    only_root()?;
    keelway_node::acquire(layout, may_make).map_err(into_failure)
}

/// One thread is enough for the tasks of a worker. Packets have their own threads.
fn runtime() -> Result<tokio::runtime::Runtime, CommandFailure> {
    tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(CommandFailure::other)
}

fn join(global: &GlobalArguments, arguments: JoinArguments) -> Result<Code, CommandFailure> {
    let read = keelway_node::read_token(arguments.token.as_deref(), arguments.token_file.as_deref());
    let token = read
        .map_err(|error| CommandFailure::usage(error.to_string(), "create a token with `keelway join-token create`"))?;
    let program = env::current_exe().map_err(CommandFailure::other)?;
    let registry_config = arguments.registry_config.as_deref().map(RegistryConfig::read).transpose();
    let registry_config = registry_config.map_err(into_failure)?;
    let options = JoinOptions {
        registry_config,
        layout: Layout::new(&arguments.state.state_dir),
        program,
        install_dir: arguments.install_dir.clone(),
        timeout: Duration::from(arguments.timeout),
        node: node_options(arguments),
    };
    // Without root, `join` reports this together with all other obstacles.
    let _held = if rustix::process::geteuid().is_root() { alone(&options.layout, true)? } else { None };
    let line = ProgressLine::of_terminal(global.quiet);
    let joined = runtime()?.block_on(keelway_node::join(&options, &token, |step| line.show(&step_text(step))));
    drop(line);
    match joined {
        Ok(name) => {
            if !global.quiet {
                print_joined(&name, options.node.service, &options.layout);
            }
            Ok(Code::Done)
        }
        Err(error) => Err(into_failure(error)),
    }
}

#[expect(clippy::print_stderr, reason = "it is for people")]
fn print_joined(name: &str, service: DaemonMode, layout: &Layout) {
    let root = layout.root().display();
    match service {
        DaemonMode::Systemd => eprintln!("{name} is ready; keelway-node.service keeps it running"),
        DaemonMode::Detached => {
            eprintln!("{name} is ready; after a reboot, start `keelway node run --state-dir {root}` yourself");
        }
        DaemonMode::None => eprintln!("{name} has joined; start `keelway node run --state-dir {root}`"),
    }
}

fn node_options(arguments: JoinArguments) -> NodeOptions {
    let service = match arguments.service {
        Some(NodeService::Systemd) => DaemonMode::Systemd,
        Some(NodeService::None) => DaemonMode::None,
        None if keelway_node::has_systemd() => DaemonMode::Systemd,
        Some(NodeService::Detached) | None => DaemonMode::Detached,
    };
    NodeOptions {
        name: arguments.node_name.unwrap_or_else(host_name),
        containerd_socket: arguments.containerd_socket,
        kubelet_root_dir: arguments.kubelet_root_dir,
        pod_logs_dir: arguments.pod_logs_dir,
        cgroup_root: arguments.cgroup_root,
        allow_cgroup_v1: arguments.allow_cgroup_v1,
        cni_bin_dir: arguments.cni_bin_dir,
        cni_conf_dir: arguments.cni_conf_dir,
        image: arguments.node_image,
        labels: arguments.labels,
        open_ports: arguments.open_ports,
        proxy: keelway_node::proxy_of_environment(|name| env::var(name).ok()),
        service,
    }
}

/// Returns the host name in lower case, as the kubelet uses it.
fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().to_lowercase()
}

fn step_text(step: &JoinStep) -> String {
    match step {
        JoinStep::Check => "checking this machine".to_owned(),
        JoinStep::Trust => "verifying the endpoints".to_owned(),
        JoinStep::Young => "waiting until the cluster admits workers".to_owned(),
        JoinStep::Certificate => "requesting a certificate and an address".to_owned(),
        JoinStep::Programs(image) => format!("extracting kubelet and CNI plugins from {image}"),
        JoinStep::Start(_) => "starting the worker".to_owned(),
        JoinStep::Wait(name) => format!("waiting for the Node {name}"),
    }
}

fn daemon(arguments: &NodeRunArguments) -> Result<Code, CommandFailure> {
    if arguments.detached {
        // This fails only if the process already leads a process group.
        let _ = rustix::process::setsid();
    }
    only_root()?;
    keelway_node::disable_huge_pages();
    let layout = Layout::new(&arguments.state.state_dir);
    let ran: Result<(), CommandFailure> = runtime()?.block_on(async {
        let stop = CancellationToken::new();
        cancel_on_signal(stop.clone()).map_err(CommandFailure::other)?;
        Box::pin(keelway_node::run(layout, stop.cancelled())).await.map_err(into_failure)
    });
    ran.map(|()| Code::Done)
}

fn status(arguments: &NodeStatusArguments) -> Result<Code, CommandFailure> {
    let layout = Layout::new(&arguments.state.state_dir);
    only_root()?;
    let status = runtime()?.block_on(keelway_node::ask(&layout)).map_err(into_failure)?;
    let now = keelway_api::jiff::Timestamp::now();
    let text = match arguments.output {
        NodeOutput::Table => view::render(&status, now),
        NodeOutput::Json => serde_json::to_string_pretty(&status).map_err(CommandFailure::other)? + "\n",
        NodeOutput::Yaml => serde_saphyr::to_string(&status).map_err(CommandFailure::other)?,
    };
    print(&text)?;
    Ok(if view::problems(&status, now).is_empty() { Code::Done } else { Code::Failed })
}

fn waiting(ending: &[String], held: &[String]) -> String {
    let parts = [("waiting for pods to terminate:", ending), ("blocked by PodDisruptionBudgets:", held)];
    let parts = parts.iter().filter(|(_, pods)| !pods.is_empty());
    parts.map(|(what, pods)| format!("{what} {}", pods.join(", "))).collect::<Vec<_>>().join("; ")
}

fn leave(global: &GlobalArguments, arguments: &LeaveArguments) -> Result<Code, CommandFailure> {
    let options = LeaveOptions {
        layout: Layout::new(&arguments.state.state_dir),
        drain_timeout: Duration::from(arguments.drain_timeout),
        force: arguments.force,
    };
    let _held = alone(&options.layout, false)?;
    let line = ProgressLine::of_terminal(global.quiet);
    let mut known = None;
    let left = runtime()?.block_on(keelway_node::leave(&options, |step| match step {
        LeaveStep::Drain { ending, held } => line.show(&waiting(ending, held)),
        LeaveStep::Again(error) => line.show(&format!("retrying: {error}")),
        LeaveStep::Undo => line.show("stopping remaining processes and undoing changes to the machine"),
        LeaveStep::Known(name) => known = Some(name.clone()),
    }));
    drop(line);
    left.map_err(into_failure)?;
    if let Some(name) = known.filter(|_| !global.quiet) {
        print_left(&name);
    }
    Ok(Code::Done)
}

/// Prints how to free the name, which is in use until then.
#[expect(clippy::print_stderr, reason = "it is for people")]
fn print_left(name: &str) {
    eprintln!(
        "the cluster may still contain objects of this worker; delete them with `kubectl delete node,wireguardpeer {name}`"
    );
}
