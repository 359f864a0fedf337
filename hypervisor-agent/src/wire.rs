//! Configs and states as they go over the wire and to disk. Both ways are exact: what comes back has the same digest.

mod config;
mod event;
mod state;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

#[cfg(feature = "testing")]
use keelway_api::machine::MachineState;
use keelway_api::{
    machine::{FormatRange, MachineConfig, PodDigests},
    name::{NameError, PodName},
};
use prost::Message;

use crate::proto;

pub(crate) use config::{RevisedConfig, read as read_config};

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
    /// A config of a newer release.
    #[error("the config has format {format}, and this agent understands {known}: upgrade keelway-hypervisor-agent")]
    Format {
        /// That of the config.
        format: u32,
        /// Those that are known here.
        known: FormatRange,
    },
}

/// A config as bytes, with the digests that this side makes of it.
#[must_use]
pub fn encode_config(config: &MachineConfig) -> Vec<u8> {
    encode_stored((config, &config.pod_digests()), &config.digest())
}

/// A config from bytes.
pub fn decode_config(bytes: &[u8]) -> Result<MachineConfig, WireError> {
    proto::MachineConfig::decode(bytes)?.try_into()
}

/// A config and its digest, from an `ApplyRequest` without pods that are the same as before.
#[cfg(feature = "testing")]
pub fn decode_request(bytes: &[u8]) -> Result<(MachineConfig, String), WireError> {
    let proto::ApplyRequest { config, digest, same: _ } = proto::ApplyRequest::decode(bytes)?;
    Ok((config.ok_or(WireError::Missing("the config"))?.try_into()?, digest))
}

/// A machine's state, from a `MachineState`.
#[cfg(feature = "testing")]
pub fn decode_state(bytes: &[u8]) -> Result<MachineState, WireError> {
    proto::MachineState::decode(bytes)?.try_into()
}

/// A config as it is kept on disk, with all that its driver made of it.
pub(crate) fn encode_stored(
    (config, digests): (&MachineConfig, &BTreeMap<PodName, PodDigests>),
    digest: &str,
) -> Vec<u8> {
    let config = proto::MachineConfig::from(RevisedConfig { config, digests });
    proto::MachineConfig { digest: digest.to_owned(), ..config }.encode_to_vec()
}

/// A config from disk, the digests of its pods, and its own one, which v0.1.0 kept elsewhere.
#[expect(clippy::type_complexity, reason = "a config in three parts")]
pub(crate) fn decode_stored(
    bytes: &[u8],
) -> Result<(MachineConfig, BTreeMap<PodName, PodDigests>, Option<String>), WireError> {
    let mut config = proto::MachineConfig::decode(bytes)?;
    let digest = Some(std::mem::take(&mut config.digest)).filter(|digest| !digest.is_empty());
    let (config, digests) = read_config(config)?;
    Ok((config, digests, digest))
}

/// Pods that stay as they are, with the digests of their content.
pub(crate) fn same_pods(pods: Vec<proto::SamePod>) -> Result<BTreeMap<PodName, Vec<u8>>, WireError> {
    pods.into_iter().map(|proto::SamePod { name, digest }| Ok((pod_name(name)?, digest))).collect()
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
