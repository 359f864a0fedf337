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

/// Makes and runs Kubernetes control planes on machines you bring.
///
/// Documents come in as YAML on stdin (or with -f), and go out as YAML on stdout. Messages go to stderr.
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
  0  done; for reconcile: settled      4  plan, diff --exit-code: something to do;
                                          recover: something needs attention
  1  failed                            130, 143  ended by SIGINT, SIGTERM
  2  bad input or usage                exec: as the command ended
  3  not settled in time

Environment:
  NO_COLOR         no colours, whatever the terminal
  COLUMNS          how wide the terminal is; tables that are written elsewhere are never cut
  KEELWAY_SERVER   the socket of the manager that is asked
  KEELWAY_CACHE    images and programs for local hypervisors [default: ~/.cache/keelway]
  XDG_STATE_HOME   documents of runs that go on or were killed, and what was written last [default: ~/.local/state]";

#[derive(Args)]
pub(crate) struct GlobalArguments {
    /// Read documents from this file instead of stdin; may be given many times
    #[arg(short = 'f', long = "filename", value_name = "FILE", global = true)]
    pub(crate) files: Vec<PathBuf>,
    /// Say more on stderr; twice: say everything
    #[arg(short, long, action = ArgAction::Count, global = true)]
    pub(crate) verbose: u8,
    /// Say nothing on stderr but errors
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub(crate) quiet: bool,
    /// When to colour messages on stderr; auto: on a terminal, unless NO_COLOR is set
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
    /// Machines that hold control planes
    #[command(
        subcommand,
        after_help = "Example:\n  keelway hypervisor local create --public 1 --private 1 > world.yaml\n  keelway hypervisor get < world.yaml"
    )]
    Hypervisor(HypervisorCommand),
    /// Kubernetes clusters
    #[command(
        subcommand,
        after_help = "Example:\n  keelway cluster inject --name c1 < world.yaml | keelway reconcile > c1.yaml\n  keelway cluster get < c1.yaml"
    )]
    Cluster(ClusterCommand),
    /// Tokens with which machines join a cluster as workers
    #[command(
        subcommand,
        after_help = "Example:\n  keelway join-token create --cluster c1 --ttl 24h < c1.yaml\n  keelway join-token list --cluster c1 < c1.yaml"
    )]
    JoinToken(JoinTokenCommand),
    /// Workers of clusters
    #[command(
        subcommand,
        after_help = "Example:\n  keelway node join --token-file token\n  keelway node status\n  keelway node local create --name w1 --behind nat-a"
    )]
    Node(NodeCommand),
    /// Bring machines to what the documents say, and write the documents as they are then
    #[command(
        after_help = "Example:\n  keelway cluster inject --name c1 < world.yaml | keelway reconcile > c1.yaml\n  keelway reconcile --in-place c1.yaml"
    )]
    Reconcile(ReconcileArguments),
    /// Show what a pass would do and why; nothing is changed
    #[command(
        after_help = "Example:\n  keelway plan < c1.yaml\n  keelway observe < c1.yaml > seen.yaml\n  keelway plan --offline seen.yaml < c1.yaml"
    )]
    Plan(PlanArguments),
    /// Write what a pass sees of machines, components and clusters; no key is in it
    #[command(
        after_help = "Example:\n  keelway observe < c1.yaml > seen.yaml\n  keelway plan --offline seen.yaml < c1.yaml\n  keelway explain observation"
    )]
    Observe,
    /// Hand documents to a manager: all are taken, or none
    #[command(after_help = "Example:\n  keelway apply -f c1.yaml")]
    Apply(ApplyArguments),
    /// Show documents of a manager
    #[command(
        after_help = "Example:\n  keelway get\n  keelway get clusters -o wide\n  keelway get -o yaml | keelway logs c1/etcd-0"
    )]
    Get(GetDocumentsArguments),
    /// Edit documents of a manager with $EDITOR
    #[command(after_help = "Example:\n  keelway edit cluster c1")]
    Edit(NamedArguments),
    /// Have a manager take documents away, with all that runs of them
    #[command(after_help = "Example:\n  keelway delete cluster c1\n  keelway delete cluster c1 --wait=false")]
    Delete(DeleteArguments),
    /// Show what changes among documents of a manager, as it does
    #[command(after_help = "Example:\n  keelway watch\n  keelway watch clusters -o yaml")]
    Watch(WatchArguments),
    /// Move all documents from one store to another; nothing changes on any machine
    ///
    /// A store is a directory (dir:PATH), a management cluster (kubernetes, or kubernetes:KUBECONFIG), or stdin and stdout (-). No manager
    /// may work on either meanwhile. A move that is cut off goes on when it is begun again.
    #[command(
        after_help = "Example:\n  keelway pivot --to kubernetes < world.yaml\n  keelway pivot --from dir:/var/lib/keelway-manager --to kubernetes:management.kubeconfig\n  keelway pivot --from kubernetes > world.yaml"
    )]
    Pivot(PivotArguments),
    /// Bring documents of an older backup to what machines hold; nothing changes on any machine
    ///
    /// Asks every machine for its config. Terms and generations become those of the machines, and components that are newer than the
    /// backup get their documents back. Each difference is one line on stderr. Ends with 4 if something is left for a person to do.
    /// A directory or a management cluster is recovered in place, and no manager may work on it meanwhile.
    #[command(
        after_help = "Example:\n  keelway recover --dry-run < backup.yaml\n  keelway recover < backup.yaml > c1.yaml && keelway plan < c1.yaml\n  keelway recover --from dir:/var/lib/keelway-manager\n  keelway recover --from kubernetes:management.kubeconfig"
    )]
    Recover(RecoverArguments),
    /// Show clusters, components and machines as the documents tell of them
    #[command(after_help = "Example:\n  keelway status < c1.yaml\n  keelway status -o wide < c1.yaml")]
    Status(StatusArguments),
    /// Parts of clusters, as Keelway placed them
    #[command(subcommand, after_help = "Example:\n  keelway component get -o wide < c1.yaml")]
    Component(ComponentCommand),
    /// Say whether the documents can be reconciled, and every fault of them if not
    #[command(
        after_help = "Example:\n  keelway validate < world.yaml\n  keelway validate -f machines.yaml -f clusters.yaml"
    )]
    Validate,
    /// Show what differs between two worlds, a line for each document and field
    #[command(
        after_help = "Example:\n  keelway diff before.yaml after.yaml\n  keelway reconcile < c1.yaml | keelway diff c1.yaml -"
    )]
    Diff(DiffArguments),
    /// Print the log of a component, as its machine has it
    #[command(
        after_help = "Example:\n  keelway logs c1/kube-apiserver-0 < c1.yaml\n  keelway logs c1/etcd-0 --tail 20 --follow --filename c1.yaml\n  keelway logs c1/etcd-0 --previous < c1.yaml"
    )]
    Logs(LogsArguments),
    /// Run a command in a component's container, and end as it ends
    #[command(
        after_help = "Example:\n  keelway exec c1/etcd-0 -- etcdctl version < c1.yaml\n  keelway exec c1/etcd-0 -it -f c1.yaml -- sh"
    )]
    Exec(ExecArguments),
    /// Show what happened on machines, the newest last: starts, ends, restarts, failed checks
    #[command(
        after_help = "Example:\n  keelway events < c1.yaml\n  keelway events c1 --watch < c1.yaml\n  keelway events hv-1 -o json < c1.yaml"
    )]
    Events(EventsArguments),
    /// Tell what a field of a document means
    #[command(after_help = "Example:\n  keelway explain cluster\n  keelway explain cluster.spec.etcd")]
    Explain {
        /// A kind, and a field of it after a dot
        #[arg(value_name = "KIND[.FIELD..]")]
        field: String,
    },
    /// Write a script that completes this command line in a shell
    #[command(
        after_help = "Example:\n  source <(keelway completion bash)\n  keelway completion zsh > \"${fpath[1]}/_keelway\""
    )]
    Completion {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Tell this program's version, and the Kubernetes releases that it runs
    #[command(after_help = "Example:\n  keelway version\n  keelway version -o json")]
    Version(VersionArguments),
    /// Write the parts of the documentation that follow from this program
    #[command(hide = true, subcommand, after_help = "Example:\n  keelway reference man target/man")]
    Reference(ReferenceCommand),
}

