//! The command line.

mod managed;
mod pivot;
mod worker;
mod workers;

pub(crate) use managed::{
    ApplyArguments, DeleteArguments, GetDocumentsArguments, KindName, NamedArguments, ServerArgument, WatchArguments,
    WatchOutput,
};
pub(crate) use pivot::{PivotArguments, PivotStoreArgument, RecoverArguments};
pub(crate) use worker::{
    JoinArguments, LeaveArguments, NodeOutput, NodeRunArguments, NodeService, NodeStatusArguments, WorkerCommand,
};
pub(crate) use workers::{
    ClusterArgument, CreateTokenArguments, EvictArguments, JoinTokenCommand, ListTokensArguments, RevokeTokenArguments,
};

use std::{ffi::OsString, io::IsTerminal, path::PathBuf, time::Duration};

use clap::{ArgAction, ArgGroup, Args, Parser, Subcommand, ValueEnum, builder::NonEmptyStringValueParser};
use keelway_api::{
    duration::Span,
    hypervisor::PortRange,
    name::{HypervisorName, InstallationId},
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
    /// Manage the tokens with which machines join a cluster as workers
    #[command(
        subcommand,
        after_help = "Example:\n  keelway join-token create --cluster c1 --ttl 24h < c1.yaml\n  keelway join-token list --cluster c1 < c1.yaml"
    )]
    JoinToken(JoinTokenCommand),
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
    /// Delete documents of a manager and everything that runs for them
    #[command(after_help = "Example:\n  keelway delete cluster c1\n  keelway delete cluster c1 --wait=false")]
    Delete(DeleteArguments),
    /// Watch documents of a manager and print each change
    #[command(after_help = "Example:\n  keelway watch\n  keelway watch clusters -o yaml")]
    Watch(WatchArguments),
    /// Move all documents from one store to another, without changes on machines
    ///
    /// A store is a directory (dir:PATH), a management cluster (kubernetes, or kubernetes:KUBECONFIG), or stdin and stdout (-). No manager
    /// may use either store meanwhile. If the command is interrupted, run it again to continue.
    #[command(
        after_help = "Example:\n  keelway pivot --to kubernetes < world.yaml\n  keelway pivot --from dir:/var/lib/keelway-manager --to kubernetes:management.kubeconfig\n  keelway pivot --from kubernetes > world.yaml"
    )]
    Pivot(PivotArguments),
    /// Update documents of an older backup from what machines hold, without changes on machines
    ///
    /// Reads the config of every machine. Sets terms and generations to those of the machines, and rebuilds the documents of components
    /// that are newer than the backup. Prints one line to stderr for each difference. Exits with 4 if something needs your attention.
    /// Recovers a directory or a management cluster in place. No manager may use it meanwhile.
    #[command(
        after_help = "Example:\n  keelway recover --dry-run < backup.yaml\n  keelway recover < backup.yaml > c1.yaml && keelway plan < c1.yaml\n  keelway recover --from dir:/var/lib/keelway-manager\n  keelway recover --from kubernetes:management.kubeconfig"
    )]
    Recover(RecoverArguments),
    /// Show the status of clusters, components and machines from the documents
    #[command(after_help = "Example:\n  keelway status < c1.yaml\n  keelway status -o wide < c1.yaml")]
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

#[derive(Subcommand)]
pub(crate) enum ReferenceCommand {
    /// Write a man page for each command into a directory
    #[command(after_help = "Example:\n  keelway reference man target/man")]
    Man {
        /// The directory; it is created if it is missing
        directory: PathBuf,
    },
    /// List every field of every document
    #[command(after_help = "Example:\n  keelway reference fields > docs/fields.md")]
    Fields,
    /// List every reason of conditions and events
    #[command(after_help = "Example:\n  keelway reference reasons > docs/reasons.md")]
    Reasons,
    /// List every port of every component
    #[command(after_help = "Example:\n  keelway reference ports > docs/ports.md")]
    Ports,
    /// List every argument that a cluster can set for its components
    #[command(after_help = "Example:\n  keelway reference arguments > docs/arguments.md")]
    Arguments,
    /// List every command, one per line
    #[command(after_help = "Example:\n  keelway reference commands")]
    Commands,
}

