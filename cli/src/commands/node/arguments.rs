//! The command line of workers.

use std::path::PathBuf;

use clap::{
    Args, Subcommand, ValueEnum,
    builder::{PathBufValueParser, TypedValueParser},
};
use keelway_api::{duration::Span, name::is_subdomain};
use keelway_node::{INSTALL, OpenPorts, STATE, is_kubelet_label};

/// The longest name of a Node, of a label, and the longest value of one.
const LONGEST: usize = 63;

#[derive(Subcommand)]
pub(crate) enum WorkerCommand {
    /// Make this machine a worker of a cluster; requires only containerd
    ///
    /// If HTTPS_PROXY is set, the worker stores it with NO_PROXY, and reaches the cluster through this HTTP proxy.
    #[command(
        after_help = "Example:\n  keelway node join --token-file token\n  keelway node join - < token\n  keelway node join --node-name w1 --token-file token"
    )]
    Join(Box<JoinArguments>),
    /// Run the worker: tunnels, load balancer and kubelet; kubelet and pods keep running when this command exits
    #[command(after_help = "Example:\n  keelway node run")]
    Run(NodeRunArguments),
    /// Show the status of this worker: tunnels, active gateway, ingresses, kubelet, certificates. Ends with 1 if something keeps the worker from
    /// running pods, and names it
    #[command(after_help = "Example:\n  keelway node status\n  keelway node status -o json")]
    Status(NodeStatusArguments),
    /// Replace the kubelet and the CNI plugins with those of another image, and restart the kubelet; pods keep running. Needs no token
    #[command(
        after_help = "Example:\n  keelway node upgrade\n  keelway node upgrade --to 1.36.3 --drain\n  keelway node upgrade --image registry.example.com/node:v1.37.0"
    )]
    Upgrade(UpgradeArguments),
    /// Drain this worker, remove it from its cluster, and undo all changes to this machine
    #[command(after_help = "Example:\n  keelway node leave\n  keelway node leave --drain-timeout 10m")]
    Leave(LeaveArguments),
    /// Undo all changes to this machine, without contacting the cluster
    #[command(after_help = "Example:\n  keelway node forget")]
    Forget(StateDirectory),
}

#[derive(Args)]
pub(crate) struct StateDirectory {
    /// The directory of the worker's files
    #[arg(long, value_parser = absolute(), value_name = "DIRECTORY", default_value = STATE)]
    pub(crate) state_dir: PathBuf,
}

#[derive(Args)]
pub(crate) struct JoinArguments {
    /// The join token, as `join-token create` printed it; `-` reads it from stdin, which keeps it out of process lists
    #[arg(value_name = "TOKEN", required_unless_present = "token_file", conflicts_with = "token_file")]
    pub(crate) token: Option<String>,
    /// Read the token from FILE
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) state: StateDirectory,
    /// The name of the Node [default: the host name]
    #[arg(long, value_name = "NAME", value_parser = node_name)]
    pub(crate) node_name: Option<String>,
    /// The socket of containerd
    #[arg(long, value_parser = absolute(), value_name = "PATH", default_value = "/run/containerd/containerd.sock")]
    pub(crate) containerd_socket: PathBuf,
    /// The root directory of the kubelet
    #[arg(long, value_parser = absolute(), value_name = "DIRECTORY", default_value = "/var/lib/kubelet")]
    pub(crate) kubelet_root_dir: PathBuf,
    /// The directory for logs of pods
    #[arg(long, value_parser = absolute(), value_name = "DIRECTORY", default_value = "/var/log/pods")]
    pub(crate) pod_logs_dir: PathBuf,
    /// The parent cgroup of pods; it is created if it is missing [default: the root]
    #[arg(long, value_name = "NAME", value_parser = cgroup)]
    pub(crate) cgroup_root: Option<String>,
    /// Allow cgroups version 1
    #[arg(long)]
    pub(crate) allow_cgroup_v1: bool,
    /// The directory in which containerd finds CNI plugins [default: from containerd's configuration]
    #[arg(long, value_parser = absolute(), value_name = "DIRECTORY")]
    pub(crate) cni_bin_dir: Option<PathBuf>,
    /// The directory in which containerd finds its CNI configuration [default: from containerd's configuration]
    #[arg(long, value_parser = absolute(), value_name = "DIRECTORY")]
    pub(crate) cni_conf_dir: Option<PathBuf>,
    /// The image with kubelet and CNI plugins [default: the image of the cluster's release]
    #[arg(long, value_name = "IMAGE")]
    pub(crate) node_image: Option<String>,
    /// Credentials of registries: a config.json of docker. They are used for the node image, and for pods without pull Secrets [default: those of
    /// an earlier join]
    #[arg(long, value_name = "FILE")]
    pub(crate) registry_config: Option<PathBuf>,
    /// A label to set when the Node is created; can be repeated
    #[arg(long = "node-label", value_name = "KEY=VALUE", value_parser = label)]
    pub(crate) labels: Vec<String>,
    /// The ports of this machine that pods and other workers reach, TCP and UDP, such as 22,443; or `all` [default: only what the cluster needs]
    #[arg(long, value_name = "PORTS", default_value_t, hide_default_value = true)]
    pub(crate) open_ports: OpenPorts,
    /// What keeps the worker running [default: systemd if this machine runs it, else detached]
    #[arg(long, value_enum, value_name = "SERVICE")]
    pub(crate) service: Option<NodeService>,
    /// The directory in which to install this program, unless it is there or in a directory such as /usr/bin already
    #[arg(long, value_parser = absolute(), value_name = "DIRECTORY", default_value = INSTALL)]
    pub(crate) install_dir: PathBuf,
    /// How long to wait until the Node is ready
    #[arg(long, value_name = "DURATION", default_value = "5m")]
    pub(crate) timeout: Span,
}

