//! The command line.

mod fleet;
mod managed;
mod pivot;
mod workers;

pub(crate) use fleet::FleetCommand;
pub(crate) use managed::{KindName, NamedArguments, ServerArgument};
pub(crate) use pivot::{PivotStoreArgument, parse_store};
pub(crate) use workers::ClusterArgument;

use std::{io::IsTerminal, path::PathBuf};

use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum};
use keelway_api::name::HypervisorName;

use crate::commands::{
    backup::BackupArguments,
    cluster_inject::InjectArguments,
    cluster_kubeconfig::KubeconfigArguments,
    cluster_recover_quorum::RecoverQuorumArguments,
    cluster_restore::RestoreArguments,
    cluster_rotate::RotateArguments,
    cluster_scale::ScaleArguments,
    cluster_upgrade::ClusterUpgradeArguments,
    diff::DiffArguments,
    events::EventsArguments,
    exec::ExecArguments,
    hypervisor_adopt::AdoptArguments,
    hypervisor_describe::DescribeArguments,
    hypervisor_enroll::HypervisorEnrollArguments,
    hypervisor_inject::HypervisorInjectArguments,
    hypervisor_local::LocalCommand,
    hypervisor_proxy::ProxyArguments,
    join_token::JoinTokenCommand,
    kubectl_install::KubectlInstallArguments,
    logs::LogsArguments,
    managed::{apply::ApplyArguments, delete::DeleteArguments, get::GetDocumentsArguments, watch::WatchArguments},
    node::arguments::WorkerCommand,
    node_evict::EvictArguments,
    node_local::NodeLocalCommand,
    pivot::PivotArguments,
    plan::PlanArguments,
    reconcile::ReconcileArguments,
    recover::RecoverArguments,
    reference::ReferenceCommand,
    snapshot::SnapshotCommand,
    status::StatusArguments,
    version::VersionArguments,
};

/// Create and run Kubernetes control planes on your own machines.
///
/// Commands read documents as YAML from stdin (or from files with -f) and write documents as YAML to stdout. Messages go to stderr.
#[derive(Parser)]
#[command(name = "keelway", version, after_help = EXAMPLE)]
pub(crate) struct CliArguments {
    #[command(flatten)]
    pub(crate) global: GlobalArguments,
    #[command(subcommand)]
    pub(crate) command: CliCommand,
}

const EXAMPLE: &str = "\
Example:
  keelway hypervisor local create --public 1 --private 1 > world.yaml
  keelway cluster inject --name c1 < world.yaml | keelway reconcile > c1.yaml
  keelway cluster kubeconfig --name c1 < c1.yaml > c1.kubeconfig
  kubectl --kubeconfig c1.kubeconfig get --raw /readyz

Exit codes:
  0  success; for reconcile: settled   4  plan, diff --exit-code: found a difference;
                                          recover: something needs attention
  1  failed                            130, 143  ended by SIGINT, SIGTERM
  2  bad input or usage                exec: the exit code of its command
  3  not settled before the timeout

Environment:
  NO_COLOR         disables colours
  COLUMNS          the width of the terminal; tables are cut only on a terminal
  KEELWAY_SERVER   the socket of the manager
  KEELWAY_CACHE    images and programs for local hypervisors [default: ~/.cache/keelway]
  XDG_STATE_HOME   documents of unfinished runs, and copies of the last output [default: ~/.local/state]";