#[derive(Args)]
pub(crate) struct LogsArguments {
    /// The component, as `component get` prints its name
    #[arg(value_name = "COMPONENT")]
    pub(crate) component: String,
    /// Follow the log, also across restarts of the container, until the component is deleted
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// Read documents from FILE instead of stdin; can be repeated (-f means --follow here)
    #[arg(id = "files", long = "filename", value_name = "FILE")]
    pub(crate) _files: Vec<PathBuf>,
    /// Print only the last LINES lines
    #[arg(long, value_name = "LINES")]
    pub(crate) tail: Option<u64>,
    /// Print only lines newer than DURATION
    #[arg(long, value_name = "DURATION")]
    pub(crate) since: Option<Span>,
    /// Print the log of the container's previous run
    #[arg(short, long)]
    pub(crate) previous: bool,
    /// Print a timestamp before each line
    #[arg(long)]
    pub(crate) timestamps: bool,
    /// The container [default: the main container of the component]
    #[arg(short, long, value_name = "NAME")]
    pub(crate) container: Option<String>,
}

#[derive(Args)]
pub(crate) struct ExecArguments {
    /// The component, as `component get` prints its name
    #[arg(value_name = "COMPONENT")]
    pub(crate) component: String,
    /// Pass stdin to the command; requires the documents with -f
    #[arg(short = 'i', long)]
    pub(crate) stdin: bool,
    /// Allocate a terminal for the command
    #[arg(short, long)]
    pub(crate) tty: bool,
    /// The container [default: the main container of the component]
    #[arg(short, long, value_name = "NAME")]
    pub(crate) container: Option<String>,
    /// The command, after `--`
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<String>,
}

