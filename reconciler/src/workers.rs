//! What people do about the workers of a cluster: in the managed cluster, as the driver, through the cluster's ingresses.

mod eviction;
mod ingresses;
mod tokens;

use std::{future::Future, net::SocketAddr, time::Duration};

use keelway_api::{Cluster, Documents, documents::SecretName, name::ClusterId};
use keelway_hypervisor_agent::tls::client_from_pem;
use keelway_pki::{AuthorityHash, CertificateError};
use keelway_planner::{API_SERVER_NAME, KUBERNETES_AUTHORITY, driver_identity};

use self::ingresses::Ingresses;
use crate::{managed_cluster, tls};

pub use self::{eviction::Eviction, tokens::TokenRecord};

/// How long one request may take.
const REQUEST: Duration = Duration::from_secs(20);

/// Something could not be done about the workers of a cluster.
#[derive(Debug, thiserror::Error)]
pub enum WorkersError {
    /// The cluster was never reconciled.
    #[error("the cluster was not made yet")]
    NotMade,
    /// No ingress could be reached.
    #[error("the cluster has no ingress")]
    NoIngress,
    /// A Secret of the cluster cannot be used.
    #[error("a Secret of the cluster cannot be used")]
    Secret(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The cluster's authority cannot be read.
    #[error("the cluster's authority cannot be read")]
    Authority(#[source] CertificateError),
    /// The API did not do it.
    #[error("could not {what}")]
    Api {
        /// What was to be done.
        what: &'static str,
        /// Why not.
        #[source]
        cause: Box<kube::Error>,
    },
    /// The API did not answer in time.
    #[error("could not {what}: the API did not answer within {} s", REQUEST.as_secs())]
    TimedOut {
        /// What was to be done.
        what: &'static str,
    },
    /// There is no such token.
    #[error("there is no join token {0}")]
    NoToken(String),
    /// There is no such worker, and there was none.
    #[error("there is no worker {0}: neither a Node nor a WireGuardPeer has that name")]
    NoWorker(String),
    /// The cluster knows nothing of workers.
    #[error("the cluster has no kinds for workers yet: `keelway reconcile`, and see that its cluster-controller runs")]
    NoKinds,
}

/// The workers of one cluster.
pub struct ClusterWorkers {
    client: kube::Client,
}

impl ClusterWorkers {
    /// Those of this cluster. Nothing is asked yet.
    pub fn of(documents: &Documents, cluster: &Cluster) -> Result<Self, WorkersError> {
        let id = cluster.id().ok_or(WorkersError::NotMade)?;
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

/// Where workers find a cluster, and the authorities by which they know it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JoinInformation {
    /// Its ingresses.
    pub endpoints: Vec<SocketAddr>,
    /// Its authorities: the active one, the next and the previous.
    pub authorities: Vec<AuthorityHash>,
}

impl JoinInformation {
    /// As the documents tell.
    pub fn of(documents: &Documents, cluster: &Cluster) -> Result<Self, WorkersError> {
        let id = cluster.id().ok_or(WorkersError::NotMade)?;
        let endpoints = reachable(documents, id)?;
        let bundle = tls::value(documents, &SecretName::of(id, KUBERNETES_AUTHORITY), "bundle.crt");
        let bundle = bundle.map_err(|error| WorkersError::Secret(error.into()))?;
        let authorities =
            AuthorityHash::of_bundle(&String::from_utf8_lossy(bundle)).map_err(WorkersError::Authority)?;
        Ok(Self { endpoints, authorities })
    }
}

fn reachable(documents: &Documents, id: &ClusterId) -> Result<Vec<SocketAddr>, WorkersError> {
    let addresses = ingresses::addresses(documents, id);
    if addresses.is_empty() { Err(WorkersError::NoIngress) } else { Ok(addresses) }
}

impl WorkersError {
    /// The code that the API said, where it did.
    fn code(&self) -> Option<u16> {
        let Self::Api { cause, .. } = self else { return None };
        let kube::Error::Api(status) = &**cause else { return None };
        Some(status.code)
    }
}
