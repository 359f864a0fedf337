//! `keelway node local`.

use std::path::PathBuf;

use anyhow::Context;
use keelway_api::release;
use keelway_cri::{Deadlines, Runtime};
use keelway_hypervisor_agent::image::archive_name;
use keelway_local_hypervisor::{
    Fleet, Step, Worker, WorkerRequest, create_worker, destroy_workers, enter_worker, forget, renumber, workers,
};

use super::{
    hypervisor_local::{launcher, search},
    print,
    session::runtime,
};
use crate::{
    args::{Global, NodeLocalCommand, NodeLocalCreateArguments, NodeLocalFleet},
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
        NodeLocalCommand::List(of) => list(&of),
        NodeLocalCommand::Exec(arguments) => {
            let Err(error) = enter_worker(&arguments.fleet.get()?, &arguments.name, &arguments.command);
            Err(Failure::other(error))
        }
        NodeLocalCommand::Forget(arguments) => {
            let fleet = arguments.fleet.get()?;
            let line = line();
            let say = |step: &Step| line.say(&step.to_string());
            runtime()?.block_on(forget(&fleet, &arguments.nat, &say)).map_err(Failure::other)?;
            Ok(Code::Done)
        }
        NodeLocalCommand::Renumber(arguments) => {
            let fleet = arguments.fleet.get()?;
            let line = line();
            let say = |step: &Step| line.say(&step.to_string());
            let address = runtime()?.block_on(renumber(&fleet, &arguments.nat, &say)).map_err(Failure::other)?;
            print(&format!("{address}\n"))?;
            Ok(Code::Done)
        }
        NodeLocalCommand::Destroy(arguments) => {
            let fleet = arguments.fleet.get()?;
            let line = line();
            let say = |step: &Step| line.say(&step.to_string());
            runtime()?.block_on(destroy_workers(&fleet, &arguments.names, &say)).map_err(Failure::other)?;
            Ok(Code::Done)
        }
    }
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
        for image in images(&arguments.images) {
            line.say(&format!("{}: {image}", worker.name));
            load(&runtime, &image).await.map_err(Failure::other)?;
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

async fn load(runtime: &Runtime, image: &str) -> anyhow::Result<()> {
    if runtime.image_status(image).await?.is_some() {
        return Ok(());
    }
    let path: PathBuf = cache_directory().join("images").join(archive_name(image));
    let archive = tokio::fs::File::open(&path).await;
    let archive = archive.with_context(|| format!("open {}; `cargo xtask images` makes it", path.display()))?;
    runtime.import_images(archive).await?;
    Ok(())
}

fn list(of: &NodeLocalFleet) -> Result<Code, Failure> {
    let mut table = Table::new(&["NAME", "ADDRESS", "SEEN AS", "BEHIND"]);
    for Worker { name, address, public_address, behind, .. } in workers(&of.get()?).map_err(Failure::other)? {
        table.row(vec![name, address.to_string(), public_address.to_string(), behind.join(",")]);
    }
    print(&table.render(None))?;
    Ok(Code::Done)
}
