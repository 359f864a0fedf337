//! `keelway cluster kubeconfig`.

use clap::{Args, builder::NonEmptyStringValueParser};
use keelway_api::{Cluster, Documents, documents::SecretName, duration::Span, jiff::Timestamp, name::ClusterRef};
use keelway_pki::{AuthoritySource, ClientIdentity, Kubeconfig, KubeconfigCluster};
use keelway_planner::{CertificateSubject, administrator, first_administrator};
use keelway_reconciler::{UserCredentials, issue_client};

use super::print;
use crate::{
    args::{ClusterName, GlobalArguments},
    exit::{Code, CommandFailure},
    input::Input,
};

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

/// The user of a kubeconfig if the command line names none.
const DEFAULT_USER: &str = "admin";

pub(super) fn run(global: &GlobalArguments, arguments: &KubeconfigArguments) -> Result<Code, CommandFailure> {
    let input = Input::read(&global.files)?;
    of_documents(&input.documents()?, arguments)
}

/// Prints a kubeconfig for a cluster of these documents.
pub(super) fn of_documents(documents: &Documents, arguments: &KubeconfigArguments) -> Result<Code, CommandFailure> {
    let reference = arguments.cluster.reference();
    let cluster = documents.clusters.get(&reference).ok_or_else(|| arguments.cluster.missing(documents))?;
    let credentials = credentials(documents, cluster, arguments)?;
    let kubeconfig = kubeconfig(cluster, arguments, credentials)?;
    print(kubeconfig.to_yaml().map_err(CommandFailure::other)?.as_str())?;
    Ok(Code::Done)
}

fn credentials(
    documents: &Documents,
    cluster: &Cluster,
    arguments: &KubeconfigArguments,
) -> Result<UserCredentials, CommandFailure> {
    let not_yet = || {
        CommandFailure::usage(
            format!("cluster {} has no certificate authority yet", cluster.reference()),
            "create it first: keelway reconcile",
        )
    };
    let id = cluster.id().ok_or_else(not_yet)?;
    let authority = SecretName::of(id, keelway_planner::KUBERNETES_AUTHORITY);
    if !documents.secrets.contains_key(&authority) {
        return Err(not_yet());
    }
    let ttl: Span = arguments.ttl.unwrap_or(cluster.spec.certificates.admin_ttl);
    issue_client(documents, &authority, &subject(arguments), ttl, Timestamp::now()).map_err(CommandFailure::other)
}

fn subject(arguments: &KubeconfigArguments) -> CertificateSubject {
    if arguments.break_glass {
        CertificateSubject { common_name: arguments.user.clone(), ..first_administrator() }
    } else {
        administrator(&arguments.user)
    }
}

/// Returns a kubeconfig with one context for each address of the API. The first one is current.
fn kubeconfig(
    cluster: &Cluster,
    arguments: &KubeconfigArguments,
    credentials: UserCredentials,
) -> Result<Kubeconfig, CommandFailure> {
    let endpoints = cluster.status.as_ref().map(|status| status.endpoints.as_slice()).unwrap_or_default();
    if endpoints.is_empty() {
        return Err(CommandFailure::usage(
            format!("cluster {} has no ingress for its users", cluster.reference()),
            "set spec.ingress.replicas to at least 1, and run `keelway reconcile`",
        ));
    }
    let names = KubeconfigNames::of(&cluster.reference(), &arguments.user, arguments.context_name.as_deref());
    let identity = ClientIdentity::Embedded(credentials.certificate);
    let mut builder = Kubeconfig::builder().user(&names.user, identity);
    for (index, server) in endpoints.iter().enumerate() {
        let authority = AuthoritySource::Embedded(credentials.authority_pem.clone());
        let entry = KubeconfigCluster { server: server.clone(), authority, tls_server_name: None };
        let (cluster, context) = (of_ingress(&names.cluster, index), of_ingress(&names.context, index));
        builder = builder.cluster(&cluster, entry).context(context, cluster, &names.user);
    }
    builder.build(names.context).map_err(CommandFailure::other)
}

/// Names of entries. They are unique for each cluster and user, so that kubeconfigs can be merged: for `KUBECONFIG=a:b`, kubectl uses the
/// first of two entries with the same name.
#[derive(Debug, PartialEq, Eq)]
struct KubeconfigNames {
    cluster: String,
    context: String,
    user: String,
}

impl KubeconfigNames {
    fn of(cluster: &ClusterRef, user: &str, context: Option<&str>) -> Self {
        let name = match context {
            Some(name) => name.to_owned(),
            // `c1`, or `NAMESPACE/c1` if the namespace is not `default`. The name of a cluster contains no slash.
            None => cluster.to_string(),
        };
        let context = match context {
            None if user != DEFAULT_USER => format!("{user}@{name}"),
            Some(_) | None => name.clone(),
        };
        Self { user: format!("{user}@{name}"), context, cluster: name }
    }
}

/// Returns the name of the entry for one of a cluster's ingresses.
fn of_ingress(name: &str, index: usize) -> String {
    if index == 0 { name.to_owned() } else { format!("{name}:ingress-{index}") }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn names(namespace: &str, name: &str, user: &str, context: Option<&str>) -> [String; 3] {
        let cluster = ClusterRef { namespace: namespace.to_owned(), name: name.to_owned() };
        let KubeconfigNames { cluster, context, user } = KubeconfigNames::of(&cluster, user, context);
        [cluster, context, user]
    }

    #[test]
    fn kubeconfig_entries_are_unique_for_each_cluster_and_user() {
        assert_eq!(names("default", "c1", "admin", None), ["c1", "c1", "admin@c1"]);
        assert_eq!(names("a", "c1", "admin", None), ["a/c1", "a/c1", "admin@a/c1"]);
        assert_eq!(names("a", "c1", "jane", None), ["a/c1", "jane@a/c1", "jane@a/c1"]);
        assert_eq!(names("a", "c1", "jane", Some("prod")), ["prod", "prod", "jane@prod"]);

        let clusters = [("default", "c1"), ("a", "c1"), ("b", "c1"), ("default", "c1-ingress-1"), ("c1", "ingress-1")];
        let mut contexts = BTreeSet::new();
        for (namespace, name) in clusters {
            for user in ["admin", "jane", "jane@example.com"] {
                let [_, context, _] = names(namespace, name, user, None);
                for index in 0..2 {
                    assert!(contexts.insert(of_ingress(&context, index)), "{namespace}/{name} of {user}");
                }
            }
        }
    }
}
