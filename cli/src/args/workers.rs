//! What people do about the workers of a cluster.

use clap::Args;
use keelway_api::name::ClusterRef;

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