#[derive(Args)]
pub(crate) struct EventsArguments {
    /// A cluster or a hypervisor [default: all]
    #[arg(value_name = "CLUSTER|HYPERVISOR")]
    pub(crate) of: Option<String>,
    /// The output format
    #[arg(short, long, value_enum, default_value = "table")]
    pub(crate) output: OutputFormat,
    /// Watch for new events
    #[arg(short, long)]
    pub(crate) watch: bool,
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

#[derive(Args)]
pub(crate) struct DescribeArguments {
    /// Names [default: all]
    #[arg(value_name = "NAME")]
    pub(crate) names: Vec<String>,
    /// Show the events of each machine
    #[arg(long, value_name = "BOOL", default_value_t = true, action = ArgAction::Set)]
    pub(crate) show_events: bool,
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

#[derive(Args)]
pub(crate) struct DiffArguments {
    /// The documents before; `-` reads stdin
    #[arg(value_name = "BEFORE")]
    pub(crate) before: PathBuf,
    /// The documents after; `-` reads stdin
    #[arg(value_name = "AFTER")]
    pub(crate) after: PathBuf,
    /// Exit with 4 if they differ
    #[arg(long)]
    pub(crate) exit_code: bool,
}

#[derive(Args)]
pub(crate) struct VersionArguments {
    /// The output format
    #[arg(short, long, value_enum, default_value = "text")]
    pub(crate) output: VersionOutput,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum VersionOutput {
    /// Lines for people
    Text,
    /// JSON
    Json,
    /// YAML
    Yaml,
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
    Drain(DrainArguments),
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
pub(crate) struct ProxyArguments {
    /// The hypervisor
    #[arg(value_name = "NAME")]
    pub(crate) name: HypervisorName,
    /// The socket to create; only your user can connect to it
    #[arg(long, value_name = "ENDPOINT", value_parser = socket)]
    pub(crate) listen: PathBuf,
}

/// `unix:///PATH`, or the path alone.
fn socket(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text.strip_prefix("unix://").unwrap_or(text));
    if path.is_absolute() {
        Ok(path)
    } else {
        Err("must be unix:// followed by the absolute path of a socket".to_owned())
    }
}

#[derive(Args)]
#[command(group(ArgGroup::new("way").required(true)))]
pub(crate) struct HypervisorInjectArguments {
    /// The hypervisor's name
    #[arg(long)]
    pub(crate) name: HypervisorName,
    /// The role: public hypervisors run ingresses and gateways, private ones etcd and Kubernetes components
    #[arg(long, value_enum)]
    pub(crate) role: RoleArgument,
    /// The socket of the container runtime, on this host
    #[arg(long, value_name = "PATH", group = "way")]
    pub(crate) socket: Option<PathBuf>,
    /// The socket of keelway-hypervisor-agent, on this host
    #[arg(long, value_name = "PATH", group = "way")]
    pub(crate) agent_socket: Option<PathBuf>,
    /// The network address of keelway-hypervisor-agent
    #[arg(long, value_name = "HOST:PORT", group = "way")]
    pub(crate) agent_address: Option<String>,
    /// The address of a proxy with mutual TLS in front of the container runtime's socket; needs no agent
    #[arg(long, value_name = "HOST:PORT", group = "way", requires = "cri_secret")]
    pub(crate) cri_address: Option<String>,
    /// The Secret in the documents with tls.crt, tls.key and ca.crt for connections to the proxy
    #[arg(long, value_name = "NAMESPACE/NAME", requires = "cri_address")]
    pub(crate) cri_secret: Option<String>,
    /// The name in the proxy's certificate [default: the host of --cri-address]
    #[arg(long, value_name = "NAME", requires = "cri_address")]
    pub(crate) cri_server_name: Option<String>,
    /// keelway-hypervisor-agent does not listen: it connects to the agent of --agent-via
    #[arg(long, group = "way", requires = "agent_via")]
    pub(crate) agent_dials_out: bool,
    /// The public hypervisor whose agent forwards connections to this agent
    #[arg(long, value_name = "NAME", conflicts_with_all = ["socket", "agent_socket"])]
    pub(crate) agent_via: Option<HypervisorName>,
    /// An address in the network between hypervisors; can be repeated
    #[arg(long = "private-address", value_name = "ADDRESS", required = true)]
    pub(crate) private_addresses: Vec<String>,
    #[command(flatten)]
    pub(crate) placement: PlacementArguments,
}

#[derive(Args)]
pub(crate) struct HypervisorEnrollArguments {
    /// The hypervisor's name
    #[arg(long)]
    pub(crate) name: HypervisorName,
    /// The address of keelway-hypervisor-agent; required for a new hypervisor
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) address: Option<String>,
    /// The role, required for a new hypervisor: public ones run ingresses and gateways, private ones etcd and Kubernetes components
    #[arg(long, value_enum)]
    pub(crate) role: Option<RoleArgument>,
    /// An address in the network between hypervisors; can be repeated [default: the host of --address]
    #[arg(long = "private-address", value_name = "ADDRESS")]
    pub(crate) private_addresses: Vec<String>,
    #[command(flatten)]
    pub(crate) placement: PlacementArguments,
    /// How long the token is valid
    #[arg(long, value_name = "DURATION", default_value = "1h")]
    pub(crate) ttl: Span,
}

/// What a machine offers, beside its role and its addresses between machines.
#[derive(Args)]
pub(crate) struct PlacementArguments {
    /// An address for users of clusters, for a public hypervisor; can be repeated
    #[arg(long = "public-address", value_name = "ADDRESS")]
    pub(crate) public_addresses: Vec<String>,
    /// The zone, stored as the label topology.kubernetes.io/zone
    #[arg(long, value_name = "ZONE")]
    pub(crate) zone: Option<String>,
    /// The range of ports for components [default: 20000-22767]
    #[arg(long, value_name = "FROM-TO", value_parser = port_range)]
    pub(crate) port_range: Option<PortRange>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum RoleArgument {
    /// Runs ingresses and gateways
    Public,
    /// Runs etcd and Kubernetes components
    Private,
}

fn port_range(text: &str) -> Result<PortRange, String> {
    let (from, to) = text.split_once('-').ok_or("must be FROM-TO, such as 20000-22767")?;
    let port = |text: &str| text.parse::<u16>().map_err(|_| format!("{text:?} is not a port from 0 to 65535"));
    Ok(PortRange { from: port(from)?, to: port(to)? })
}

#[derive(Args)]
pub(crate) struct HypervisorNames {
    /// Names of hypervisors
    #[arg(required = true, value_name = "NAME")]
    pub(crate) names: Vec<HypervisorName>,
}

#[derive(Args)]
pub(crate) struct DrainArguments {
    #[command(flatten)]
    pub(crate) hypervisors: HypervisorNames,
    /// Drain also hypervisors that run etcd members: the members stay, other components move
    #[arg(long)]
    pub(crate) leave_etcd: bool,
}

#[derive(Args)]
pub(crate) struct AdoptArguments {
    /// The installation that the hypervisors obey now
    #[arg(long, value_name = "ID")]
    pub(crate) from: InstallationId,
    /// A hypervisor to adopt; can be repeated [default: all that obey that installation]
    #[arg(long = "name", value_name = "NAME")]
    pub(crate) names: Vec<HypervisorName>,
}

#[derive(Subcommand)]
pub(crate) enum LocalCommand {
    /// Create local hypervisors and write their documents
    #[command(
        after_help = "Example:\n  keelway hypervisor local create --public 1 --private 1 > world.yaml\n  keelway hypervisor local create --agent=false > world.yaml"
    )]
    Create(LocalCreateArguments),
    /// Delete the local hypervisors of the documents, and write the remaining documents
    #[command(
        after_help = "Example:\n  keelway hypervisor local destroy < empty.yaml\n  keelway hypervisor local destroy --fleet local"
    )]
    Destroy(LocalDestroyArguments),
    /// Enroll the agents of local hypervisors on the network between them, and write documents with these addresses. Run the following
    /// commands in a namespace of that network
    #[command(
        after_help = "Example:\n  keelway hypervisor local create | keelway hypervisor local enroll > world.yaml\n  nsenter --net=/run/keelway-local/local/public-1/net keelway reconcile < world.yaml"
    )]
    Enroll(LocalEnrollArguments),
    /// Power off local hypervisors
    #[command(after_help = "Example:\n  keelway hypervisor local stop private-1")]
    Stop(LocalMachines),
    /// Power on local hypervisors that are off, or whose containerd or agent exited
    #[command(after_help = "Example:\n  keelway hypervisor local start private-1")]
    Start(LocalMachines),
    /// Power off local hypervisors, and power them on again
    #[command(after_help = "Example:\n  keelway hypervisor local reboot private-1")]
    Reboot(LocalMachines),
    /// Run a machine's containerd or agent
    #[command(hide = true)]
    RunMachine {
        /// The description of the program to run
        launch: PathBuf,
    },
}