#[derive(Args)]
pub(crate) struct GlobalArguments {
    /// Read documents from FILE instead of stdin; can be repeated
    #[arg(short = 'f', long = "filename", value_name = "FILE", global = true)]
    pub(crate) files: Vec<PathBuf>,
    /// Print more messages to stderr; -vv also prints debug messages
    #[arg(short, long, action = ArgAction::Count, global = true)]
    pub(crate) verbose: u8,
    /// Print only errors to stderr
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub(crate) quiet: bool,
    /// When to colour messages on stderr; auto colours on a terminal unless NO_COLOR is set
    #[arg(long, value_enum, default_value = "auto", value_name = "WHEN", global = true)]
    pub(crate) color: Color,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Color {
    Auto,
    Always,
    Never,
}

impl Color {
    /// Whether stderr gets colours.
    pub(crate) fn wanted(self) -> bool {
        let refused = || std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        match self {
            Self::Always => true,
            Self::Never => false,
            Self::Auto => std::io::stderr().is_terminal() && !refused(),
        }
    }
}

impl CliArguments {
    pub(crate) fn log_filter(&self) -> &'static str {
        let is_daemon = matches!(self.command, CliCommand::Node(NodeCommand::Worker(WorkerCommand::Run(_))));
        match (self.global.quiet, self.global.verbose) {
            (true, _) if is_daemon => "error,boringtun=off",
            (true, _) => "off",
            (false, 0) if is_daemon => "info,boringtun=off",
            (false, 0) => "warn",
            (false, 1) => "info",
            (false, _) => "debug",
        }
    }
}

