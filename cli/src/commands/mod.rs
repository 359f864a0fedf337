//! The commands, one file each.

mod cluster_delete;
mod cluster_inject;
mod cluster_kubeconfig;
mod completion;
mod diff;
mod events;
mod exec;
mod explain;
mod get;
mod hypervisor_adopt;
mod hypervisor_describe;
mod hypervisor_enroll;
mod hypervisor_inject;
mod hypervisor_local;
mod hypervisor_local_enroll;
mod hypervisor_proxy;
mod hypervisor_revoke;
mod hypervisor_schedule;
mod join_token;
mod logs;
mod managed;
mod named;
mod node;
mod node_evict;
mod node_local;
mod observe;
mod pivot;
mod plan;
mod reconcile;
mod recover;
mod reference;
mod session;
mod status;
mod taken;
mod validate;
mod version;
mod workers;

use std::io::{BufWriter, Write};

use keelway_api::{Documents, name::ClusterRef};

use crate::{
    args::{
        Arguments, ClusterCommand, ClusterName, Command, ComponentCommand, HypervisorCommand, KindName, NodeCommand,
    },
    directories::state_directory,
    exit::{Code, Failure},
    kept,
};

/// Carries out what the command line says.
pub(crate) fn run(arguments: Arguments) -> Result<Code, Failure> {
    let global = arguments.global;
    match arguments.command {
        Command::Hypervisor(HypervisorCommand::Local(command)) => hypervisor_local::run(&global, command),
        Command::Hypervisor(HypervisorCommand::Inject(arguments)) => hypervisor_inject::run(&global, *arguments),
        Command::Hypervisor(HypervisorCommand::Enroll(arguments)) => hypervisor_enroll::run(&global, *arguments),
        Command::Hypervisor(HypervisorCommand::Revoke(names)) => hypervisor_revoke::run(&global, &names),
        Command::Hypervisor(HypervisorCommand::Get(arguments)) => get::run(KindName::Hypervisor, &global, &arguments),
        Command::Hypervisor(HypervisorCommand::Describe(arguments)) => hypervisor_describe::run(&global, &arguments),
        Command::Hypervisor(HypervisorCommand::Cordon(names)) => hypervisor_schedule::cordon(&global, &names),
        Command::Hypervisor(HypervisorCommand::Uncordon(names)) => hypervisor_schedule::uncordon(&global, &names),
        Command::Hypervisor(HypervisorCommand::Drain(arguments)) => hypervisor_schedule::drain(&global, &arguments),
        Command::Hypervisor(HypervisorCommand::Adopt(arguments)) => hypervisor_adopt::run(&global, &arguments),
        Command::Hypervisor(HypervisorCommand::Proxy(arguments)) => hypervisor_proxy::run(&global, &arguments),
        Command::Cluster(ClusterCommand::Inject(arguments)) => cluster_inject::run(&global, *arguments),
        Command::Cluster(ClusterCommand::Get(arguments)) => get::run(KindName::Cluster, &global, &arguments),
        Command::Cluster(ClusterCommand::Delete(name)) => cluster_delete::run(&global, &name),
        Command::Cluster(ClusterCommand::Kubeconfig(arguments)) => cluster_kubeconfig::run(&global, &arguments),
        Command::JoinToken(command) => join_token::run(&global, &command),
        Command::Node(NodeCommand::Evict(arguments)) => node_evict::run(&global, &arguments),
        Command::Node(NodeCommand::Worker(command)) => node::run(&global, command),
        Command::Node(NodeCommand::Local(command)) => node_local::run(&global, command),
        Command::Apply(arguments) => managed::apply(&global, &arguments),
        Command::Get(arguments) => managed::get(&arguments),
        Command::Edit(arguments) => managed::edit(&arguments),
        Command::Delete(arguments) => managed::delete(&arguments),
        Command::Watch(arguments) => managed::watch(&arguments),
        Command::Reconcile(arguments) => reconcile::run(&global, &arguments),
        Command::Pivot(arguments) => pivot::run(&global, &arguments),
        Command::Recover(arguments) => recover::run(&global, &arguments),
        Command::Plan(arguments) => plan::run(&global, &arguments),
        Command::Observe => observe::run(&global),
        Command::Status(arguments) => status::run(&global, &arguments),
        Command::Component(ComponentCommand::Get(arguments)) => get::run(KindName::Component, &global, &arguments),
        Command::Validate => validate::run(&global),
        Command::Logs(arguments) => logs::run(&global, &arguments),
        Command::Events(arguments) => events::run(&global, &arguments),
        Command::Exec(arguments) => exec::run(&global, arguments),
        Command::Diff(arguments) => diff::run(&arguments),
        Command::Explain { field } => explain::run(&field),
        Command::Completion { shell } => completion::run(shell),
        Command::Reference(command) => reference::run(command),
        Command::Version(arguments) => version::run(&arguments),
    }
}

/// Writes to stdout, which is only data.
fn print(text: &str) -> Result<(), Failure> {
    let mut stdout = std::io::stdout();
    stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).map_err(Failure::other)
}

/// Documents, of which there may be many: their whole text is never in memory. They are kept as well, for a file that a shell empties.
fn print_documents(documents: &Documents) -> Result<(), Failure> {
    keep_documents(documents);
    let mut stdout = BufWriter::new(std::io::stdout().lock());
    let written = documents.pieces().try_for_each(|piece| stdout.write_all(piece.as_bytes()));
    written.and_then(|()| stdout.flush()).map_err(Failure::other)
}

/// Keeps what a command wrote last. A command does what it is asked for also where it cannot.
fn keep_documents(documents: &Documents) {
    if let Err(error) = kept::keep(&state_directory(), documents) {
        let _ = writeln!(std::io::stderr(), "warning: no copy of the documents is kept: {error:#}");
    }
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
