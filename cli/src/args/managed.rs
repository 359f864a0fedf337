//! The arguments of commands for a manager.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use keelway_manager_client::client::DEFAULT_SOCKET;

#[derive(Args)]
pub(crate) struct ServerArgument {
    /// The socket of the manager [default: $KEELWAY_SERVER, else /run/keelway-manager/manager.sock]
    #[arg(long, value_name = "PATH")]
    server: Option<PathBuf>,
}

impl ServerArgument {
    pub(crate) fn socket(&self) -> PathBuf {
        let named = || std::env::var_os("KEELWAY_SERVER").filter(|value| !value.is_empty()).map(PathBuf::from);
        self.server.clone().or_else(named).unwrap_or_else(|| DEFAULT_SOCKET.into())
    }
}

/// A kind of documents, under the names that kubectl accepts, too.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum KindName {
    /// Defaults and limits for clusters
    #[value(name = "clusterclasses", alias = "clusterclass", alias = "kwcc", alias = "ClusterClass")]
    ClusterClass,
    /// Machines
    #[value(name = "hypervisors", alias = "hypervisor", alias = "kwh", alias = "Hypervisor")]
    Hypervisor,
    /// Clusters
    #[value(name = "clusters", alias = "cluster", alias = "kwc", alias = "Cluster")]
    Cluster,
    /// Components of clusters
    #[value(name = "components", alias = "component", alias = "kwcomp", alias = "Component")]
    Component,
    /// Secrets; only root and the manager's own user can read their values
    #[value(name = "secrets", alias = "secret", alias = "Secret")]
    Secret,
}

impl KindName {
    /// Returns the kind as documents contain it.
    pub(crate) fn kind(self) -> &'static str {
        match self {
            Self::ClusterClass => "ClusterClass",
            Self::Hypervisor => "Hypervisor",
            Self::Cluster => "Cluster",
            Self::Component => "Component",
            Self::Secret => "Secret",
        }
    }
}

#[derive(Args)]
pub(crate) struct NamedArguments {
    /// The kind
    #[arg(value_name = "KIND", value_enum)]
    pub(crate) kind: KindName,
    /// The names
    #[arg(value_name = "NAME", required = true)]
    pub(crate) names: Vec<String>,
    /// The namespace of the documents
    #[arg(short, long, default_value = "default")]
    pub(crate) namespace: String,
    #[command(flatten)]
    pub(crate) server: ServerArgument,
}
