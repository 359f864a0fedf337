//! What people do about the workers of a cluster.

use clap::{Args, Subcommand};
use keelway_api::{
    duration::Span,
    name::{ClusterRef, is_subdomain},
};

use super::OutputFormat;

/// `keelway join-token`.
#[derive(Subcommand)]
pub(crate) enum JoinTokenCommand {
    /// Create and print a join token, which admits machines to the cluster until it expires
    #[command(
        after_help = "Example:\n  keelway join-token create --cluster c1 < c1.yaml\n  keelway join-token create --cluster c1 --ttl 1h -f c1.yaml > token"
    )]
    Create(CreateTokenArguments),
    /// List the join tokens of a cluster, without their secrets
    #[command(
        after_help = "Example:\n  keelway join-token list --cluster c1 < c1.yaml\n  keelway join-token list --cluster c1 -o json -f c1.yaml"
    )]
    List(ListTokensArguments),
    /// Revoke a join token; workers that joined with it stay unless --evict is set
    #[command(
        after_help = "Example:\n  keelway join-token revoke abcdef --cluster c1 < c1.yaml\n  keelway join-token revoke abcdef --evict --cluster c1 < c1.yaml"
    )]
    Revoke(RevokeTokenArguments),
}

/// The cluster that a command is about.
#[derive(Args)]
pub(crate) struct ClusterArgument {
    /// The cluster's name
    #[arg(long = "cluster", value_name = "NAME")]
    cluster: String,
    /// The cluster's namespace
    #[arg(short, long, default_value = "default")]
    namespace: String,
}

impl ClusterArgument {
    pub(crate) fn reference(&self) -> ClusterRef {
        ClusterRef { namespace: self.namespace.clone(), name: self.cluster.clone() }
    }
}

#[derive(Args)]
pub(crate) struct CreateTokenArguments {
    #[command(flatten)]
    pub(crate) cluster: ClusterArgument,
    /// How long the token is valid
    #[arg(long, default_value = "24h", value_name = "DURATION")]
    pub(crate) ttl: Span,
}

#[derive(Args)]
pub(crate) struct ListTokensArguments {
    #[command(flatten)]
    pub(crate) cluster: ClusterArgument,
    /// The output format
    #[arg(short, long, value_enum, default_value = "table")]
    pub(crate) output: OutputFormat,
}

#[derive(Args)]
pub(crate) struct RevokeTokenArguments {
    /// The ID of the token, as `join-token list` shows it
    #[arg(value_name = "ID")]
    pub(crate) id: String,
    #[command(flatten)]
    pub(crate) cluster: ClusterArgument,
    /// Also evict the workers that joined with the token
    #[arg(long)]
    pub(crate) evict: bool,
}

#[derive(Args)]
pub(crate) struct EvictArguments {
    /// Names of workers, which are the names of their Nodes
    #[arg(required = true, value_name = "NAME", value_parser = node_name)]
    pub(crate) names: Vec<String>,
    #[command(flatten)]
    pub(crate) cluster: ClusterArgument,
}

fn node_name(text: &str) -> Result<String, String> {
    if is_subdomain(text) { Ok(text.to_owned()) } else { Err("must be the name of a Node".to_owned()) }
}