#[derive(Args)]
pub(crate) struct LocalEnrollArguments {
    /// The network in which keelway runs, which decides how it connects to the agents of private machines
    #[arg(long, value_enum, default_value = "private")]
    pub(crate) from: EnrollFrom,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum EnrollFrom {
    /// The private network: keelway connects directly
    Private,
    /// The public network: keelway connects through the agent of a public machine
    Public,
    /// The public network: private agents do not listen, but connect to the agent of a public machine
    DialOut,
}

#[derive(Args)]
pub(crate) struct LocalCreateArguments {
    /// The number of public hypervisors
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub(crate) public: u8,
    /// The number of private hypervisors
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub(crate) private: u8,
    /// Zones, separated by commas; hypervisors are assigned to them in turn
    #[arg(long, value_delimiter = ',', value_name = "ZONE,..")]
    pub(crate) zones: Vec<String>,
    /// The name of this set of machines
    #[arg(long, default_value = "local", value_name = "NAME")]
    pub(crate) fleet: String,
    /// Run keelway-hypervisor-agent on each new hypervisor; without it, only passes restart components
    #[arg(long, default_value_t = true, action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true", require_equals = true, value_name = "BOOL")]
    pub(crate) agent: bool,
}

#[derive(Args)]
pub(crate) struct LocalMachines {
    /// The name of the set of machines
    #[arg(long, default_value = "local", value_name = "NAME")]
    pub(crate) fleet: String,
    /// Names of hypervisors, as in their documents
    #[arg(required = true, value_name = "MACHINE")]
    pub(crate) machines: Vec<String>,
}

#[derive(Args)]
pub(crate) struct LocalDestroyArguments {
    /// Delete this whole set of machines and all their data, without reading documents
    #[arg(long, value_name = "NAME", conflicts_with = "files")]
    pub(crate) fleet: Option<String>,
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
    #[command(after_help = "Example:\n  keelway node local destroy w1 w2")]
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
    #[arg(required = true, value_name = "NAME")]
    pub(crate) names: Vec<String>,
}

#[derive(Subcommand)]
pub(crate) enum ClusterCommand {
    /// Add a Cluster to the documents
    #[command(
        after_help = "Example:\n  keelway cluster inject --name c1 < world.yaml | keelway reconcile > c1.yaml\n  keelway cluster inject --name c1 --etcd-replicas 3 --control-plane-replicas 3 --ingress-replicas 2 < world.yaml"
    )]
    Inject(Box<InjectArguments>),
    /// Show clusters
    #[command(after_help = "Example:\n  keelway cluster get < c1.yaml\n  keelway cluster get -o name < c1.yaml")]
    Get(GetArguments),
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