/// Makes a path absolute, because the daemon has another working directory than the command.
fn absolute() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(std::path::absolute)
}

fn node_name(text: &str) -> Result<String, String> {
    if is_subdomain(text) && text.len() <= LONGEST {
        return Ok(text.to_owned());
    }
    Err(format!("must be the name of a Node: at most {LONGEST} lower-case letters, digits, - and . (RFC 1123)"))
}

fn cgroup(text: &str) -> Result<String, String> {
    let is_well = !text.is_empty() && text.split('/').all(|part| part != ".." && part != ".");
    if is_well {
        Ok(text.to_owned())
    } else {
        Err("must be a path below the root of cgroups, without . or ..".to_owned())
    }
}

/// Parses a label. Of the prefixes of Kubernetes, the kubelet accepts only some (`--node-labels`).
fn label(text: &str) -> Result<String, String> {
    let (key, value) = text.split_once('=').ok_or("must be KEY=VALUE")?;
    let (prefix, name) = key.rsplit_once('/').map_or((None, key), |(prefix, name)| (Some(prefix), name));
    if !is_word(name) || prefix.is_some_and(|prefix| !is_subdomain(prefix)) {
        return Err(format!(
            "{key:?} is not a valid label key; must be [PREFIX/]NAME with at most {LONGEST} letters, digits, -, _ and ."
        ));
    }
    if !value.is_empty() && !is_word(value) {
        return Err(format!(
            "{value:?} is not a valid label value; must be at most {LONGEST} letters, digits, -, _ and ."
        ));
    }
    if !is_kubelet_label(key) {
        return Err(format!("a kubelet may not set the label {key} on its Node; set it with `kubectl label node`"));
    }
    Ok(text.to_owned())
}

/// Letters and digits at both ends, and -, _ and . between them too.
fn is_word(text: &str) -> bool {
    let is_end = |letter: Option<char>| letter.is_some_and(|letter| letter.is_ascii_alphanumeric());
    let is_inner = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
    text.len() <= LONGEST && is_end(text.chars().next()) && is_end(text.chars().last()) && text.chars().all(is_inner)
}

/// Who keeps the daemon running.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum NodeService {
    /// The systemd unit keelway-node.service
    Systemd,
    /// Nothing: `join` starts the worker once, in its own session
    Detached,
    /// Nothing: start `keelway node run` yourself
    None,
}

#[derive(Args)]
pub(crate) struct NodeRunArguments {
    #[command(flatten)]
    pub(crate) state: StateDirectory,
    /// Start a new session
    #[arg(long, hide = true)]
    pub(crate) detached: bool,
}

#[derive(Args)]
pub(crate) struct NodeStatusArguments {
    #[command(flatten)]
    pub(crate) state: StateDirectory,
    /// The output format
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
pub(crate) struct UpgradeArguments {
    #[command(flatten)]
    pub(crate) state: StateDirectory,
    /// The image with kubelet and CNI plugins [default: the image of the cluster's release]
    #[arg(long, value_name = "IMAGE", conflicts_with = "to")]
    pub(crate) image: Option<String>,
    /// The release of Kubernetes: at most three minor versions older than the API server, and never newer
    #[arg(long, value_name = "VERSION")]
    pub(crate) to: Option<String>,
    /// Drain the worker before, and uncordon it when it is ready again
    #[arg(long)]
    pub(crate) drain: bool,
    /// With --drain, how long to wait until pods have terminated
    #[arg(long, value_name = "DURATION", default_value = "5m")]
    pub(crate) drain_timeout: Span,
    /// How long to wait until the Node is ready
    #[arg(long, value_name = "DURATION", default_value = "5m")]
    pub(crate) timeout: Span,
}

#[derive(Args)]
pub(crate) struct LeaveArguments {
    #[command(flatten)]
    pub(crate) state: StateDirectory,
    /// How long to wait until pods have terminated
    #[arg(long, value_name = "DURATION", default_value = "5m")]
    pub(crate) drain_timeout: Span,
    /// Leave even if pods do not terminate or the cluster is unreachable
    #[arg(long)]
    pub(crate) force: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_that_a_kubelet_may_not_set_are_refused() {
        for good in ["a=b", "a=", "example.com/rack=r-1", "node.kubernetes.io/pool=x", "topology.kubernetes.io/zone=z"]
        {
            assert_eq!(label(good).as_deref(), Ok(good));
        }
        let long = format!("a={}", "b".repeat(64));
        let refused = "node-restriction.kubernetes.io/a=b";
        for bad in [
            "a",
            "=b",
            "a b=c",
            "a=b c",
            "-a=b",
            "/a=b",
            "node-role.kubernetes.io/worker=",
            refused,
            "k8s.io/a=b",
            &long,
        ] {
            assert!(label(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn invalid_names_and_cgroups_are_refused() {
        assert!(node_name(&"a".repeat(63)).is_ok() && node_name(&"a".repeat(64)).is_err() && node_name("A").is_err());
        assert!(cgroup("/w1").is_ok() && cgroup("w1/pods").is_ok() && cgroup("../w1").is_err() && cgroup("").is_err());
    }
}
