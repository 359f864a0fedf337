//! The information that the cluster publishes for its workers, read and stored.

use k8s_openapi::api::core::v1::ConfigMap;
use keelway_api::worker::{AUTHORITIES_KEY, ClusterInformation, INFORMATION, INFORMATION_KEY};
use kube::{Api, Client};

use crate::{
    api::ApiError,
    files::{self, NodeFileError, StagedFile},
    settings::Layout,
};

/// The namespace of the ConfigMaps for workers.
pub(crate) const NAMESPACE: &str = "kube-system";

/// The cluster's information, with the authorities to trust.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TrustedInformation {
    pub(crate) cluster: ClusterInformation,
    /// The authorities, in PEM.
    pub(crate) authorities: String,
}

/// The cluster's information cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum InformationError {
    /// The API request failed.
    #[error("cannot read the cluster information")]
    Api(#[source] ApiError),
    /// The ConfigMap lacks a key.
    #[error(
        "the ConfigMap {NAMESPACE}/{INFORMATION} has no key {0}; check that this is a Keelway cluster with vpn.enabled"
    )]
    Missing(&'static str),
    /// The information cannot be parsed.
    #[error(
        "cannot parse {INFORMATION_KEY} of the ConfigMap {NAMESPACE}/{INFORMATION}; use the Keelway release that manages the cluster"
    )]
    Form(#[source] serde_json::Error),
}

impl InformationError {
    /// Returns the status code of the API server's response.
    pub(crate) fn code(&self) -> Option<u16> {
        if let Self::Api(error) = self { error.code() } else { None }
    }

    /// Whether a retry may succeed.
    pub(crate) fn is_transient(&self) -> bool {
        matches!(self, Self::Api(error) if error.is_transient())
    }
}

impl TrustedInformation {
    pub(crate) fn of(map: &ConfigMap) -> Result<Self, InformationError> {
        let value =
            |key: &'static str| map.data.as_ref().and_then(|data| data.get(key)).ok_or(InformationError::Missing(key));
        let cluster = serde_json::from_str(value(INFORMATION_KEY)?).map_err(InformationError::Form)?;
        Ok(Self { cluster, authorities: value(AUTHORITIES_KEY)?.clone() })
    }

    /// Whether the cluster has ranges of IPv6.
    pub(crate) fn has_ipv6(&self) -> bool {
        let ranges = [&self.cluster.vpn_cidrs, &self.cluster.pod_cidrs, &self.cluster.service_cidrs];
        ranges.into_iter().flatten().any(|range| range.addr().is_ipv6())
    }

    /// Reads the information from the cluster.
    pub(crate) async fn fetch(client: Client) -> Result<Self, InformationError> {
        let maps: Api<ConfigMap> = Api::namespaced(client, NAMESPACE);
        let map = maps.get(INFORMATION).await.map_err(ApiError::request(format!("get the ConfigMap {INFORMATION}")));
        Self::of(&map.map_err(InformationError::Api)?)
    }

    /// Stores the information.
    pub(crate) fn store(&self, layout: &Layout) -> Result<(), NodeFileError> {
        files::write_all(&self.next(layout)?)
    }

    /// Returns the files in which the information is stored.
    pub(crate) fn next(&self, layout: &Layout) -> Result<[StagedFile; 2], NodeFileError> {
        let authorities = StagedFile::text(layout.authorities(), &self.authorities, 0o644);
        Ok([authorities, StagedFile::json(layout.information(), &self.cluster)?])
    }

    /// Returns the stored information.
    pub(crate) fn load(layout: &Layout) -> Result<Option<Self>, NodeFileError> {
        let cluster = files::read_json(&layout.information())?;
        let authorities = files::read(&layout.authorities())?;
        Ok(cluster.zip(authorities).map(|(cluster, authorities)| Self { cluster, authorities }))
    }
}