#[derive(Subcommand)]
pub(crate) enum ReferenceCommand {
    /// A man page for each command, into a directory
    #[command(after_help = "Example:\n  keelway reference man target/man")]
    Man {
        /// The directory; it is made where it is missing
        directory: PathBuf,
    },
    /// Every field of every document
    #[command(after_help = "Example:\n  keelway reference fields > docs/fields.md")]
    Fields,
    /// Every reason of a condition or an event
    #[command(after_help = "Example:\n  keelway reference reasons > docs/reasons.md")]
    Reasons,
    /// Every port of every component
    #[command(after_help = "Example:\n  keelway reference ports > docs/ports.md")]
    Ports,
    /// Every argument that a cluster may give to its components
    #[command(after_help = "Example:\n  keelway reference arguments > docs/arguments.md")]
    Arguments,
    /// Every command, a line each
    #[command(after_help = "Example:\n  keelway reference commands")]
    Commands,
}

#[derive(Args)]
pub(crate) struct LogsArguments {
    /// The component, as `component get` names it
    #[arg(value_name = "COMPONENT")]
    pub(crate) component: String,
    /// Go on with what is written from now on, also by the container's next runs, until the component is gone
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// Read documents from this file instead of stdin; may be given many times (-f is --follow here)
    #[arg(id = "files", long = "filename", value_name = "FILE")]
    pub(crate) _files: Vec<PathBuf>,
    /// The last so many lines only
    #[arg(long, value_name = "LINES")]
    pub(crate) tail: Option<u64>,
    /// What was written within this time only
    #[arg(long, value_name = "DURATION")]
    pub(crate) since: Option<Span>,
    /// The log of the run before the present one
    #[arg(short, long)]
    pub(crate) previous: bool,
    /// Begin each line with the time at which it was written
    #[arg(long)]
    pub(crate) timestamps: bool,
    /// The container [default: the one that the component is named after]
    #[arg(short, long, value_name = "NAME")]
    pub(crate) container: Option<String>,
}

