//! What the cluster tells its workers, read and kept.

use k8s_openapi::api::core::v1::ConfigMap;
use keelway_api::worker::{AUTHORITIES_KEY, ClusterInformation, INFORMATION, INFORMATION_KEY};
use kube::{Api, Client};

use crate::{
    api::ApiError,
    files::{self, NodeFileError, StagedFile},
    settings::Layout,
};

/// The namespace of what is read.
pub(crate) const NAMESPACE: &str = "kube-system";

/// What the cluster tells, with the authorities that are trusted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TrustedInformation {
    pub(crate) cluster: ClusterInformation,
    /// PEM.
    pub(crate) authorities: String,
}

/// What the cluster tells cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum InformationError {
    /// It cannot be read from the cluster.
    #[error("cannot read what the cluster tells its workers")]
    Api(#[source] ApiError),
    /// It lacks something.
    #[error("the ConfigMap {NAMESPACE}/{INFORMATION} has no {0}: is this a cluster of Keelway's with vpn.enabled?")]
    Missing(&'static str),
    /// It is not of its form.
    #[error(
        "{INFORMATION_KEY} of the ConfigMap {NAMESPACE}/{INFORMATION} is not understood: use the release of Keelway that runs the cluster"
    )]
    Form(#[source] serde_json::Error),
}

impl InformationError {
    /// The status code that the API server answered with.
    pub(crate) fn code(&self) -> Option<u16> {
        if let Self::Api(error) = self { error.code() } else { None }
    }
}

impl TrustedInformation {
    pub(crate) fn of(map: &ConfigMap) -> Result<Self, InformationError> {
        let value =
            |key: &'static str| map.data.as_ref().and_then(|data| data.get(key)).ok_or(InformationError::Missing(key));
        let cluster = serde_json::from_str(value(INFORMATION_KEY)?).map_err(InformationError::Form)?;
        Ok(Self { cluster, authorities: value(AUTHORITIES_KEY)?.clone() })
    }

    /// Reads it from the cluster.
    pub(crate) async fn fetch(client: Client) -> Result<Self, InformationError> {
        let maps: Api<ConfigMap> = Api::namespaced(client, NAMESPACE);
        let map = maps.get(INFORMATION).await.map_err(ApiError::request(format!("get the ConfigMap {INFORMATION}")));
        Self::of(&map.map_err(InformationError::Api)?)
    }

    /// Keeps it.
    pub(crate) fn store(&self, layout: &Layout) -> Result<(), NodeFileError> {
        files::write_all(&self.next(layout)?)
    }

    /// The files in which it is kept.
    pub(crate) fn next(&self, layout: &Layout) -> Result<[StagedFile; 2], NodeFileError> {
        let authorities = StagedFile::text(layout.authorities(), &self.authorities, 0o644);
        Ok([authorities, StagedFile::json(layout.information(), &self.cluster)?])
    }

    /// What was kept.
    pub(crate) fn load(layout: &Layout) -> Result<Option<Self>, NodeFileError> {
        let cluster = files::read_json(&layout.information())?;
        let authorities = files::read(&layout.authorities())?;
        Ok(cluster.zip(authorities).map(|(cluster, authorities)| Self { cluster, authorities }))
    }
}
