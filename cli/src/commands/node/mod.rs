//! `keelway node`.

mod failure;
mod view;

use std::{env, time::Duration};

use failure::{only_root, told};
use keelway_node::{Held, JoinOptions, Layout, LeaveOptions, LeaveStep, NodeOptions, Service, Step};
use tokio_util::sync::CancellationToken;

use super::print;
use crate::{
    args::{Global, JoinArguments, LeaveArguments, NodeOutput, NodeService, RunArguments, StatusOf, WorkerCommand},
    exit::{Code, Failure},
    progress::Line,
    signals::cancel_on_signal,
};

pub(super) fn run(global: &Global, command: WorkerCommand) -> Result<Code, Failure> {
    match command {
        WorkerCommand::Join(arguments) => join(global, *arguments),
        WorkerCommand::Run(arguments) => daemon(&arguments),
        WorkerCommand::Status(arguments) => status(&arguments),
        WorkerCommand::Leave(arguments) => leave(global, &arguments),
        WorkerCommand::Forget(state) => {
            let layout = Layout::new(state.state_dir);
            let _held = alone(&layout, false)?;
            let name = runtime()?.block_on(keelway_node::forget(&layout)).map_err(told)?;
            if let Some(name) = name.filter(|_| !global.quiet) {
                tell_known(&name);
            }
            Ok(Code::Done)
        }
    }
}

/// Nobody else joins, leaves or forgets meanwhile, and it is root who does.
fn alone(layout: &Layout, may_make: bool) -> Result<Option<Held>, Failure> {
    only_root()?;
    keelway_node::hold(layout, may_make).map_err(told)
}

/// One thread is enough for a worker's own work, and packets have threads of their own.
fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Failure::other)
}

fn join(global: &Global, arguments: JoinArguments) -> Result<Code, Failure> {
    let read = keelway_node::read_token(arguments.token.as_deref(), arguments.token_file.as_deref());
    let token =
        read.map_err(|error| Failure::usage(error.to_string(), "make a token with `keelway join-token create`"))?;
    let program = env::current_exe().map_err(Failure::other)?;
    let options = JoinOptions {
        layout: Layout::new(&arguments.state.state_dir),
        program,
        timeout: Duration::from(arguments.timeout),
        node: node_options(arguments),
    };
    // Who is not root is told so with all else that stands against it.
    let _held = if rustix::process::geteuid().is_root() { alone(&options.layout, true)? } else { None };
    let line = Line::of_terminal(global.quiet);
    let joined = runtime()?.block_on(keelway_node::join(&options, &token, |step| line.say(&in_words(step))));
    drop(line);
    match joined {
        Ok(name) => {
            if !global.quiet {
                tell(&name, options.node.service, &options.layout);
            }
            Ok(Code::Done)
        }
        Err(error) => Err(told(error)),
    }
}

#[expect(clippy::print_stderr, reason = "it is for people")]
fn tell(name: &str, service: Service, layout: &Layout) {
    let root = layout.root().display();
    match service {
        Service::Systemd => eprintln!("{name} is ready; keelway-node.service keeps it running"),
        Service::Detached => {
            eprintln!("{name} is ready; after a reboot, start `keelway node run --state-dir {root}` yourself");
        }
        Service::None => eprintln!("{name} has joined; start `keelway node run --state-dir {root}`"),
    }
}

fn node_options(arguments: JoinArguments) -> NodeOptions {
    let service = match arguments.service {
        Some(NodeService::Systemd) => Service::Systemd,
        Some(NodeService::None) => Service::None,
        None if keelway_node::has_systemd() => Service::Systemd,
        Some(NodeService::Detached) | None => Service::Detached,
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
        service,
    }
}

/// As the kubelet takes it: in lower case.
fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().to_lowercase()
}

fn in_words(step: &Step) -> String {
    match step {
        Step::Check => "looking at this machine".to_owned(),
        Step::Trust => "asking the endpoints whom they are".to_owned(),
        Step::Young => "waiting until the cluster lets workers join".to_owned(),
        Step::Certificate => "asking for a certificate and an address".to_owned(),
        Step::Programs(image) => format!("taking kubelet and plugins from {image}"),
        Step::Start(_) => "starting the worker".to_owned(),
        Step::Wait(name) => format!("waiting for the Node {name}"),
    }
}

fn daemon(arguments: &RunArguments) -> Result<Code, Failure> {
    if arguments.detached {
        // Fails only for one that leads a group already.
        let _ = rustix::process::setsid();
    }
    only_root()?;
    keelway_node::renounce_huge_pages();
    let layout = Layout::new(&arguments.state.state_dir);
    let ran: Result<(), Failure> = runtime()?.block_on(async {
        let stop = CancellationToken::new();
        cancel_on_signal(stop.clone()).map_err(Failure::other)?;
        Box::pin(keelway_node::run(layout, stop.cancelled())).await.map_err(told)
    });
    ran.map(|()| Code::Done)
}

fn status(arguments: &StatusOf) -> Result<Code, Failure> {
    let layout = Layout::new(&arguments.state.state_dir);
    only_root()?;
    let status = runtime()?.block_on(keelway_node::ask(&layout)).map_err(told)?;
    let text = match arguments.output {
        NodeOutput::Table => view::render(&status, keelway_api::jiff::Timestamp::now()),
        NodeOutput::Json => serde_json::to_string_pretty(&status).map_err(Failure::other)? + "\n",
        NodeOutput::Yaml => serde_saphyr::to_string(&status).map_err(Failure::other)?,
    };
    print(&text)?;
    Ok(Code::Done)
}

fn waiting(ending: &[String], held: &[String]) -> String {
    let parts = [("waiting for the end of", ending), ("PodDisruptionBudgets hold", held)];
    let parts = parts.iter().filter(|(_, pods)| !pods.is_empty());
    parts.map(|(what, pods)| format!("{what} {}", pods.join(", "))).collect::<Vec<_>>().join("; ")
}

fn leave(global: &Global, arguments: &LeaveArguments) -> Result<Code, Failure> {
    let options = LeaveOptions {
        layout: Layout::new(&arguments.state.state_dir),
        drain_timeout: Duration::from(arguments.drain_timeout),
        force: arguments.force,
    };
    let _held = alone(&options.layout, false)?;
    let line = Line::of_terminal(global.quiet);
    let mut known = None;
    let left = runtime()?.block_on(keelway_node::leave(&options, |step| match step {
        LeaveStep::Drain { ending, held } => line.say(&waiting(ending, held)),
        LeaveStep::Again(error) => line.say(&format!("asking again: {error}")),
        LeaveStep::Undo => line.say("ending what is left, and making the machine what it was"),
        LeaveStep::Known(name) => known = Some(name.clone()),
    }));
    drop(line);
    left.map_err(told)?;
    if let Some(name) = known.filter(|_| !global.quiet) {
        tell_known(&name);
    }
    Ok(Code::Done)
}

/// The name is not free before that.
#[expect(clippy::print_stderr, reason = "it is for people")]
fn tell_known(name: &str) {
    eprintln!("the cluster may still know this worker: `kubectl delete node,wireguardpeer {name}` there");
}