#[derive(Args)]
pub(crate) struct ExecArguments {
    /// The component, as `component get` names it
    #[arg(value_name = "COMPONENT")]
    pub(crate) component: String,
    /// Hand stdin to the command; name the documents with -f then
    #[arg(short = 'i', long)]
    pub(crate) stdin: bool,
    /// Give the command a terminal
    #[arg(short, long)]
    pub(crate) tty: bool,
    /// The container [default: the one that the component is named after]
    #[arg(short, long, value_name = "NAME")]
    pub(crate) container: Option<String>,
    /// The command, after `--`
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<String>,
}

#[derive(Args)]
pub(crate) struct EventsArguments {
    /// A cluster or a hypervisor; all where there is none
    #[arg(value_name = "CLUSTER|HYPERVISOR")]
    pub(crate) of: Option<String>,
    /// How to show them
    #[arg(short, long, value_enum, default_value = "table")]
    pub(crate) output: OutputFormat,
    /// Go on with what happens from now on
    #[arg(short, long)]
    pub(crate) watch: bool,
}

#[derive(Args)]
pub(crate) struct GetArguments {
    /// Names; all where there are none
    #[arg(value_name = "NAME")]
    pub(crate) names: Vec<String>,
    /// How to show them
    #[arg(short, long, value_enum, default_value = "table")]
    pub(crate) output: OutputFormat,
}

