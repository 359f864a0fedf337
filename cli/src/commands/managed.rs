//! Commands for the socket of a manager: `keelway apply`, `get`, `edit`, `delete` and `watch`.

pub(crate) mod apply;
pub(crate) mod delete;
pub(crate) mod edit;
pub(crate) mod get;
pub(crate) mod watch;

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
use keelway_manager_client::{
    client::{ManagerClient, ManagerClientError},
    proto,
};
use tokio::runtime::Runtime;

use crate::{
    args::{KindName, NamedArguments, ServerArgument},
    exit::CommandFailure,
};

/// Returns a client of the manager, which uses this runtime.
fn client(runtime: &Runtime, server: &ServerArgument) -> ManagerClient {
    let _entered = runtime.enter();
    ManagerClient::new(&server.socket())
}

/// Converts an error of the manager, with help for the user.
fn failed(error: ManagerClientError) -> CommandFailure {
    match error {
        ManagerClientError::Refused(faults) => {
            CommandFailure::usage(faults, "nothing was changed; correct the documents and retry")
        }
        ManagerClientError::NotFound(what) => CommandFailure::usage(what, "list documents with `keelway get`"),
        ManagerClientError::Unavailable { .. } => CommandFailure::usage(
            error.to_string(),
            "start `keelway-manager run`, or set --server or $KEELWAY_SERVER to its socket; your user must be in the socket's group",
        ),
        ManagerClientError::Failed(_) => CommandFailure::other(error),
    }
}

/// Returns the documents that the command line names.
fn names(arguments: &NamedArguments) -> Result<Vec<DocumentName>, CommandFailure> {
    let named = |name: &String| {
        name_of(arguments.kind, &arguments.namespace, name).ok_or_else(|| {
            CommandFailure::usage(
                format!("{name} is not a valid name of a {}", arguments.kind.kind()),
                "list documents with `keelway get`",
            )
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

/// Returns the name in the format of kubectl, such as `cluster.keelway.dev/c1`.
fn kubectl_name(name: Option<&proto::DocumentName>) -> String {
    let Some(name) = name else { return String::new() };
    let group = if name.kind == "Secret" { "" } else { ".keelway.dev" };
    let own = match name.namespace.as_str() {
        "" | "default" => name.name.clone(),
        namespace => format!("{namespace}/{}", name.name),
    };
    format!("{}{group}/{own}", name.kind.to_lowercase())
}