#[derive(Args)]
pub(crate) struct InjectArguments {
    #[command(flatten)]
    pub(crate) cluster: ClusterName,
    /// The Kubernetes release [default: the newest]
    #[arg(long, value_name = "RELEASE")]
    pub(crate) version: Option<String>,
    /// The number of etcd members
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub(crate) etcd_replicas: u32,
    /// The number of API servers, of controller managers and of schedulers
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub(crate) control_plane_replicas: u32,
    /// The number of ingresses
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub(crate) ingress_replicas: u32,
    /// A DNS name that resolves to all ingresses
    #[arg(long, value_name = "NAME")]
    pub(crate) endpoint_host: Option<String>,
    /// An additional name or address in the API servers' certificates; can be repeated
    #[arg(long = "extra-san", value_name = "NAME")]
    pub(crate) extra_sans: Vec<String>,
    /// An address range for pods; one per IP family
    #[arg(long = "pod-cidr", value_name = "CIDR")]
    pub(crate) pod_cidrs: Vec<String>,
    /// An address range for Services; one per IP family
    #[arg(long = "service-cidr", value_name = "CIDR")]
    pub(crate) service_cidrs: Vec<String>,
    /// An address range for workers; one per IP family
    #[arg(long = "vpn-cidr", alias = "vpn-cidrs", value_name = "CIDR")]
    pub(crate) vpn_cidrs: Vec<String>,
    /// The DNS domain of the cluster [default: cluster.local]
    #[arg(long, value_name = "DOMAIN")]
    pub(crate) dns_domain: Option<String>,
    /// The ClusterClass of the cluster [default: the default class, if there are classes]
    #[arg(long, value_name = "NAME")]
    pub(crate) class: Option<String>,
    /// A registry that holds every image under its own name and tag
    #[arg(long, value_name = "REGISTRY")]
    pub(crate) image_registry: Option<String>,
    /// A Secret of the type kubernetes.io/dockerconfigjson with the registry's credentials; can be repeated
    #[arg(long = "image-pull-secret", value_name = "NAME")]
    pub(crate) image_pull_secrets: Vec<String>,
}

#[derive(Args)]
pub(crate) struct KubeconfigArguments {
    #[command(flatten)]
    pub(crate) cluster: ClusterName,
    /// The user's name, as it appears in audit logs
    #[arg(long, default_value = "admin")]
    pub(crate) user: String,
    /// How long the certificate is valid [default: spec.certificates.adminTTL]
    #[arg(long, value_name = "DURATION")]
    pub(crate) ttl: Option<Span>,
    /// Use the group system:masters, which RBAC cannot restrict
    #[arg(long)]
    pub(crate) break_glass: bool,
    /// The name of the cluster and the context in the kubeconfig [default: CLUSTER, or NAMESPACE/CLUSTER if the namespace is not `default`]
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) context_name: Option<String>,
}

#[derive(Args)]
pub(crate) struct ReconcileArguments {
    /// Read the documents from FILE and save them to it before every effect; write nothing to stdout
    #[arg(long, value_name = "FILE", conflicts_with = "files")]
    pub(crate) in_place: Option<PathBuf>,
    /// Run one pass only, even if the documents are not settled after it
    #[arg(long)]
    pub(crate) once: bool,
    /// How long to wait until the documents are settled
    #[arg(long, default_value = "5m", value_name = "DURATION")]
    pub(crate) timeout: Span,
}

impl ReconcileArguments {
    pub(crate) fn timeout(&self) -> Duration {
        self.timeout.into()
    }
}

#[derive(Args)]
pub(crate) struct PlanArguments {
    /// Plan from this Observation, as of its time, without connecting to machines
    #[arg(long, value_name = "OBSERVATION")]
    pub(crate) offline: Option<PathBuf>,
    /// Exit with 4 if there is something to do
    #[arg(long)]
    pub(crate) exit_code: bool,
}

#[derive(Args)]
pub(crate) struct StatusArguments {
    /// The output format
    #[arg(short, long, value_enum, default_value = "table")]
    pub(crate) output: StatusOutput,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum StatusOutput {
    /// Tables
    Table,
    /// Tables with more columns
    Wide,
    /// Clusters, components and hypervisors, as a v1 List in JSON
    Json,
    /// The same in YAML
    Yaml,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn flags_do_not_conflict() {
        CliArguments::command().debug_assert();
    }

    /// Words of a command line of the documentation, as a shell takes them apart; `None` where it is none of this program's.
    fn words(part: &str) -> Option<Vec<String>> {
        let part =
            part.replace("--from ID", "--from 0123456789abcdef").replace("NAME", "name").replace("SHELL", "bash");
        let part = part.split(" > ").next()?.split(" < ").next()?.trim();
        let words: Vec<String> = part.split_whitespace().map(|word| word.trim_matches('\'').to_owned()).collect();
        (words.first()? == "keelway" && words.len() > 1).then_some(words)
    }

    /// Lines of a document that people may type: in blocks of a shell, and between backticks.
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
                // What stands for something else, or is cut short, is no command line.
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