#[derive(Args)]
pub(crate) struct DescribeArguments {
    /// Names; all where there are none
    #[arg(value_name = "NAME")]
    pub(crate) names: Vec<String>,
    /// Ask each machine what happened on it
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
    /// Kind and name, a line each
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
    /// The world before; `-` is stdin
    #[arg(value_name = "BEFORE")]
    pub(crate) before: PathBuf,
    /// The world after; `-` is stdin
    #[arg(value_name = "AFTER")]
    pub(crate) after: PathBuf,
    /// End with 4 where they differ
    #[arg(long)]
    pub(crate) exit_code: bool,
}

#[derive(Args)]
pub(crate) struct VersionArguments {
    /// How to show it
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
    /// Hypervisors on this machine, each in network and mount namespaces of its own, to try Keelway
    #[command(
        subcommand,
        after_help = "Example:\n  keelway hypervisor local create --public 1 --private 1 > world.yaml\n  keelway hypervisor local destroy < empty.yaml"
    )]
    Local(LocalCommand),
    /// Add a Hypervisor of yours to the documents
    #[command(
        after_help = "Example:\n  keelway hypervisor inject --name hv-1 --role private --private-address 10.0.0.11 --socket /run/containerd/containerd.sock < world.yaml\n  keelway hypervisor inject --name hv-2 --role public --private-address 10.0.0.12 --public-address 203.0.113.12 --agent-socket /run/keelway/agent.sock < world.yaml"
    )]
    Inject(Box<HypervisorInjectArguments>),
    /// Add a Hypervisor of yours that is reached over a network, or take one that is not enrolled yet, and tell what to run there:
    /// keelway-hypervisor-agent with a token that is good once. The next reconcile gives it a certificate
    #[command(
        after_help = "Example:\n  keelway hypervisor enroll --name hv-1 --role private --zone eu-1 --address 10.0.0.5:7443 < world.yaml > enrolled.yaml\n  keelway hypervisor enroll --name hv-1 < enrolled.yaml > again.yaml"
    )]
    Enroll(Box<HypervisorEnrollArguments>),
    /// Have the certificates of hypervisors' agents hold no more: nobody answers for those machines from then on. What runs there
    /// stays in the documents, and is placed nowhere else by this
    #[command(after_help = "Example:\n  keelway hypervisor revoke hv-1 < world.yaml | keelway reconcile > next.yaml")]
    Revoke(HypervisorNames),
    /// Show hypervisors: what they are, and what of them components request and what is left
    #[command(
        after_help = "Example:\n  keelway hypervisor get < world.yaml\n  keelway hypervisor get hv-1 -o yaml < world.yaml"
    )]
    Get(GetArguments),
    /// Show all that is known of hypervisors, what happened on them last included
    #[command(
        after_help = "Example:\n  keelway hypervisor describe hv-1 < c1.yaml\n  keelway hypervisor describe --show-events=false < c1.yaml"
    )]
    Describe(DescribeArguments),
    /// Place no more components on a hypervisor; those that are there stay
    #[command(after_help = "Example:\n  keelway hypervisor cordon hv-2 < world.yaml | keelway reconcile > next.yaml")]
    Cordon(HypervisorNames),
    /// Place components on a hypervisor again, also after a drain
    #[command(after_help = "Example:\n  keelway hypervisor uncordon hv-2 < world.yaml | keelway reconcile > next.yaml")]
    Uncordon(HypervisorNames),
    /// Move the components of a hypervisor to others with the next reconcile, each once its replacement is ready
    #[command(after_help = "Example:\n  keelway hypervisor drain hv-2 < world.yaml | keelway reconcile > next.yaml")]
    Drain(DrainArguments),
    /// Take hypervisors over from another installation; what runs on them goes on
    #[command(
        after_help = "Example:\n  keelway hypervisor adopt --from 0123456789abcdef < world.yaml > adopted.yaml\n  keelway hypervisor adopt --from 0123456789abcdef --name hv-2 < world.yaml > adopted.yaml"
    )]
    Adopt(AdoptArguments),
    /// Answer on a socket of this machine as a hypervisor's container runtime does, for crictl and the like, until this ends
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
    /// The socket to make, which only you may use
    #[arg(long, value_name = "ENDPOINT", value_parser = socket)]
    pub(crate) listen: PathBuf,
}

