//! Access to a managed cluster through its API.

use std::{sync::Arc, time::Duration};

use futures::future::try_join_all;
use hyper_util::{
    client::legacy::{Client, connect::Connect},
    rt::TokioExecutor,
};
use keelway_api::{Documents, Hypervisor, jiff::Timestamp, machine::ObservedValue, name::ClusterId};
use keelway_base::error_chain::root_cause;
use keelway_kube_object::{KubeObject, KubeObjectError};
use keelway_planner::{BINDINGS_DIGEST, ClusterAccess, FirstBindings, OWNER, access, driver_identity};
use keelway_tls::component::client_from_pem;
use kube::{
    Api, ResourceExt,
    api::{ApiResource, DynamicObject},
    core::GroupVersionKind,
};
use rustls::ClientConfig;
use serde_json::Value;
use tower::ServiceBuilder;

use crate::{
    Machines,
    dial::Dialler,
    mint,
    tls::{self, TlsClients},
};

/// The time limit for one request.
pub(crate) const REQUEST: Duration = Duration::from_secs(5);
/// The driver's own binding.
pub(crate) const OWN_BINDING: &str = "keelway:driver";
/// The API group and version of bindings.
const RBAC: (&str, &str) = ("rbac.authorization.k8s.io", "v1");

#[derive(Debug, thiserror::Error)]
pub(crate) enum ManagedClusterError {
    /// No API server of the cluster has been placed.
    #[error("the cluster has no API server")]
    NoServer,
    #[error("cannot create a client of its API")]
    Tls(#[source] tls::ClientTlsError),
    #[error("cannot issue the certificate that applies the first bindings")]
    Mint(#[source] mint::MintError),
    /// The API server refused a binding, or could not be reached.
    #[error(transparent)]
    Apply(#[from] KubeObjectError),
    #[error("its API refused a request, or could not be reached")]
    Request(#[source] kube::Error),
    #[error("its API did not respond within {} s", REQUEST.as_secs())]
    TimedOut,
}

/// Returns the digest of the current bindings, read with the driver's credentials. It is empty if there are no bindings, or if the driver has no
/// permission to read them, as before the first ones.
pub(crate) async fn bindings(
    machines: &Arc<dyn Machines>,
    clients: &TlsClients,
    documents: &Documents,
    id: &ClusterId,
) -> ObservedValue<String> {
    own_annotation(machines, clients, documents, id, BINDINGS_DIGEST).await
}

/// Returns an annotation of the driver's own binding, read with the driver's credentials. It is empty if the binding lacks it, if there is no binding,
/// or if the driver has no permission to read it.
pub(crate) async fn own_annotation(
    machines: &Arc<dyn Machines>,
    clients: &TlsClients,
    documents: &Documents,
    id: &ClusterId,
    annotation: &str,
) -> ObservedValue<String> {
    let client = match driver(machines, clients, documents, id) {
        Ok(client) => client,
        Err(why) => return ObservedValue::unreachable(why),
    };
    match tokio::time::timeout(REQUEST, bindings_api(client).get(OWN_BINDING)).await {
        Ok(Ok(binding)) => ObservedValue::Known(binding.annotations().get(annotation).cloned().unwrap_or_default()),
        Ok(Err(kube::Error::Api(status))) if matches!(status.code, 403 | 404) => ObservedValue::Known(String::new()),
        Ok(Err(error)) => ObservedValue::unreachable(root_cause(&error)),
        Err(_) => ObservedValue::unreachable("no response in time"),
    }
}

/// Returns a client of the API with the credentials of the driver. The error is text for users.
pub(crate) fn driver(
    machines: &Arc<dyn Machines>,
    clients: &TlsClients,
    documents: &Documents,
    id: &ClusterId,
) -> Result<kube::Client, String> {
    let (server, machine) = first_server(documents, id).ok_or_else(|| "no API server is placed yet".to_owned())?;
    let config = clients.client(documents, &server.authority, Some(&driver_identity(id)));
    let config = config.map_err(|error| root_cause(&error))?;
    Ok(client(machines, machine, &server, &config))
}

/// Returns a client of each API server that is not being removed, as [`driver`] does of one.
pub(crate) fn drivers(
    machines: &Arc<dyn Machines>,
    clients: &TlsClients,
    documents: &Documents,
    id: &ClusterId,
) -> Result<Vec<kube::Client>, String> {
    let client = |(server, machine): (ClusterAccess, &Hypervisor)| {
        let config = clients.client(documents, &server.authority, Some(&driver_identity(id)));
        let config = config.map_err(|error| root_cause(&error))?;
        Ok(client(machines, machine, &server, &config))
    };
    servers(documents, id).filter(|(server, _)| !server.is_leaving).map(client).collect()
}

/// Applies the first bindings as `system:masters`, with a certificate that is valid for ten minutes, minted here and never saved.
pub(crate) async fn apply_bindings(
    machines: &Arc<dyn Machines>,
    documents: &Documents,
    id: &ClusterId,
    now: Timestamp,
) -> Result<(), ManagedClusterError> {
    let client = administrator(machines, documents, id, now)?;
    for stage in FirstBindings::of_id(documents, id).stages() {
        try_join_all(stage.iter().map(|object| apply(&client, object))).await?;
    }
    Ok(())
}

/// Returns a client of the API as `system:masters`, with a certificate that is valid for ten minutes, minted here and never saved.
pub(crate) fn administrator(
    machines: &Arc<dyn Machines>,
    documents: &Documents,
    id: &ClusterId,
    now: Timestamp,
) -> Result<kube::Client, ManagedClusterError> {
    let (server, machine) = first_server(documents, id).ok_or(ManagedClusterError::NoServer)?;
    let certificate = mint::first_certificate(documents, &server.authority, now).map_err(ManagedClusterError::Mint)?;
    let authorities = tls::value(documents, &server.authority, "bundle.crt").map_err(ManagedClusterError::Tls)?;
    let identity = (certificate.certificate_pem.as_bytes(), certificate.key_pem.expose().as_bytes());
    let config =
        client_from_pem(authorities, Some(identity)).map_err(|error| ManagedClusterError::Tls(error.into()))?;
    Ok(client(machines, machine, &server, &config))
}

async fn apply(client: &kube::Client, object: &Value) -> Result<(), ManagedClusterError> {
    let object = KubeObject::read(object)?;
    let applied = object.apply(client, object.manager(OWNER));
    tokio::time::timeout(REQUEST, applied).await.map_err(|_| ManagedClusterError::TimedOut)??;
    Ok(())
}

fn first_server<'a>(documents: &'a Documents, id: &ClusterId) -> Option<(ClusterAccess, &'a Hypervisor)> {
    servers(documents, id).next()
}

fn servers<'a>(documents: &'a Documents, id: &ClusterId) -> impl Iterator<Item = (ClusterAccess, &'a Hypervisor)> {
    access(documents, id).into_iter().filter_map(|server| {
        let machine = documents.hypervisors.get(&server.machine)?;
        Some((server, &**machine))
    })
}

/// Returns the API of the kind of the driver's own binding.
pub(crate) fn bindings_api(client: kube::Client) -> Api<DynamicObject> {
    let (group, version) = RBAC;
    Api::all_with(client, &ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, "ClusterRoleBinding")))
}

fn client(
    machines: &Arc<dyn Machines>,
    machine: &Hypervisor,
    server: &ClusterAccess,
    config: &ClientConfig,
) -> kube::Client {
    let connector = Dialler::new(Arc::clone(machines), machine, server.address).https(config.clone());
    client_over(connector, format!("https://{}:{}", server.server_name, server.address.port()))
}

/// Returns a client of the API behind this connector. `base` is the URL without a path; its host is the name in the server's certificate.
pub(crate) fn client_over<C>(connector: C, base: String) -> kube::Client
where
    C: Connect + Clone + Send + Sync + 'static,
{
    let https: Client<_, kube::client::Body> = Client::builder(TokioExecutor::new()).build(connector);
    let service = ServiceBuilder::new()
        .map_request(move |mut request: http::Request<kube::client::Body>| {
            let path = request.uri().path_and_query().map(ToString::to_string).unwrap_or_default();
            if let Ok(uri) = format!("{base}{path}").parse() {
                *request.uri_mut() = uri;
            }
            request
        })
        .service(https);
    kube::Client::new(service, "default")
}
