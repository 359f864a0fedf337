//! `keelway node local`.

use std::ffi::OsString;

use clap::{Args, Subcommand};
use keelway_api::release;
use keelway_cri::{CriRuntime, Deadlines};
use keelway_local_hypervisor::{
    Fleet, FleetProgress, FleetStep, LinkState, PowerState, WorkerMachine, WorkerRequest, WorkersRequest,
    create_worker, destroy_workers, enter_worker, forget, link_workers, power_workers, renumber, workers,
};
use keelway_machine_io::image;
use serde_json::{Value, json};

use super::{
    hypervisor_local::{launcher, search},
    print,
    session::runtime,
};
use crate::{
    args::GlobalArguments,
    commands::node::arguments::NodeOutput,
    directories::cache_directory,
    exit::{Code, CommandFailure},
    progress::ProgressLine,
    table::TextTable,
};

#[derive(Subcommand)]
pub(crate) enum NodeLocalCommand {
    /// Create a machine with containerd, in the public network of local hypervisors or behind NATs
    #[command(
        after_help = "Example:\n  keelway node local create --name w1\n  keelway node local create --name w2 --behind nat-a,nat-b"
    )]
    Create(NodeLocalCreateArguments),
    /// List the machines with their addresses, the addresses that others see, and their NATs
    #[command(after_help = "Example:\n  keelway node local list\n  keelway node local list -o json")]
    List(NodeLocalListArguments),
    /// Run a command on a machine, and exit with its exit code
    #[command(after_help = "Example:\n  keelway node local exec w1 -- keelway node status")]
    Exec(NodeLocalExecArguments),
    /// Power off machines
    #[command(after_help = "Example:\n  keelway node local stop w1")]
    Stop(NodeLocalMachines),
    /// Power on machines; only containerd is started on them
    #[command(after_help = "Example:\n  keelway node local start w1\n  keelway node local exec w1 -- keelway node run")]
    Start(NodeLocalMachines),
    /// Power off machines, and power them on again
    #[command(after_help = "Example:\n  keelway node local reboot w1")]
    Reboot(NodeLocalMachines),
    /// Disconnect machines from their network; what runs on them keeps running
    #[command(after_help = "Example:\n  keelway node local unplug w1")]
    Unplug(NodeLocalMachines),
    /// Reconnect machines to their network
    #[command(after_help = "Example:\n  keelway node local plug w1")]
    Plug(NodeLocalMachines),
    /// Make a NAT forget all connections through it
    #[command(after_help = "Example:\n  keelway node local forget nat-a")]
    Forget(NodeLocalNat),
    /// Change the public address of a NAT, and print the new one
    #[command(after_help = "Example:\n  keelway node local renumber nat-a")]
    Renumber(NodeLocalNat),
    /// Delete machines with all their data, and NATs that have no machines left
    #[command(after_help = "Example:\n  keelway node local destroy w1 w2\n  keelway node local destroy --name w1")]
    Destroy(NodeLocalMachines),
}

#[derive(Args)]
pub(crate) struct NodeLocalFleet {
    /// The set of local hypervisors that the machines belong to
    #[arg(long, default_value = "local", value_name = "NAME")]
    pub(crate) fleet: String,
}

#[derive(Args)]
pub(crate) struct NodeLocalListArguments {
    #[command(flatten)]
    pub(crate) fleet: NodeLocalFleet,
    /// The output format
    #[arg(short, long, value_enum, default_value = "table")]
    pub(crate) output: NodeOutput,
}

#[derive(Args)]
pub(crate) struct NodeLocalCreateArguments {
    #[command(flatten)]
    pub(crate) fleet: NodeLocalFleet,
    /// The name of the machine, which is also its host name
    #[arg(long)]
    pub(crate) name: String,
    /// NATs between the machine and the network, the nearest first; missing ones are created
    #[arg(long, value_delimiter = ',', value_name = "NAT,..")]
    pub(crate) behind: Vec<String>,
    /// Another image to load from the cache, beside those that workers need; can be repeated
    #[arg(long = "image", value_name = "IMAGE")]
    pub(crate) images: Vec<String>,
}