/// `unix:///PATH`, or the path alone.
fn socket(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text.strip_prefix("unix://").unwrap_or(text));
    if path.is_absolute() { Ok(path) } else { Err("write unix:// and the absolute path of a socket".to_owned()) }
}

#[derive(Args)]
#[command(group(ArgGroup::new("way").required(true)))]
pub(crate) struct HypervisorInjectArguments {
    /// The hypervisor's name
    #[arg(long)]
    pub(crate) name: HypervisorName,
    /// What it holds: public ones ingresses, private ones etcd and Kubernetes' components
    #[arg(long, value_enum)]
    pub(crate) role: RoleArgument,
    /// The socket of its container runtime, on this machine
    #[arg(long, value_name = "PATH", group = "way")]
    pub(crate) socket: Option<PathBuf>,
    /// The socket of its keelway-hypervisor-agent, on this machine
    #[arg(long, value_name = "PATH", group = "way")]
    pub(crate) agent_socket: Option<PathBuf>,
    /// Where its keelway-hypervisor-agent listens on a network
    #[arg(long, value_name = "HOST:PORT", group = "way")]
    pub(crate) agent_address: Option<String>,
    /// Where a proxy with mutual TLS listens before the socket of its container runtime: no agent is needed
    #[arg(long, value_name = "HOST:PORT", group = "way", requires = "cri_secret")]
    pub(crate) cri_address: Option<String>,
    /// The Secret with tls.crt, tls.key and ca.crt that the proxy is spoken with by; it stands in the documents
    #[arg(long, value_name = "NAMESPACE/NAME", requires = "cri_address")]
    pub(crate) cri_secret: Option<String>,
    /// The name that the proxy's certificate is for [default: the host of --cri-address]
    #[arg(long, value_name = "NAME", requires = "cri_address")]
    pub(crate) cri_server_name: Option<String>,
    /// Its keelway-hypervisor-agent listens nowhere: it waits at that of --agent-via to be called
    #[arg(long, group = "way", requires = "agent_via")]
    pub(crate) agent_dials_out: bool,
    /// The public hypervisor through whose agent its own is reached
    #[arg(long, value_name = "NAME", conflicts_with_all = ["socket", "agent_socket"])]
    pub(crate) agent_via: Option<HypervisorName>,
    /// An address in the network of hypervisors; may be given many times
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
    /// Where its keelway-hypervisor-agent is reached; of a new one
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) address: Option<String>,
    /// What it holds, of a new one: public ones ingresses, private ones etcd and Kubernetes' components
    #[arg(long, value_enum)]
    pub(crate) role: Option<RoleArgument>,
    /// An address in the network of hypervisors; may be given many times [default: that of --address]
    #[arg(long = "private-address", value_name = "ADDRESS")]
    pub(crate) private_addresses: Vec<String>,
    #[command(flatten)]
    pub(crate) placement: PlacementArguments,
    /// How long the token is good
    #[arg(long, value_name = "DURATION", default_value = "1h")]
    pub(crate) ttl: Span,
}