#[derive(Subcommand)]
pub(crate) enum CliCommand {
    /// Manage the machines that run control planes
    #[command(
        subcommand,
        after_help = "Example:\n  keelway hypervisor local create --public 1 --private 1 > world.yaml\n  keelway hypervisor get < world.yaml"
    )]
    Hypervisor(HypervisorCommand),
    /// Manage Kubernetes clusters
    #[command(
        subcommand,
        after_help = "Example:\n  keelway cluster inject --name c1 < world.yaml | keelway reconcile > c1.yaml\n  keelway cluster get < c1.yaml"
    )]
    Cluster(ClusterCommand),
    /// Manage fleets: one Kubernetes API over many clusters
    #[command(
        subcommand,
        after_help = "Example:\n  keelway fleet inject --name f1 < world.yaml | keelway reconcile > f1.yaml\n  keelway cluster kubeconfig --name f1 < f1.yaml > f1.kubeconfig"
    )]
    Fleet(FleetCommand),
    /// Manage the tokens with which machines join a cluster as workers
    #[command(
        subcommand,
        after_help = "Example:\n  keelway join-token create --cluster c1 --ttl 24h < c1.yaml\n  keelway join-token list --cluster c1 < c1.yaml"
    )]
    JoinToken(JoinTokenCommand),
    /// Manage snapshots of clusters' etcd
    #[command(
        subcommand,
        after_help = "Example:\n  keelway snapshot create c1 < c1.yaml\n  keelway snapshot list c1 < c1.yaml"
    )]
    Snapshot(SnapshotCommand),
    /// Manage workers of clusters
    #[command(
        subcommand,
        after_help = "Example:\n  keelway node join --token-file token\n  keelway node status\n  keelway node local create --name w1 --behind nat-a"
    )]
    Node(NodeCommand),
    /// Apply documents to machines, and write the updated documents
    #[command(
        after_help = "Example:\n  keelway cluster inject --name c1 < world.yaml | keelway reconcile > c1.yaml\n  keelway reconcile --in-place c1.yaml"
    )]
    Reconcile(ReconcileArguments),
    /// Show what a pass would do and why, without changes
    #[command(
        after_help = "Example:\n  keelway plan < c1.yaml\n  keelway observe < c1.yaml > seen.yaml\n  keelway plan --offline seen.yaml < c1.yaml"
    )]
    Plan(PlanArguments),
    /// Write what a pass observes of machines, components and clusters; the output contains no keys
    #[command(
        after_help = "Example:\n  keelway observe < c1.yaml > seen.yaml\n  keelway plan --offline seen.yaml < c1.yaml\n  keelway explain observation"
    )]
    Observe,
    /// Apply documents to a manager's store: all of them, or none
    #[command(after_help = "Example:\n  keelway apply -f c1.yaml")]
    Apply(ApplyArguments),
    /// Show documents from a manager
    #[command(
        after_help = "Example:\n  keelway get\n  keelway get clusters -o wide\n  keelway get -o yaml | keelway logs c1/etcd-0"
    )]
    Get(GetDocumentsArguments),
    /// Edit documents of a manager with $EDITOR
    #[command(after_help = "Example:\n  keelway edit cluster c1")]
    Edit(NamedArguments),
    /// Delete documents of a manager, and the components that run for them
    #[command(after_help = "Example:\n  keelway delete cluster c1\n  keelway delete cluster c1 --wait=false")]
    Delete(DeleteArguments),
    /// Watch documents of a manager and print each change
    #[command(after_help = "Example:\n  keelway watch\n  keelway watch clusters -o yaml")]
    Watch(WatchArguments),
    /// Move all documents from one store to another, without changes on machines
    ///
    /// A store is a directory (dir:PATH), a management cluster (kubernetes, or kubernetes:KUBECONFIG), or stdin and stdout (-). No manager
    /// may use either store meanwhile. If the command is interrupted, run it again to continue. The HTTP proxy in HTTPS_PROXY applies to management
    /// clusters, except for those in NO_PROXY.
    #[command(
        after_help = "Example:\n  keelway pivot --to kubernetes < world.yaml\n  keelway pivot --from dir:/var/lib/keelway-manager --to kubernetes:management.kubeconfig\n  keelway pivot --from kubernetes > world.yaml"
    )]
    Pivot(PivotArguments),
    /// Write all documents, with their Secrets, and the list of snapshots to one sealed file
    ///
    /// The file is sealed to the public keys of `--recipient`, in the format of age. Only `keelway recover` and the program `age` open it, with a
    /// secret key that need not be on this host. Exits with 4 if the backup was written and the snapshots of a cluster could not be listed.
    #[command(
        after_help = "Example:\n  keelway backup --recipient age1ql3z7hjy54pw3hyww5ayyfg7zqgvc7w3j2elw8zmrj2kg5sfn9aqmcac8p --to c1.backup < c1.yaml\n  keelway backup --recipients-file operators.txt --to keelway.backup --from dir:/var/lib/keelway-manager"
    )]
    Backup(BackupArguments),
    /// Update the documents of an older backup to match the machines, without changes on machines
    ///
    /// Reads the config of every machine. Sets terms and generations to those of the machines, and rebuilds the documents of components
    /// that are newer than the backup. Prints one line to stderr for each difference. Exits with 4 if something needs your attention.
    /// Recovers a directory or a management cluster in place. No manager may use it meanwhile.
    #[command(
        after_help = "Example:\n  keelway recover --dry-run < backup.yaml\n  keelway recover < backup.yaml > c1.yaml && keelway plan < c1.yaml\n  keelway recover --from dir:/var/lib/keelway-manager\n  keelway recover --from kubernetes:management.kubeconfig\n  keelway recover --backup c1.backup --identity backup.agekey > c1.yaml"
    )]
    Recover(RecoverArguments),
    /// Show the current status of clusters, components and machines
    ///
    /// Connects to the machines, as `plan` does, and changes nothing. A machine that does not respond is shown as not ready.
    #[command(
        after_help = "Example:\n  keelway status < c1.yaml\n  keelway status -o wide < c1.yaml\n  keelway status --recorded < c1.yaml"
    )]
    Status(StatusArguments),
    /// Show components of clusters
    #[command(subcommand, after_help = "Example:\n  keelway component get -o wide < c1.yaml")]
    Component(ComponentCommand),
    /// Check whether the documents can be reconciled, and report every fault
    #[command(
        after_help = "Example:\n  keelway validate < world.yaml\n  keelway validate -f machines.yaml -f clusters.yaml"
    )]
    Validate,
    /// Show the differences between two sets of documents, one line for each document and field
    #[command(
        after_help = "Example:\n  keelway diff before.yaml after.yaml\n  keelway reconcile < c1.yaml | keelway diff c1.yaml -"
    )]
    Diff(DiffArguments),
    /// Print the logs of a component from its machine
    #[command(
        after_help = "Example:\n  keelway logs c1/kube-apiserver-0 < c1.yaml\n  keelway logs c1/etcd-0 --tail 20 --follow --filename c1.yaml\n  keelway logs c1/etcd-0 --previous < c1.yaml"
    )]
    Logs(LogsArguments),
    /// Run a command in a component's container, and exit with its exit code
    #[command(
        after_help = "Example:\n  keelway exec c1/etcd-0 -- etcdctl version < c1.yaml\n  keelway exec c1/etcd-0 -it -f c1.yaml -- sh"
    )]
    Exec(ExecArguments),
    /// Show events of machines, the newest last: starts, exits, restarts, failed probes
    #[command(
        after_help = "Example:\n  keelway events < c1.yaml\n  keelway events c1 --watch < c1.yaml\n  keelway events hv-1 -o json < c1.yaml"
    )]
    Events(EventsArguments),
    /// Describe a field of a document
    #[command(after_help = "Example:\n  keelway explain cluster\n  keelway explain cluster.spec.etcd")]
    Explain {
        /// A kind, optionally followed by a dot and the path of a field
        #[arg(value_name = "KIND[.FIELD..]")]
        field: String,
    },
    /// Make this program a plugin of kubectl: `kubectl keelway` is `keelway`
    ///
    /// Creates the link kubectl-keelway to this program. `kubectl keelway fleet` uses the cluster that kubectl uses.
    #[command(
        after_help = "Example:\n  keelway kubectl-install && kubectl keelway fleet status\n  keelway kubectl-install --directory ~/.local/bin"
    )]
    KubectlInstall(KubectlInstallArguments),
    /// Print the completion script for a shell
    #[command(
        after_help = "Example:\n  source <(keelway completion bash)\n  keelway completion zsh > \"${fpath[1]}/_keelway\""
    )]
    Completion {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print the version of this program and the Kubernetes releases that it supports
    #[command(after_help = "Example:\n  keelway version\n  keelway version -o json")]
    Version(VersionArguments),
    /// Write the parts of the documentation that are generated from this program
    #[command(hide = true, subcommand, after_help = "Example:\n  keelway reference man target/man")]
    Reference(ReferenceCommand),
}

