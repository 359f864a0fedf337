//! What is asked of a manager on its socket: `keelway apply`, `get`, `edit`, `delete` and `watch`.

mod apply;
mod delete;
mod edit;
mod get;
mod watch;

pub(super) use apply::run as apply;
pub(super) use delete::run as delete;
pub(super) use edit::run as edit;
pub(super) use get::run as get;
pub(super) use watch::run as watch;

use keelway_api::{
    document::DocumentName,
    documents::SecretName,
    name::{ClusterRef, NAMESPACE_PREFIX, PodName},
};
use keelway_manager::{
    client::{Client, ClientError},
    proto,
};
use tokio::runtime::Runtime;

use crate::{
    args::{KindName, NamedArguments, Server},
    exit::Failure,
};

/// A manager, to be asked within this runtime.
fn client(runtime: &Runtime, server: &Server) -> Client {
    let _entered = runtime.enter();
    Client::new(&server.socket())
}

/// What people are told of a manager that did not do what they asked for.
fn failed(error: ClientError) -> Failure {
    match error {
        ClientError::Refused(faults) => Failure::usage(faults, "nothing was changed: mend it, and ask again"),
        ClientError::NotFound(what) => Failure::usage(what, "see what is there with `keelway get`"),
        ClientError::Unavailable { .. } => Failure::usage(
            error.to_string(),
            "start `keelway-manager run`, or name its socket by --server or $KEELWAY_SERVER; who asks has to be of the socket's group",
        ),
        ClientError::Failed(_) => Failure::other(error),
    }
}

/// The documents that a command line names.
fn names(arguments: &NamedArguments) -> Result<Vec<DocumentName>, Failure> {
    let named = |name: &String| {
        name_of(arguments.kind, &arguments.namespace, name).ok_or_else(|| {
            Failure::usage(format!("{name} is no name of a {}", arguments.kind.kind()), "see `keelway get`")
        })
    };
    arguments.names.iter().map(named).collect()
}

fn name_of(kind: KindName, namespace: &str, name: &str) -> Option<DocumentName> {
    let (namespace, name) = (namespace.to_owned(), name.to_owned());
    Some(match kind {
        KindName::ClusterClass => DocumentName::ClusterClass(name),
        KindName::Hypervisor => DocumentName::Hypervisor(name.parse().ok()?),
        KindName::Cluster => DocumentName::Cluster(ClusterRef { namespace, name }),
        KindName::Component => {
            let cluster = namespace.strip_prefix(NAMESPACE_PREFIX)?.parse().ok()?;
            DocumentName::Component(PodName { cluster, component: name.parse().ok()? })
        }
        KindName::Secret => DocumentName::Secret(SecretName { namespace, name }),
    })
}

/// As kubectl names it: `cluster.keelway.dev/c1`.
fn told(name: Option<&proto::DocumentName>) -> String {
    let Some(name) = name else { return String::new() };
    let group = if name.kind == "Secret" { "" } else { ".keelway.dev" };
    let own = match name.namespace.as_str() {
        "" | "default" => name.name.clone(),
        namespace => format!("{namespace}/{}", name.name),
    };
    format!("{}{group}/{own}", name.kind.to_lowercase())
}