/// What a machine offers, beside its role and its addresses between machines.
#[derive(Args)]
pub(crate) struct PlacementArguments {
    /// An address that users of clusters reach, of a public one; may be given many times
    #[arg(long = "public-address", value_name = "ADDRESS")]
    pub(crate) public_addresses: Vec<String>,
    /// Its zone, as the label topology.kubernetes.io/zone
    #[arg(long, value_name = "ZONE")]
    pub(crate) zone: Option<String>,
    /// The ports that components may listen on [default: 20000-22767]
    #[arg(long, value_name = "FROM-TO", value_parser = port_range)]
    pub(crate) port_range: Option<PortRange>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum RoleArgument {
    /// Holds ingresses
    Public,
    /// Holds etcd and Kubernetes' components
    Private,
}

fn port_range(text: &str) -> Result<PortRange, String> {
    let (from, to) = text.split_once('-').ok_or("write it as 20000-22767")?;
    let port = |text: &str| text.parse::<u16>().map_err(|_| format!("{text:?} is no port from 0 to 65535"));
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
    /// Drain also where members of stores are: they stay, all else moves
    #[arg(long)]
    pub(crate) leave_etcd: bool,
}

#[derive(Args)]
pub(crate) struct AdoptArguments {
    /// The installation that they obey now
    #[arg(long, value_name = "ID")]
    pub(crate) from: InstallationId,
    /// A hypervisor to take over; may be given many times [default: all that obey that installation]
    #[arg(long = "name", value_name = "NAME")]
    pub(crate) names: Vec<HypervisorName>,
}

#[derive(Subcommand)]
pub(crate) enum LocalCommand {
    /// Make local hypervisors and write their documents
    #[command(
        after_help = "Example:\n  keelway hypervisor local create --public 1 --private 1 > world.yaml\n  keelway hypervisor local create --agent=false > world.yaml"
    )]
    Create(LocalCreateArguments),
    /// Remove the local hypervisors of the documents, and write the documents that are left
    #[command(
        after_help = "Example:\n  keelway hypervisor local destroy < empty.yaml\n  keelway hypervisor local destroy --fleet local"
    )]
    Destroy(LocalDestroyArguments),
    /// Have the agents of local hypervisors answer on the network between them, with certificates, and write documents that
    /// reach them there only: from a place that has a way into that network
    #[command(
        after_help = "Example:\n  keelway hypervisor local create | keelway hypervisor local enroll > world.yaml\n  nsenter --net=/run/keelway-local/local/public-1/net keelway reconcile < world.yaml"
    )]
    Enroll(LocalEnrollArguments),
    /// Take the power from local hypervisors
    #[command(after_help = "Example:\n  keelway hypervisor local stop private-1")]
    Stop(LocalMachines),
    /// Switch local hypervisors on that were stopped, or whose containerd or agent died
    #[command(after_help = "Example:\n  keelway hypervisor local start private-1")]
    Start(LocalMachines),
    /// Take the power from local hypervisors, and switch them on again
    #[command(after_help = "Example:\n  keelway hypervisor local reboot private-1")]
    Reboot(LocalMachines),
    /// Become a machine's containerd or agent
    #[command(hide = true)]
    RunMachine {
        /// What to become
        launch: PathBuf,
    },
}

