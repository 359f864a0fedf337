//! The commands, one file each.

mod cluster_delete;
mod cluster_inject;
mod cluster_kubeconfig;
mod hypervisor_adopt;
mod hypervisor_local;
mod hypervisor_schedule;
mod plan;
mod reconcile;
mod session;
mod status;

use std::io::Write;

use keelway_api::{Documents, name::ClusterRef};

use crate::{
    args::{Arguments, ClusterCommand, ClusterName, Command, HypervisorCommand},
    exit::{Code, Failure},
};

/// Carries out what the command line says.
pub(crate) fn run(arguments: Arguments) -> Result<Code, Failure> {
    let global = arguments.global;
    match arguments.command {
        Command::Hypervisor(HypervisorCommand::Local(command)) => hypervisor_local::run(&global, command),
        Command::Hypervisor(HypervisorCommand::Cordon(names)) => hypervisor_schedule::cordon(&global, &names),
        Command::Hypervisor(HypervisorCommand::Uncordon(names)) => hypervisor_schedule::uncordon(&global, &names),
        Command::Hypervisor(HypervisorCommand::Drain(arguments)) => hypervisor_schedule::drain(&global, &arguments),
        Command::Hypervisor(HypervisorCommand::Adopt(arguments)) => hypervisor_adopt::run(&global, &arguments),
        Command::Cluster(ClusterCommand::Inject(arguments)) => cluster_inject::run(&global, *arguments),
        Command::Cluster(ClusterCommand::Delete(name)) => cluster_delete::run(&global, &name),
        Command::Cluster(ClusterCommand::Kubeconfig(arguments)) => cluster_kubeconfig::run(&global, &arguments),
        Command::Reconcile(arguments) => reconcile::run(&global, &arguments),
        Command::Plan(arguments) => plan::run(&global, &arguments),
        Command::Status(arguments) => status::run(&global, &arguments),
    }
}

/// Writes to stdout, which is only data.
fn print(text: &str) -> Result<(), Failure> {
    let mut stdout = std::io::stdout();
    stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).map_err(Failure::other)
}

impl ClusterName {
    fn reference(&self) -> ClusterRef {
        ClusterRef { namespace: self.namespace.clone(), name: self.name.clone() }
    }

    /// The fault of naming a cluster that is not there.
    fn missing(&self, documents: &Documents) -> Failure {
        let there: Vec<String> = documents.clusters.keys().map(ToString::to_string).collect();
        let mend = if there.is_empty() {
            "the documents hold no Cluster: add one with `keelway cluster inject --name NAME`".to_owned()
        } else {
            format!("the documents hold {}", there.join(", "))
        };
        Failure::usage(format!("there is no cluster {}", self.reference()), mend)
    }
}