#[derive(Args)]
pub(crate) struct GetArguments {
    /// Names [default: all]
    #[arg(value_name = "NAME")]
    pub(crate) names: Vec<String>,
    /// The output format
    #[arg(short, long, value_enum, default_value = "table")]
    pub(crate) output: OutputFormat,
}

/// How documents are shown.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum OutputFormat {
    /// A table
    Table,
    /// A table with more columns
    Wide,
    /// The documents, as a v1 List in JSON
    Json,
    /// The documents in YAML
    Yaml,
    /// Kind and name, one per line
    Name,
}

#[derive(Subcommand)]
pub(crate) enum ComponentCommand {
    /// Show components
    #[command(
        after_help = "Example:\n  keelway component get < c1.yaml\n  keelway component get c1/etcd-0 -o yaml < c1.yaml"
    )]
    Get(GetArguments),
}

#[derive(Subcommand)]
pub(crate) enum HypervisorCommand {
    /// Manage local hypervisors: network and mount namespaces on this host, to try Keelway
    #[command(
        subcommand,
        after_help = "Example:\n  keelway hypervisor local create --public 1 --private 1 > world.yaml\n  keelway hypervisor local destroy < empty.yaml"
    )]
    Local(LocalCommand),
    /// Add a Hypervisor to the documents
    #[command(
        after_help = "Example:\n  keelway hypervisor inject --name hv-1 --role private --private-address 10.0.0.11 --socket /run/containerd/containerd.sock < world.yaml\n  keelway hypervisor inject --name hv-2 --role public --private-address 10.0.0.12 --public-address 203.0.113.12 --agent-socket /run/keelway/agent.sock < world.yaml"
    )]
    Inject(Box<HypervisorInjectArguments>),
    /// Enroll the agent of a hypervisor on the network. Adds the Hypervisor if it is missing, and prints the command to run on the
    /// machine: keelway-hypervisor-agent with a token that is valid once. The next reconcile issues its certificate
    #[command(
        after_help = "Example:\n  keelway hypervisor enroll --name hv-1 --role private --zone eu-1 --address 10.0.0.5:7443 < world.yaml > enrolled.yaml\n  keelway hypervisor enroll --name hv-1 < enrolled.yaml > again.yaml"
    )]
    Enroll(Box<HypervisorEnrollArguments>),
    /// Revoke the certificates of hypervisors' agents. Keelway does not connect to these machines until they are enrolled again. Their
    /// components stay in the documents and are not moved
    #[command(after_help = "Example:\n  keelway hypervisor revoke hv-1 < world.yaml | keelway reconcile > next.yaml")]
    Revoke(HypervisorNames),
    /// Show hypervisors, the resources that components request, and what is left
    #[command(
        after_help = "Example:\n  keelway hypervisor get < world.yaml\n  keelway hypervisor get hv-1 -o yaml < world.yaml"
    )]
    Get(GetArguments),
    /// Show details of hypervisors, including recent events
    #[command(
        after_help = "Example:\n  keelway hypervisor describe hv-1 < c1.yaml\n  keelway hypervisor describe --show-events=false < c1.yaml"
    )]
    Describe(DescribeArguments),
    /// Mark hypervisors as unschedulable; components that run there stay
    #[command(after_help = "Example:\n  keelway hypervisor cordon hv-2 < world.yaml | keelway reconcile > next.yaml")]
    Cordon(HypervisorNames),
    /// Mark hypervisors as schedulable again, also after a drain
    #[command(after_help = "Example:\n  keelway hypervisor uncordon hv-2 < world.yaml | keelway reconcile > next.yaml")]
    Uncordon(HypervisorNames),
    /// Move the components of hypervisors to others at the next reconcile, each once its replacement is ready
    #[command(after_help = "Example:\n  keelway hypervisor drain hv-2 < world.yaml | keelway reconcile > next.yaml")]
    Drain(HypervisorNames),
    /// Delete hypervisors: the next reconcile removes their documents once no component is on them, and stops agents that Keelway started
    #[command(after_help = "Example:\n  keelway hypervisor delete hv-2 < world.yaml | keelway reconcile > next.yaml")]
    Delete(HypervisorNames),
    /// Adopt hypervisors from another installation; what runs on them keeps running
    #[command(
        after_help = "Example:\n  keelway hypervisor adopt --from 0123456789abcdef < world.yaml > adopted.yaml\n  keelway hypervisor adopt --from 0123456789abcdef --name hv-2 < world.yaml > adopted.yaml"
    )]
    Adopt(AdoptArguments),
    /// Forward a local socket to the container runtime of a hypervisor, for crictl and similar tools
    #[command(
        after_help = "Example:\n  keelway hypervisor proxy hv-1 --listen unix:///tmp/hv-1.sock -f c1.yaml\n  crictl -r unix:///tmp/hv-1.sock ps"
    )]
    Proxy(ProxyArguments),
}