#[derive(Args)]
pub(crate) struct LocalEnrollArguments {
    /// Where keelway is to run, and so how it reaches the agents of private machines
    #[arg(long, value_enum, default_value = "private")]
    pub(crate) from: EnrollFrom,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum EnrollFrom {
    /// In the private network: directly
    Private,
    /// In the public network: through that of a public machine
    Public,
    /// In the public network: through that of a public machine, at which they wait to be called
    DialOut,
}

#[derive(Args)]
pub(crate) struct LocalCreateArguments {
    /// How many public ones
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub(crate) public: u8,
    /// How many private ones
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub(crate) private: u8,
    /// Zones that machines are dealt out to in turn, separated by commas
    #[arg(long, value_delimiter = ',', value_name = "ZONE,..")]
    pub(crate) zones: Vec<String>,
    /// What to call this set of machines; sets live side by side
    #[arg(long, default_value = "local", value_name = "NAME")]
    pub(crate) fleet: String,
    /// Run keelway-hypervisor-agent on each new one; without it, passes alone keep what runs
    #[arg(long, default_value_t = true, action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true", require_equals = true, value_name = "BOOL")]
    pub(crate) agent: bool,
}

#[derive(Args)]
pub(crate) struct LocalMachines {
    /// The set of machines
    #[arg(long, default_value = "local", value_name = "NAME")]
    pub(crate) fleet: String,
    /// Their names, as in their documents
    #[arg(required = true, value_name = "MACHINE")]
    pub(crate) machines: Vec<String>,
}

#[derive(Args)]
pub(crate) struct LocalDestroyArguments {
    /// Remove this whole set of machines with all that is on them, whatever the documents say; none are read
    #[arg(long, value_name = "NAME", conflicts_with = "files")]
    pub(crate) fleet: Option<String>,
}

#[derive(Subcommand)]
pub(crate) enum NodeCommand {
    #[command(flatten)]
    Worker(WorkerCommand),
    /// Machines for workers on this machine, beside local hypervisors or behind NATs, to try Keelway
    #[command(
        subcommand,
        after_help = "Example:\n  keelway node local create --name w1 --behind nat-a,nat-b\n  keelway node local exec w1 -- ip address\n  keelway node local destroy w1"
    )]
    Local(NodeLocalCommand),
    /// Put workers out of a cluster: their tunnels end, and nothing of theirs lets them in again
    #[command(
        after_help = "Example:\n  keelway node evict w1 --cluster c1 < c1.yaml\n  keelway node evict w1 w2 --cluster c1 -f c1.yaml"
    )]
    Evict(EvictArguments),
}

#[derive(Subcommand)]
pub(crate) enum NodeLocalCommand {
    /// Make a machine with containerd and nothing else, in the public network of local hypervisors or behind NATs
    #[command(
        after_help = "Example:\n  keelway node local create --name w1\n  keelway node local create --name w2 --behind nat-a,nat-b"
    )]
    Create(NodeLocalCreateArguments),
    /// Show them: the address of each, the one that others see, and its NATs
    #[command(after_help = "Example:\n  keelway node local list\n  keelway node local list -o json")]
    List(NodeLocalListArguments),
    /// Run a command on one, and end as it ends
    #[command(after_help = "Example:\n  keelway node local exec w1 -- keelway node status")]
    Exec(NodeLocalExecArguments),
    /// Take the power from machines
    #[command(after_help = "Example:\n  keelway node local stop w1")]
    Stop(NodeLocalMachines),
    /// Switch machines on: containerd runs on them then, and nothing else
    #[command(after_help = "Example:\n  keelway node local start w1\n  keelway node local exec w1 -- keelway node run")]
    Start(NodeLocalMachines),
    /// Take the power from machines, and switch them on again
    #[command(after_help = "Example:\n  keelway node local reboot w1")]
    Reboot(NodeLocalMachines),
    /// Take machines off their network; what runs on them goes on
    #[command(after_help = "Example:\n  keelway node local unplug w1")]
    Unplug(NodeLocalMachines),
    /// Put machines back on their network
    #[command(after_help = "Example:\n  keelway node local plug w1")]
    Plug(NodeLocalMachines),
    /// Make a NAT forget all connections through it
    #[command(after_help = "Example:\n  keelway node local forget nat-a")]
    Forget(NodeLocalNat),
    /// Give a NAT another public address, and write it
    #[command(after_help = "Example:\n  keelway node local renumber nat-a")]
    Renumber(NodeLocalNat),
    /// Remove machines with all that is on them, and NATs that nobody is behind any more
    #[command(after_help = "Example:\n  keelway node local destroy w1 w2")]
    Destroy(NodeLocalMachines),
}

#[derive(Args)]
pub(crate) struct NodeLocalFleet {
    /// The set of local hypervisors that they are beside
    #[arg(long, default_value = "local", value_name = "NAME")]
    pub(crate) fleet: String,
}

