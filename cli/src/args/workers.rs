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
    /// Make a token and write it: whoever holds it can join machines to the cluster until it ends
    #[command(
        after_help = "Example:\n  keelway join-token create --cluster c1 < c1.yaml\n  keelway join-token create --cluster c1 --ttl 1h -f c1.yaml > token"
    )]
    Create(CreateTokenArguments),
    /// Show a cluster's tokens, without what is secret of them
    #[command(
        after_help = "Example:\n  keelway join-token list --cluster c1 < c1.yaml\n  keelway join-token list --cluster c1 -o json -f c1.yaml"
    )]
    List(ListTokensArguments),
    /// End a token; workers that joined with it stay, unless they are evicted too
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
    /// How long machines can join with it
    #[arg(long, default_value = "24h", value_name = "DURATION")]
    pub(crate) ttl: Span,
}

#[derive(Args)]
pub(crate) struct ListTokensArguments {
    #[command(flatten)]
    pub(crate) cluster: ClusterArgument,
    /// How to show them
    #[arg(short, long, value_enum, default_value = "table")]
    pub(crate) output: OutputFormat,
}

#[derive(Args)]
pub(crate) struct RevokeTokenArguments {
    /// The token's id, as `join-token list` shows it
    #[arg(value_name = "ID")]
    pub(crate) id: String,
    #[command(flatten)]
    pub(crate) cluster: ClusterArgument,
    /// Evict the workers that joined with it too
    #[arg(long)]
    pub(crate) evict: bool,
}

#[derive(Args)]
pub(crate) struct EvictArguments {
    /// Names of workers, which are those of their Nodes
    #[arg(required = true, value_name = "NAME", value_parser = node_name)]
    pub(crate) names: Vec<String>,
    #[command(flatten)]
    pub(crate) cluster: ClusterArgument,
}

fn node_name(text: &str) -> Result<String, String> {
    if is_subdomain(text) { Ok(text.to_owned()) } else { Err("that is no name of a Node".to_owned()) }
}
