//! The commands, one file each.

pub(crate) mod backup;
pub(crate) mod claimed_store;
mod cluster_clone;
pub(crate) mod cluster_delete;
pub(crate) mod cluster_inject;
pub(crate) mod cluster_kubeconfig;
pub(crate) mod cluster_recover_quorum;
pub(crate) mod cluster_restore;
pub(crate) mod cluster_rotate;
pub(crate) mod cluster_scale;
pub(crate) mod cluster_sleep;
pub(crate) mod cluster_upgrade;
pub(crate) mod completion;
pub(crate) mod diff;
pub(crate) mod events;
pub(crate) mod exec;
pub(crate) mod explain;
pub(crate) mod fleet;
pub(crate) mod fleet_agent_manifests;
mod fleet_api;
pub(crate) mod fleet_cluster;
pub(crate) mod fleet_convert;
pub(crate) mod fleet_diff;
pub(crate) mod fleet_drain;
pub(crate) mod fleet_explain;
pub(crate) mod fleet_inject;
pub(crate) mod fleet_manifests;
mod fleet_observation;
pub(crate) mod fleet_observe;
pub(crate) mod fleet_status;
pub(crate) mod fleet_token;
pub(crate) mod get;
pub(crate) mod hypervisor_adopt;
pub(crate) mod hypervisor_describe;
pub(crate) mod hypervisor_enroll;
pub(crate) mod hypervisor_inject;
pub(crate) mod hypervisor_local;
pub(crate) mod hypervisor_local_enroll;
pub(crate) mod hypervisor_proxy;
pub(crate) mod hypervisor_revoke;
pub(crate) mod hypervisor_schedule;
pub(crate) mod join_token;
pub(crate) mod kubectl_install;
pub(crate) mod logs;
pub(crate) mod managed;
pub(crate) mod named;
pub(crate) mod node;
pub(crate) mod node_evict;
pub(crate) mod node_local;
pub(crate) mod observe;
pub(crate) mod pivot;
pub(crate) mod plan;
pub(crate) mod reconcile;
pub(crate) mod recover;
pub(crate) mod reference;
pub(crate) mod session;
pub(crate) mod snapshot;
pub(crate) mod status;
pub(crate) mod validate;
pub(crate) mod version;
pub(crate) mod workers;

use std::io::{BufWriter, Write};

use keelway_api::{Documents, name::ClusterRef};

use crate::{
    args::{
        CliArguments, CliCommand, ClusterCommand, ClusterName, ComponentCommand, HypervisorCommand, KindName,
        NodeCommand,
    },
    directories::state_directory,
    exit::{Code, CommandFailure},
    last_documents,
};

