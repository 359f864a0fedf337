//! `keelway node local`.

use keelway_api::release;
use keelway_cri::{Deadlines, Runtime};
use keelway_hypervisor_agent::image;
use keelway_local_hypervisor::{
    Fleet, Link, Power, Progress, Step, Worker, WorkerRequest, WorkersRequest, create_worker, destroy_workers,
    enter_worker, forget, link_workers, power_workers, renumber, workers,
};
use serde_json::{Value, json};

use super::{
    hypervisor_local::{launcher, search},
    print,
    session::runtime,
};
use crate::{
    args::{
        Global, NodeLocalCommand, NodeLocalCreateArguments, NodeLocalFleet, NodeLocalListArguments, NodeLocalMachines,
        NodeOutput,
    },
    directories::cache_directory,
    exit::{Code, Failure},
    progress::Line,
    table::Table,
};

pub(super) fn run(global: &Global, command: NodeLocalCommand) -> Result<Code, Failure> {
    // A line that moves is a thread of its own, and a command on a worker takes this process over.
    let line = || Line::of_terminal(global.quiet);
    match command {
        NodeLocalCommand::Create(arguments) => make(&arguments, &line()),
        NodeLocalCommand::List(arguments) => list(&arguments),
        NodeLocalCommand::Exec(arguments) => {
            let Err(error) = enter_worker(&arguments.fleet.get()?, &arguments.name, &arguments.command);
            Err(Failure::other(error))
        }
        NodeLocalCommand::Stop(of) => switch(&line(), of, Power::Off),
        NodeLocalCommand::Start(of) => switch(&line(), of, Power::On),
        NodeLocalCommand::Reboot(of) => switch(&line(), of, Power::Cycle),
        NodeLocalCommand::Unplug(of) => plug(&line(), &of, Link::Down),
        NodeLocalCommand::Plug(of) => plug(&line(), &of, Link::Up),
        NodeLocalCommand::Forget(of) => {
            told(&line(), async |say| forget(&of.fleet.get()?, &of.nat, say).await.map_err(Failure::other))
        }
        NodeLocalCommand::Renumber(of) => told(&line(), async |say| {
            let address = renumber(&of.fleet.get()?, &of.nat, say).await.map_err(Failure::other)?;
            print(&format!("{address}\n"))
        }),
        NodeLocalCommand::Destroy(of) => {
            told(&line(), async |say| destroy_workers(&of.fleet.get()?, &of.names, say).await.map_err(Failure::other))
        }
    }
}

/// Does something whose steps are told in a line.
fn told(line: &Line, does: impl AsyncFnOnce(Progress<'_>) -> Result<(), Failure>) -> Result<Code, Failure> {
    runtime()?.block_on(does(&|step: &Step| line.say(&step.to_string())))?;
    Ok(Code::Done)
}

fn switch(line: &Line, of: NodeLocalMachines, to: Power) -> Result<Code, Failure> {
    let (fleet, names) = (of.fleet.get()?, of.names);
    let request = WorkersRequest { fleet, names, search: search(), launcher: launcher()? };
    told(line, async |say| power_workers(&request, to, say).await.map_err(Failure::other))
}

fn plug(line: &Line, of: &NodeLocalMachines, to: Link) -> Result<Code, Failure> {
    told(line, async |say| link_workers(&of.fleet.get()?, &of.names, to, say).await.map_err(Failure::other))
}

impl NodeLocalFleet {
    fn get(&self) -> Result<Fleet, Failure> {
        Fleet::new(&self.fleet).map_err(Failure::other)
    }
}

fn make(arguments: &NodeLocalCreateArguments, line: &Line) -> Result<Code, Failure> {
    let request = WorkerRequest {
        fleet: arguments.fleet.get()?,
        name: arguments.name.clone(),
        behind: arguments.behind.clone(),
        search: search(),
        launcher: launcher()?,
    };
    runtime()?.block_on(async {
        let worker =
            create_worker(&request, &|step: &Step| line.say(&step.to_string())).await.map_err(Failure::other)?;
        let runtime = Runtime::on_socket(&worker.socket, Deadlines::default()).map_err(Failure::other)?;
        let archives = cache_directory().join("images");
        for image in images(&arguments.images) {
            line.say(&format!("{}: {image}", worker.name));
            image::ensure(&runtime, &archives, &image).await.map_err(Failure::other)?;
        }
        Ok(Code::Done)
    })
}

/// What a worker would pull from a registry.
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

fn list(arguments: &NodeLocalListArguments) -> Result<Code, Failure> {
    let workers = workers(&arguments.fleet.get()?).map_err(Failure::other)?;
    let text = match arguments.output {
        NodeOutput::Table => table(workers),
        NodeOutput::Json => serde_json::to_string_pretty(&views(&workers)).map_err(Failure::other)? + "\n",
        NodeOutput::Yaml => serde_saphyr::to_string(&views(&workers)).map_err(Failure::other)?,
    };
    print(&text)?;
    Ok(Code::Done)
}

fn table(workers: Vec<Worker>) -> String {
    let mut table = Table::new(&["NAME", "ADDRESS", "SEEN AS", "BEHIND"]);
    for Worker { name, address, public_address, behind, .. } in workers {
        table.row(vec![name, address.to_string(), public_address.to_string(), behind.join(",")]);
    }
    table.render(None)
}

fn views(workers: &[Worker]) -> Value {
    let view = |worker: &Worker| {
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