#[derive(Args)]
pub(crate) struct NodeLocalExecArguments {
    #[command(flatten)]
    pub(crate) fleet: NodeLocalFleet,
    /// The machine
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// The command, after `--`
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

#[derive(Args)]
pub(crate) struct NodeLocalNat {
    #[command(flatten)]
    pub(crate) fleet: NodeLocalFleet,
    /// The NAT
    #[arg(value_name = "NAT")]
    pub(crate) nat: String,
}

#[derive(Args)]
pub(crate) struct NodeLocalMachines {
    #[command(flatten)]
    pub(crate) fleet: NodeLocalFleet,
    /// Names of machines
    #[arg(required_unless_present = "named", value_name = "NAME")]
    pub(crate) names: Vec<String>,
    /// The name of a machine, as for `create`; can be repeated
    #[arg(long = "name", value_name = "NAME")]
    pub(crate) named: Vec<String>,
}

impl NodeLocalMachines {
    /// Returns the names in both forms.
    fn all(&self) -> Vec<String> {
        [self.names.as_slice(), self.named.as_slice()].concat()
    }
}

pub(super) fn run(global: &GlobalArguments, command: NodeLocalCommand) -> Result<Code, CommandFailure> {
    // A moving line needs a thread, and `exec` replaces this process.
    let line = || ProgressLine::of_terminal(global.quiet);
    match command {
        NodeLocalCommand::Create(arguments) => make(&arguments, &line()),
        NodeLocalCommand::List(arguments) => list(&arguments),
        NodeLocalCommand::Exec(arguments) => {
            let Err(error) = enter_worker(&arguments.fleet.get()?, &arguments.name, &arguments.command);
            Err(CommandFailure::other(error))
        }
        NodeLocalCommand::Stop(of) => switch(&line(), &of, PowerState::Off),
        NodeLocalCommand::Start(of) => switch(&line(), &of, PowerState::On),
        NodeLocalCommand::Reboot(of) => switch(&line(), &of, PowerState::Cycle),
        NodeLocalCommand::Unplug(of) => set_link(&line(), &of, LinkState::Down),
        NodeLocalCommand::Plug(of) => set_link(&line(), &of, LinkState::Up),
        NodeLocalCommand::Forget(of) => with_progress(&line(), async |say| {
            forget(&of.fleet.get()?, &of.nat, say).await.map_err(CommandFailure::other)
        }),
        NodeLocalCommand::Renumber(of) => with_progress(&line(), async |say| {
            let address = renumber(&of.fleet.get()?, &of.nat, say).await.map_err(CommandFailure::other)?;
            print(&format!("{address}\n"))
        }),
        NodeLocalCommand::Destroy(of) => with_progress(&line(), async |say| {
            destroy_workers(&of.fleet.get()?, &of.all(), say).await.map_err(CommandFailure::other)
        }),
    }
}

/// Runs an operation and shows its steps in a line.
fn with_progress(
    line: &ProgressLine,
    does: impl AsyncFnOnce(FleetProgress<'_>) -> Result<(), CommandFailure>,
) -> Result<Code, CommandFailure> {
    runtime()?.block_on(does(&|step: &FleetStep| line.show(&step.to_string())))?;
    Ok(Code::Done)
}

fn switch(line: &ProgressLine, of: &NodeLocalMachines, to: PowerState) -> Result<Code, CommandFailure> {
    let (fleet, names) = (of.fleet.get()?, of.all());
    let request = WorkersRequest { fleet, names, search: search(), launcher: launcher()? };
    with_progress(line, async |say| power_workers(&request, to, say).await.map_err(CommandFailure::other))
}

fn set_link(line: &ProgressLine, of: &NodeLocalMachines, to: LinkState) -> Result<Code, CommandFailure> {
    with_progress(line, async |say| {
        link_workers(&of.fleet.get()?, &of.all(), to, say).await.map_err(CommandFailure::other)
    })
}

impl NodeLocalFleet {
    fn get(&self) -> Result<Fleet, CommandFailure> {
        Fleet::new(&self.fleet).map_err(CommandFailure::other)
    }
}

fn make(arguments: &NodeLocalCreateArguments, line: &ProgressLine) -> Result<Code, CommandFailure> {
    let request = WorkerRequest {
        fleet: arguments.fleet.get()?,
        name: arguments.name.clone(),
        behind: arguments.behind.clone(),
        search: search(),
        launcher: launcher()?,
    };
    runtime()?.block_on(async {
        let worker = create_worker(&request, &|step: &FleetStep| line.show(&step.to_string()))
            .await
            .map_err(CommandFailure::other)?;
        let runtime = CriRuntime::on_socket(&worker.socket, Deadlines::default()).map_err(CommandFailure::other)?;
        let archives = cache_directory().join("images");
        for image in images(&arguments.images) {
            line.show(&format!("{}: {image}", worker.name));
            image::ensure(&runtime, &archives, &image).await.map_err(CommandFailure::other)?;
        }
        Ok(Code::Done)
    })
}

/// Returns the images that a worker would otherwise pull from a registry.
fn images(more: &[String]) -> Vec<String> {
    let release = release::newest();
    let needed = [
        release.pause_image(None),
        release.node_image(None),
        release.kubernetes_image("kube-proxy", None),
        release.coredns_image(None),
        release::metrics_server_image(None),
    ];
    needed.into_iter().chain(more.iter().cloned()).collect()
}

fn list(arguments: &NodeLocalListArguments) -> Result<Code, CommandFailure> {
    let workers = workers(&arguments.fleet.get()?).map_err(CommandFailure::other)?;
    let text = match arguments.output {
        NodeOutput::Table => table(workers),
        NodeOutput::Json => serde_json::to_string_pretty(&views(&workers)).map_err(CommandFailure::other)? + "\n",
        NodeOutput::Yaml => serde_saphyr::to_string(&views(&workers)).map_err(CommandFailure::other)?,
    };
    print(&text)?;
    Ok(Code::Done)
}

fn table(workers: Vec<WorkerMachine>) -> String {
    let mut table = TextTable::new(&["NAME", "ADDRESS", "PUBLIC ADDRESS", "BEHIND"]);
    for WorkerMachine { name, address, public_address, behind, .. } in workers {
        table.row(vec![name, address.to_string(), public_address.to_string(), behind.join(",")]);
    }
    table.render(None)
}

fn views(workers: &[WorkerMachine]) -> Value {
    let view = |worker: &WorkerMachine| {
        json!({
            "name": worker.name,
            "address": worker.address,
            "publicAddress": worker.public_address,
            "behind": worker.behind,
            "containerdSocket": worker.socket,
        })
    };
    workers.iter().map(view).collect()
}