/// Runs the command that the command line names.
pub(crate) fn run(arguments: CliArguments) -> Result<Code, CommandFailure> {
    let global = arguments.global;
    match arguments.command {
        CliCommand::Hypervisor(HypervisorCommand::Local(command)) => hypervisor_local::run(&global, command),
        CliCommand::Hypervisor(HypervisorCommand::Inject(arguments)) => hypervisor_inject::run(&global, *arguments),
        CliCommand::Hypervisor(HypervisorCommand::Enroll(arguments)) => hypervisor_enroll::run(&global, *arguments),
        CliCommand::Hypervisor(HypervisorCommand::Revoke(names)) => hypervisor_revoke::run(&global, &names),
        CliCommand::Hypervisor(HypervisorCommand::Get(arguments)) => {
            get::run(KindName::Hypervisor, &global, &arguments)
        }
        CliCommand::Hypervisor(HypervisorCommand::Describe(arguments)) => hypervisor_describe::run(&global, &arguments),
        CliCommand::Hypervisor(HypervisorCommand::Cordon(names)) => hypervisor_schedule::cordon(&global, &names),
        CliCommand::Hypervisor(HypervisorCommand::Uncordon(names)) => hypervisor_schedule::uncordon(&global, &names),
        CliCommand::Hypervisor(HypervisorCommand::Drain(arguments)) => hypervisor_schedule::drain(&global, &arguments),
        CliCommand::Hypervisor(HypervisorCommand::Delete(names)) => hypervisor_schedule::delete(&global, &names),
        CliCommand::Hypervisor(HypervisorCommand::Adopt(arguments)) => hypervisor_adopt::run(&global, &arguments),
        CliCommand::Hypervisor(HypervisorCommand::Proxy(arguments)) => hypervisor_proxy::run(&global, &arguments),
        CliCommand::Cluster(ClusterCommand::Inject(arguments)) => cluster_inject::run(&global, *arguments),
        CliCommand::Cluster(ClusterCommand::Get(arguments)) => get::run(KindName::Cluster, &global, &arguments),
        CliCommand::Cluster(ClusterCommand::Restore(arguments)) => cluster_restore::run(&global, arguments),
        CliCommand::Cluster(ClusterCommand::Scale(arguments)) => cluster_scale::run(&global, &arguments),
        CliCommand::Cluster(ClusterCommand::Upgrade(arguments)) => cluster_upgrade::run(&global, &arguments),
        CliCommand::Cluster(ClusterCommand::Sleep(name)) => cluster_sleep::run(&global, &name, true),
        CliCommand::Cluster(ClusterCommand::Wake(name)) => cluster_sleep::run(&global, &name, false),
        CliCommand::Cluster(ClusterCommand::RecoverQuorum(arguments)) => {
            cluster_recover_quorum::run(&global, &arguments)
        }
        CliCommand::Cluster(ClusterCommand::Rotate(arguments)) => cluster_rotate::run(&global, &arguments),
        CliCommand::Cluster(ClusterCommand::Delete(name)) => cluster_delete::run(&global, &name),
        CliCommand::Cluster(ClusterCommand::Kubeconfig(arguments)) => cluster_kubeconfig::run(&global, &arguments),
        CliCommand::Fleet(command) => fleet::run(&global, command),
        CliCommand::Snapshot(command) => snapshot::run(&global, &command),
        CliCommand::JoinToken(command) => join_token::run(&global, &command),
        CliCommand::Node(NodeCommand::Evict(arguments)) => node_evict::run(&global, &arguments),
        CliCommand::Node(NodeCommand::Worker(command)) => node::run(&global, command),
        CliCommand::Node(NodeCommand::Local(command)) => node_local::run(&global, command),
        CliCommand::Apply(arguments) => managed::apply(&global, &arguments),
        CliCommand::Get(arguments) => managed::get(&arguments),
        CliCommand::Edit(arguments) => managed::edit(&arguments),
        CliCommand::Delete(arguments) => managed::delete(&arguments),
        CliCommand::Watch(arguments) => managed::watch(&arguments),
        CliCommand::Reconcile(arguments) => reconcile::run(&global, &arguments),
        CliCommand::Pivot(arguments) => pivot::run(&global, &arguments),
        CliCommand::Backup(arguments) => backup::run(&global, &arguments),
        CliCommand::Recover(arguments) => recover::run(&global, &arguments),
        CliCommand::Plan(arguments) => plan::run(&global, &arguments),
        CliCommand::Observe => observe::run(&global),
        CliCommand::Status(arguments) => status::run(&global, &arguments),
        CliCommand::Component(ComponentCommand::Get(arguments)) => get::run(KindName::Component, &global, &arguments),
        CliCommand::Validate => validate::run(&global),
        CliCommand::Logs(arguments) => logs::run(&global, &arguments),
        CliCommand::Events(arguments) => events::run(&global, &arguments),
        CliCommand::Exec(arguments) => exec::run(&global, arguments),
        CliCommand::Diff(arguments) => diff::run(&arguments),
        CliCommand::Explain { field } => explain::run(&field),
        CliCommand::KubectlInstall(arguments) => kubectl_install::run(&arguments),
        CliCommand::Completion { shell } => completion::run(shell),
        CliCommand::Reference(command) => reference::run(command),
        CliCommand::Version(arguments) => version::run(&arguments),
    }
}

/// Writes to stdout, which carries data only.
fn print(text: &str) -> Result<(), CommandFailure> {
    let mut stdout = std::io::stdout();
    stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).map_err(CommandFailure::other)
}

/// Writes a line for people to stderr.
fn note(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// Writes documents to stdout piece by piece, so that their whole text is never in memory. Also keeps a copy, in case a shell has emptied the
/// file.
fn print_documents(documents: &Documents) -> Result<(), CommandFailure> {
    keep_documents(documents);
    let mut stdout = BufWriter::new(std::io::stdout().lock());
    let written = documents.pieces().try_for_each(|piece| stdout.write_all(piece.as_bytes()));
    written.and_then(|()| stdout.flush()).map_err(CommandFailure::other)
}

/// Keeps a copy of the documents that a command wrote. If that fails, warns and continues.
fn keep_documents(documents: &Documents) {
    if let Err(error) = last_documents::store(&state_directory(), documents) {
        let _ = writeln!(std::io::stderr(), "warning: cannot store a copy of the documents: {error:#}");
    }
}

impl ClusterName {
    fn reference(&self) -> ClusterRef {
        ClusterRef { namespace: self.namespace.clone(), name: self.name.clone() }
    }

    /// Returns the error for a cluster that does not exist.
    fn missing(&self, documents: &Documents) -> CommandFailure {
        let there: Vec<String> = documents.clusters.keys().map(ToString::to_string).collect();
        let help = if there.is_empty() {
            "the documents contain no Cluster; add one with `keelway cluster inject --name NAME`".to_owned()
        } else {
            format!("the documents contain {}", there.join(", "))
        };
        CommandFailure::usage(format!("cluster {} not found", self.reference()), help)
    }
}