#[derive(Args)]
pub(crate) struct HypervisorNames {
    /// Names of hypervisors
    #[arg(required = true, value_name = "NAME")]
    pub(crate) names: Vec<HypervisorName>,
}

#[derive(Subcommand)]
pub(crate) enum NodeCommand {
    #[command(flatten)]
    Worker(WorkerCommand),
    /// Manage local machines for workers on this host, beside local hypervisors or behind NATs, to try Keelway
    #[command(
        subcommand,
        after_help = "Example:\n  keelway node local create --name w1 --behind nat-a,nat-b\n  keelway node local exec w1 -- ip address\n  keelway node local destroy w1"
    )]
    Local(NodeLocalCommand),
    /// Evict workers from a cluster: closes their tunnels and revokes their credentials
    #[command(
        after_help = "Example:\n  keelway node evict w1 --cluster c1 < c1.yaml\n  keelway node evict w1 w2 --cluster c1 -f c1.yaml"
    )]
    Evict(EvictArguments),
}

#[derive(Subcommand)]
pub(crate) enum ClusterCommand {
    /// Add a Cluster to the documents
    #[command(
        after_help = "Example:\n  keelway cluster inject --name c1 < world.yaml | keelway reconcile > c1.yaml\n  keelway cluster inject --name c1 --etcd-replicas 3 --control-plane-replicas 3 --ingress-replicas 2 < world.yaml\n  keelway cluster inject --name c2 --from-snapshot 20261127T115200Z-48213 < c1.yaml | keelway reconcile > c2.yaml"
    )]
    Inject(Box<InjectArguments>),
    /// Show clusters
    #[command(after_help = "Example:\n  keelway cluster get < c1.yaml\n  keelway cluster get -o name < c1.yaml")]
    Get(GetArguments),
    /// Change the number of a cluster's components; the next reconcile adds or removes them
    #[command(
        after_help = "Example:\n  keelway cluster scale --name c1 --etcd-replicas 5 < c1.yaml | keelway reconcile > scaled.yaml"
    )]
    Scale(ScaleArguments),
    /// Set the Kubernetes release of a cluster; the next reconcile replaces its components one after the other. `keelway plan` shows what happens
    #[command(
        after_help = "Example:\n  keelway cluster upgrade --name c1 --to 1.37.1 < c1.yaml | keelway plan\n  keelway cluster upgrade --name c1 --to 1.37.1 < c1.yaml | keelway reconcile > upgraded.yaml\n\n\
                      A skipped minor version is an upgrade of its own, which Keelway carries out first. A patch release may be older than the\n\
                      current one, a minor version may not. Workers keep their kubelets until --workers or `keelway node upgrade`. See\n\
                      docs/upgrades.md."
    )]
    Upgrade(ClusterUpgradeArguments),
    /// Put a cluster to sleep; the next reconcile stops its components. Data, ports, addresses and keys stay, and the API answers 503
    #[command(
        after_help = "Example:\n  keelway cluster sleep --name c1 < c1.yaml | keelway reconcile > asleep.yaml\n\nPods on workers continue. See docs/sleep.md."
    )]
    Sleep(ClusterName),
    /// Wake a cluster that sleeps; the next reconcile starts its components
    #[command(after_help = "Example:\n  keelway cluster wake --name c1 < asleep.yaml | keelway reconcile > c1.yaml")]
    Wake(ClusterName),
    /// Request that the data of a cluster's etcd is replaced by a snapshot; the next reconcile does it. What was written after the snapshot is
    /// lost. `keelway plan` shows what happens
    #[command(
        after_help = "Example:\n  keelway snapshot list c1 < c1.yaml\n  keelway cluster restore --name c1 --snapshot 20261127T115200Z-48213 < c1.yaml | keelway reconcile > restored.yaml"
    )]
    Restore(RestoreArguments),
    /// Continue the etcd of a Cluster from a remaining member, after a majority of its members was lost for good
    #[command(
        after_help = "Example:\n  keelway cluster recover-quorum --name c1 --lost etcd-1,etcd-2 < c1.yaml | keelway reconcile > recovered.yaml\n\n\
                      The next reconcile stops the API servers, copies the data of the member with the newest data that responds, and makes it\n\
                      the only one. It then adds members up to spec.etcd.replicas. It does nothing while a majority works. Writes that\n\
                      only the lost members stored are lost. See docs/operations.md."
    )]
    RecoverQuorum(RecoverQuorumArguments),
    /// Rotate a key or an authority of a Cluster while it runs, or complete a rotation
    #[command(
        after_help = "Example:\n  keelway cluster rotate --name c1 --service-account-key < c1.yaml | keelway reconcile > rotated.yaml\n  \
                      keelway cluster rotate --name c1 --service-account-key --complete < rotated.yaml | keelway reconcile > c1.yaml\n\n\
                      The first command creates a new key and puts it into use. The previous key stays valid until the second one.\n\
                      Authorities are rotated in the same way: `--authority etcd`.\n\
                      If a key was stolen, `--now` does both in one command.\n\
                      See docs/rotation.md."
    )]
    Rotate(RotateArguments),
    /// Mark a Cluster for deletion; the next reconcile deletes it from its machines
    #[command(after_help = "Example:\n  keelway cluster delete --name c1 < c1.yaml | keelway reconcile > empty.yaml")]
    Delete(ClusterName),
    /// Write a kubeconfig for an administrator
    #[command(after_help = "Example:\n  keelway cluster kubeconfig --name c1 < c1.yaml > c1.kubeconfig")]
    Kubeconfig(KubeconfigArguments),
}

