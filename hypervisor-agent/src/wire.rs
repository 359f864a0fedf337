//! Configs and states as they go over the wire and to disk. Both ways are exact: what comes back has the same digest.

mod config;
mod event;
mod state;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use keelway_api::{
    machine::{Digest, MachineConfig},
    name::{NameError, PodName},
};
use prost::Message;

use crate::proto;

/// Why a message means nothing to this side.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// The bytes are no message of this kind.
    #[error("the bytes are not what they should be")]
    Decode(#[from] prost::DecodeError),
    /// A field that has to be there is not, or has a value that is not known here.
    #[error("{0} is missing, or of a newer version than this program")]
    Missing(&'static str),
    /// A name or id is none.
    #[error("a name is none")]
    Name(#[from] NameError),
    /// An address is none.
    #[error("an address is none")]
    Address(#[from] std::net::AddrParseError),
    /// A number does not fit.
    #[error("{0} is out of range")]
    Range(&'static str),
}

/// A config as bytes.
#[must_use]
pub fn encode_config(config: &MachineConfig) -> Vec<u8> {
    proto::MachineConfig::from(config).encode_to_vec()
}

/// A config from bytes.
pub fn decode_config(bytes: &[u8]) -> Result<MachineConfig, WireError> {
    proto::MachineConfig::decode(bytes)?.try_into()
}

/// Pods that stay as they are, with the digests of their content.
pub(crate) fn same_pods(pods: Vec<proto::SamePod>) -> Result<BTreeMap<PodName, Digest>, WireError> {
    let same = |proto::SamePod { name, digest }| {
        let digest = digest.try_into().map_err(|_| WireError::Range("the digest of a pod"))?;
        Ok((pod_name(name)?, digest))
    };
    pods.into_iter().map(same).collect()
}

impl From<&PodName> for proto::PodName {
    fn from(name: &PodName) -> Self {
        Self { cluster: name.cluster.to_string(), component: name.component.to_string() }
    }
}

impl TryFrom<proto::PodName> for PodName {
    type Error = WireError;

    fn try_from(name: proto::PodName) -> Result<Self, WireError> {
        Ok(Self { cluster: name.cluster.parse()?, component: name.component.parse()? })
    }
}

fn pod_name(name: Option<proto::PodName>) -> Result<PodName, WireError> {
    name.ok_or(WireError::Missing("the name of a pod"))?.try_into()
}

fn all<T, U: TryFrom<T, Error = WireError>>(items: Vec<T>) -> Result<Vec<U>, WireError> {
    items.into_iter().map(TryInto::try_into).collect()
}
