//! Commands of users for the workers of a cluster. They act in the managed cluster, as the driver, through the cluster's ingresses.

mod eviction;
mod ingresses;
mod tokens;

use std::{
    future::Future,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use keelway_api::{
    Cluster, Documents,
    documents::SecretName,
    name::{ClusterId, is_subdomain},
};
use keelway_pki::{AuthorityHash, CertificateError};
use keelway_planner::{API_SERVER_NAME, KUBERNETES_AUTHORITY, driver_identity};
use keelway_tls::component::client_from_pem;

use self::ingresses::Ingresses;
use crate::{managed_cluster, tls};

pub use self::{eviction::Eviction, tokens::TokenRecord};

/// The time limit for one request.
const REQUEST: Duration = Duration::from_secs(20);

/// The error of a command for workers.
#[derive(Debug, thiserror::Error)]
pub enum WorkersError {
    /// The cluster has no id yet, because it was never reconciled.
    #[error("the cluster was not created yet: run `keelway reconcile`")]
    NotMade,
    /// The cluster is a fleet.
    #[error("a fleet has no workers")]
    Fleet,
    /// The cluster has no ingress with a public address.
    #[error("the cluster has no ingress")]
    NoIngress,
    /// A Secret of the cluster cannot be used.
    #[error("a Secret of the cluster cannot be used")]
    Secret(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The cluster's authority cannot be read.
    #[error("cannot read the cluster's authority")]
    Authority(#[source] CertificateError),
    /// The API refused the request, or could not be reached.
    #[error("could not {what}")]
    Api {
        /// The operation, as it follows "could not".
        what: &'static str,
        /// The cause.
        #[source]
        cause: Box<kube::Error>,
    },
    /// The API did not respond in time.
    #[error("could not {what}: the API did not respond within {} s", REQUEST.as_secs())]
    TimedOut {
        /// The operation, as it follows "could not".
        what: &'static str,
    },
    /// The token does not exist.
    #[error("there is no join token {0}")]
    NoToken(String),
    /// The worker does not exist, and was not evicted before.
    #[error("there is no worker {0}: neither a Node nor a WireGuardPeer has that name")]
    NoWorker(String),
    /// The cluster has no CustomResourceDefinitions for workers yet.
    #[error(
        "the cluster has no CustomResourceDefinitions for workers yet: run `keelway reconcile`, and check that its cluster-controller runs"
    )]
    NoKinds,
}

/// The workers of one cluster.
pub struct ClusterWorkers {
    client: kube::Client,
}

impl ClusterWorkers {
    /// Returns access to the workers of this cluster. Does not connect.
    pub fn of(documents: &Documents, cluster: &Cluster) -> Result<Self, WorkersError> {
        let id = id_with_workers(cluster)?;
        let addresses = reachable(documents, id)?;
        let identity = driver_identity(id);
        let value = |secret: &SecretName, key: &str| {
            tls::value(documents, secret, key).map_err(|error| WorkersError::Secret(error.into()))
        };
        let trusted = value(&SecretName::of(id, KUBERNETES_AUTHORITY), "bundle.crt")?;
        let certificate = value(&identity.secret, &format!("{}.crt", identity.name))?;
        let key = value(&identity.secret, &format!("{}.key", identity.name))?;
        let config = client_from_pem(trusted, Some((certificate, key)));
        let config = config.map_err(|error| WorkersError::Secret(error.into()))?;
        let connector = Ingresses { addresses: addresses.into(), tls: config };
        Ok(Self { client: managed_cluster::client_over(connector, format!("https://{API_SERVER_NAME}")) })
    }

    async fn call<T>(what: &'static str, call: impl Future<Output = kube::Result<T>>) -> Result<T, WorkersError> {
        match tokio::time::timeout(REQUEST, call).await {
            Ok(Ok(done)) => Ok(done),
            Ok(Err(cause)) => Err(WorkersError::Api { what, cause: Box::new(cause) }),
            Err(_) => Err(WorkersError::TimedOut { what }),
        }
    }
}

/// What a worker needs to find and verify a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JoinInformation {
    /// The addresses of the cluster's ingresses.
    pub endpoints: Vec<SocketAddr>,
    /// The DNS names of the cluster's ingresses.
    pub names: Vec<String>,
    /// The authorities of the cluster: the active, the next and the previous one.
    pub authorities: Vec<AuthorityHash>,
}

impl JoinInformation {
    /// Reads the information from the documents.
    pub fn of(documents: &Documents, cluster: &Cluster) -> Result<Self, WorkersError> {
        let id = id_with_workers(cluster)?;
        let endpoints = reachable(documents, id)?;
        let bundle = tls::value(documents, &SecretName::of(id, KUBERNETES_AUTHORITY), "bundle.crt");
        let bundle = bundle.map_err(|error| WorkersError::Secret(error.into()))?;
        let authorities =
            AuthorityHash::of_bundle(&String::from_utf8_lossy(bundle)).map_err(WorkersError::Authority)?;
        Ok(Self { endpoints, names: names(cluster), authorities })
    }
}

/// Returns the names that workers of the cluster store, which are those of its API that can be resolved.
fn names(cluster: &Cluster) -> Vec<String> {
    let spec = &cluster.spec;
    let all = spec.endpoint.host.iter().chain(&spec.control_plane.kube_api_server.extra_sans);
    all.filter(|name| is_subdomain(name) && name.parse::<IpAddr>().is_err()).cloned().collect()
}

/// Returns the id of a cluster that can have workers.
fn id_with_workers(cluster: &Cluster) -> Result<&ClusterId, WorkersError> {
    if cluster.spec.is_fleet() {
        return Err(WorkersError::Fleet);
    }
    cluster.id().ok_or(WorkersError::NotMade)
}

fn reachable(documents: &Documents, id: &ClusterId) -> Result<Vec<SocketAddr>, WorkersError> {
    let addresses = ingresses::addresses(documents, id);
    if addresses.is_empty() { Err(WorkersError::NoIngress) } else { Ok(addresses) }
}

impl WorkersError {
    /// Returns the HTTP status of the API's error, if the API responded.
    fn code(&self) -> Option<u16> {
        let Self::Api { cause, .. } = self else { return None };
        let kube::Error::Api(status) = &**cause else { return None };
        Some(status.code)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn names_are_those_that_a_worker_can_resolve() {
        let named = |endpoint: serde_json::Value| {
            let sans = ["in-1.example.com", "*.example.com", "192.0.2.1", "2001:db8::1"];
            let spec = json!({
                "version": "1.37.0",
                "endpoint": endpoint,
                "controlPlane": { "kubeAPIServer": { "extraSANs": sans } },
            });
            names(&Cluster::new("c1", serde_json::from_value(spec).unwrap()))
        };
        assert_eq!(named(json!({ "host": "api.example.com" })), ["api.example.com", "in-1.example.com"]);
        assert_eq!(named(json!({})), ["in-1.example.com"]);
    }
}