#[derive(Args)]
pub(crate) struct ClusterName {
    /// The cluster's name
    #[arg(long)]
    pub(crate) name: String,
    /// The cluster's namespace
    #[arg(short, long, default_value = "default")]
    pub(crate) namespace: String,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn flags_do_not_conflict() {
        CliArguments::command().debug_assert();
    }

    /// Splits a command line of the documentation into words, as a shell does. `None`: it is a command line of another program.
    fn words(part: &str) -> Option<Vec<String>> {
        let part =
            part.replace("--from ID", "--from 0123456789abcdef").replace("NAME", "name").replace("SHELL", "bash");
        let part = part.split(" > ").next()?.split(" < ").next()?.trim();
        let words: Vec<String> = part.split_whitespace().map(|word| word.trim_matches('\'').to_owned()).collect();
        (words.first()? == "keelway" && words.len() > 1).then_some(words)
    }

    /// Returns the lines of a document that people may type: in blocks of a shell, and between backticks.
    fn lines(text: &str) -> Vec<String> {
        let mut found = Vec::new();
        let mut block: Option<bool> = None;
        for line in text.lines() {
            match (line.strip_prefix("```"), block) {
                (Some(kind), None) => block = Some(matches!(kind, "console" | "sh")),
                (Some(_), Some(_)) => block = None,
                (None, Some(true)) => found.push(line.trim_start_matches("$ ").to_owned()),
                (None, Some(false)) => {}
                (None, None) => found.extend(line.split('`').skip(1).step_by(2).map(str::to_owned)),
            }
        }
        found
    }

