//! `keelway cluster kubeconfig`.

use keelway_api::{Cluster, Documents, documents::SecretName, duration::Span, jiff::Timestamp};
use keelway_pki::{AuthoritySource, ClientIdentity, Kubeconfig, KubeconfigCluster};
use keelway_planner::{Subject, administrator, first_administrator};
use keelway_reconciler::{Credentials, issue_client};

use super::print;
use crate::{
    args::{Global, KubeconfigArguments},
    exit::{Code, Failure},
    input::Input,
};

pub(super) fn run(global: &Global, arguments: &KubeconfigArguments) -> Result<Code, Failure> {
    let input = Input::read(&global.files)?;
    let documents = input.documents()?;
    let reference = arguments.cluster.reference();
    let cluster = documents.clusters.get(&reference).ok_or_else(|| arguments.cluster.missing(&documents))?;
    let credentials = credentials(&documents, cluster, arguments)?;
    let kubeconfig = kubeconfig(cluster, arguments, credentials)?;
    print(kubeconfig.to_yaml().map_err(Failure::other)?.as_str())?;
    Ok(Code::Done)
}

fn credentials(
    documents: &Documents,
    cluster: &Cluster,
    arguments: &KubeconfigArguments,
) -> Result<Credentials, Failure> {
    let not_yet = || {
        Failure::usage(
            format!("cluster {} has no certificate authority yet", cluster.reference()),
            "make it first: keelway reconcile",
        )
    };
    let id = cluster.id().ok_or_else(not_yet)?;
    let authority = SecretName::of(id, keelway_planner::KUBERNETES_AUTHORITY);
    if !documents.secrets.contains_key(&authority) {
        return Err(not_yet());
    }
    let ttl: Span = arguments.ttl.unwrap_or(cluster.spec.certificates.admin_ttl);
    issue_client(documents, &authority, &subject(arguments), ttl, Timestamp::now()).map_err(Failure::other)
}

fn subject(arguments: &KubeconfigArguments) -> Subject {
    if arguments.break_glass {
        Subject { common_name: arguments.user.clone(), ..first_administrator() }
    } else {
        administrator(&arguments.user)
    }
}

/// One context per address of the API; the first one is current.
fn kubeconfig(
    cluster: &Cluster,
    arguments: &KubeconfigArguments,
    credentials: Credentials,
) -> Result<Kubeconfig, Failure> {
    let endpoints = cluster.status.as_ref().map(|status| status.endpoints.as_slice()).unwrap_or_default();
    if endpoints.is_empty() {
        return Err(Failure::usage(
            format!("cluster {} has no ingress that its users could reach", cluster.reference()),
            "set spec.ingress.replicas to 1 or more, and reconcile",
        ));
    }
    let name = cluster.reference().name;
    let user = format!("{name}-{}", arguments.user);
    let context = |index: usize| if index == 0 { name.clone() } else { format!("{name}-ingress-{index}") };
    let identity = ClientIdentity::Embedded(credentials.certificate);
    let mut builder = Kubeconfig::builder().user(&user, identity);
    for (index, server) in endpoints.iter().enumerate() {
        let authority = AuthoritySource::Embedded(credentials.authority_pem.clone());
        let entry = KubeconfigCluster { server: server.clone(), authority, tls_server_name: None };
        builder = builder.cluster(context(index), entry).context(context(index), context(index), &user);
    }
    builder.build(context(0)).map_err(Failure::other)
}
