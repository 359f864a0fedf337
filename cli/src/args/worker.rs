//! The command line of workers.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use keelway_api::duration::Span;
use keelway_node::STATE;

#[derive(Subcommand)]
pub(crate) enum WorkerCommand {
    /// Make this machine a worker of a cluster; it needs containerd and nothing else
    #[command(
        after_help = "Example:\n  keelway node join --token-file token\n  keelway node join - < token\n  keelway node join --node-name w1 --token-file token"
    )]
    Join(Box<JoinArguments>),
    /// Run the worker: tunnels, balancer and kubelet; kubelet and pods go on when it ends
    #[command(after_help = "Example:\n  keelway node run")]
    Run(RunArguments),
    /// Show how this worker is: tunnels, active gateway, ingresses, kubelet, certificates
    #[command(after_help = "Example:\n  keelway node status\n  keelway node status -o json")]
    Status(StatusOf),
    /// Drain this worker, take it out of its cluster, and make the machine what it was
    #[command(after_help = "Example:\n  keelway node leave\n  keelway node leave --drain-timeout 10m")]
    Leave(LeaveArguments),
    /// Make the machine what it was, without a word to the cluster
    #[command(after_help = "Example:\n  keelway node forget")]
    Forget(StateDirectory),
}

#[derive(Args)]
pub(crate) struct StateDirectory {
    /// Where the worker's files are
    #[arg(long, value_name = "DIRECTORY", default_value = STATE)]
    pub(crate) state_dir: PathBuf,
}

#[derive(Args)]
pub(crate) struct JoinArguments {
    /// The join token, as `join-token create` printed it; `-` reads it from stdin, where no process list shows it
    #[arg(value_name = "TOKEN", required_unless_present = "token_file", conflicts_with = "token_file")]
    pub(crate) token: Option<String>,
    /// Read the token from this file
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) state: StateDirectory,
    /// The Node's name [default: the host's name]
    #[arg(long, value_name = "NAME")]
    pub(crate) node_name: Option<String>,
    /// containerd's socket
    #[arg(long, value_name = "PATH", default_value = "/run/containerd/containerd.sock")]
    pub(crate) containerd_socket: PathBuf,
    /// The kubelet's own directory
    #[arg(long, value_name = "DIRECTORY", default_value = "/var/lib/kubelet")]
    pub(crate) kubelet_root_dir: PathBuf,
    /// Where logs of pods are
    #[arg(long, value_name = "DIRECTORY", default_value = "/var/log/pods")]
    pub(crate) pod_logs_dir: PathBuf,
    /// The cgroup below which pods are, made where it is missing [default: the root]
    #[arg(long, value_name = "NAME")]
    pub(crate) cgroup_root: Option<String>,
    /// Cgroups of version 1 are good enough
    #[arg(long)]
    pub(crate) allow_cgroup_v1: bool,
    /// Where containerd looks for CNI plugins [default: as containerd says]
    #[arg(long, value_name = "DIRECTORY")]
    pub(crate) cni_bin_dir: Option<PathBuf>,
    /// Where containerd looks for its CNI configuration [default: as containerd says]
    #[arg(long, value_name = "DIRECTORY")]
    pub(crate) cni_conf_dir: Option<PathBuf>,
    /// The image with kubelet and CNI plugins [default: the one of the cluster's release]
    #[arg(long, value_name = "IMAGE")]
    pub(crate) node_image: Option<String>,
    /// A label that the Node begins with; may be given many times
    #[arg(long = "node-label", value_name = "KEY=VALUE")]
    pub(crate) labels: Vec<String>,
    /// Who keeps the worker running [default: systemd where it runs this machine, else detached]
    #[arg(long, value_enum, value_name = "SERVICE")]
    pub(crate) service: Option<NodeService>,
    /// How long the Node may take to be ready
    #[arg(long, value_name = "DURATION", default_value = "5m")]
    pub(crate) timeout: Span,
}

/// Who keeps the daemon running.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum NodeService {
    /// A unit of systemd, keelway-node.service
    Systemd,
    /// Nobody: it is started once, in a session of its own
    Detached,
    /// Nobody: start `keelway node run` yourself
    None,
}

#[derive(Args)]
pub(crate) struct RunArguments {
    #[command(flatten)]
    pub(crate) state: StateDirectory,
    /// Leave the session of whoever starts it
    #[arg(long, hide = true)]
    pub(crate) detached: bool,
}

#[derive(Args)]
pub(crate) struct StatusOf {
    #[command(flatten)]
    pub(crate) state: StateDirectory,
    /// How to show it
    #[arg(short, long, value_enum, default_value = "table")]
    pub(crate) output: NodeOutput,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum NodeOutput {
    /// Tables
    Table,
    /// JSON
    Json,
    /// YAML
    Yaml,
}

#[derive(Args)]
pub(crate) struct LeaveArguments {
    #[command(flatten)]
    pub(crate) state: StateDirectory,
    /// How long pods may take to end
    #[arg(long, value_name = "DURATION", default_value = "5m")]
    pub(crate) drain_timeout: Span,
    /// Leave also where pods do not end, or the cluster cannot be reached
    #[arg(long)]
    pub(crate) force: bool,
}