    #[test]
    fn the_documentation_has_commands_that_exist() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let docs = std::fs::read_dir(root.join("docs")).unwrap().map(|entry| entry.unwrap().path());
        let docs = docs.filter(|path| path.extension().is_some_and(|found| found == "md"));
        let mut checked = 0;
        for path in docs.chain([root.join("README.md")]) {
            for line in lines(&std::fs::read_to_string(&path).unwrap()) {
                // A placeholder or an abbreviation is no command line.
                let whole = line.chars().next().is_some_and(|first| first == 'k') && !line.contains("..");
                for words in line.split(" | ").filter_map(words).filter(|_| whole) {
                    let parsed = CliArguments::command().try_get_matches_from(&words);
                    let fine = parsed.as_ref().map_or_else(|error| !error.use_stderr(), |_| true);
                    let short =
                        words.iter().skip(1).all(|word| word.chars().all(|c| c.is_ascii_lowercase() || c == '-'));
                    assert!(fine || short, "{}: {line}\n{}", path.display(), parsed.unwrap_err());
                    checked += 1;
                }
            }
        }
        assert!(checked > 40, "{checked}");
    }

    #[test]
    fn every_command_shows_an_example() {
        fn check(command: &clap::Command) {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let example =
                help.starts_with("Example:\n") && help.contains("keelway ") || command.get_name() == "run-machine";
            assert!(example, "{} has no example", command.get_name());
            command.get_subcommands().for_each(check);
        }
        check(&CliArguments::command());
    }
}