#[derive(Args)]
pub(crate) struct NodeLocalListArguments {
    #[command(flatten)]
    pub(crate) fleet: NodeLocalFleet,
    /// How to show them
    #[arg(short, long, value_enum, default_value = "table")]
    pub(crate) output: NodeOutput,
}

#[derive(Args)]
pub(crate) struct NodeLocalCreateArguments {
    #[command(flatten)]
    pub(crate) fleet: NodeLocalFleet,
    /// Its name, and its host name
    #[arg(long)]
    pub(crate) name: String,
    /// The NATs that it is behind, the one next to it first; those that are missing are made
    #[arg(long, value_delimiter = ',', value_name = "NAT,..")]
    pub(crate) behind: Vec<String>,
    /// An image that it gets from the cache beside those that workers need; may be given many times
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
    /// Their names
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
    /// Mark a Cluster for deletion: the next reconcile takes it off its machines
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
    /// The Kubernetes release [default: the newest one]
    #[arg(long, value_name = "RELEASE")]
    pub(crate) version: Option<String>,
    /// etcd members
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub(crate) etcd_replicas: u32,
    /// API servers, controller managers and schedulers, of each
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub(crate) control_plane_replicas: u32,
    /// Ingresses
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub(crate) ingress_replicas: u32,
    /// A DNS name of your own over all ingresses
    #[arg(long, value_name = "NAME")]
    pub(crate) endpoint_host: Option<String>,
    /// One more name or address in the API servers' certificates; may be given many times
    #[arg(long = "extra-san", value_name = "NAME")]
    pub(crate) extra_sans: Vec<String>,
    /// A range of pods; may be given once per family
    #[arg(long = "pod-cidr", value_name = "CIDR")]
    pub(crate) pod_cidrs: Vec<String>,
    /// A range of Services; may be given once per family
    #[arg(long = "service-cidr", value_name = "CIDR")]
    pub(crate) service_cidrs: Vec<String>,
    /// A range of workers; may be given once per family
    #[arg(long = "vpn-cidr", alias = "vpn-cidrs", value_name = "CIDR")]
    pub(crate) vpn_cidrs: Vec<String>,
    /// The DNS domain of the cluster [default: cluster.local]
    #[arg(long, value_name = "DOMAIN")]
    pub(crate) dns_domain: Option<String>,
    /// The ClusterClass of the cluster; where there are classes and none is named, the default one
    #[arg(long, value_name = "NAME")]
    pub(crate) class: Option<String>,
    /// A registry that holds every image under its own name and tag
    #[arg(long, value_name = "REGISTRY")]
    pub(crate) image_registry: Option<String>,
    /// A Secret of the type kubernetes.io/dockerconfigjson with the registry's credentials; may be given many times
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
    /// How long the certificate lives [default: spec.certificates.adminTTL]
    #[arg(long, value_name = "DURATION")]
    pub(crate) ttl: Option<Span>,
    /// Use the group system:masters, which no RBAC can take anything from
    #[arg(long)]
    pub(crate) break_glass: bool,
    /// How cluster and context are called in it [default: the cluster's name, as NAMESPACE/NAME where that is not `default`]
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) context_name: Option<String>,
}

#[derive(Args)]
pub(crate) struct ReconcileArguments {
    /// Read the documents from this file and keep it up to date, before every effect; stdout gets nothing
    #[arg(long, value_name = "FILE", conflicts_with = "files")]
    pub(crate) in_place: Option<PathBuf>,
    /// Make one pass only, whether the world is settled after it or not
    #[arg(long)]
    pub(crate) once: bool,
    /// How long to go on until the world is settled
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
    /// Ask no machine: plan from this Observation, as of when it was made
    #[arg(long, value_name = "OBSERVATION")]
    pub(crate) offline: Option<PathBuf>,
    /// End with 4 where there is something to do
    #[arg(long)]
    pub(crate) exit_code: bool,
}

#[derive(Args)]
pub(crate) struct StatusArguments {
    /// How to show it
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
    fn no_two_flags_meet() {
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
