//! Configs and states as they are sent and stored. The conversion is exact: what is decoded has the same digest.

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

pub use config::{RevisedConfig, read as read_config};

/// A message cannot be decoded.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// The bytes are not a message of this type.
    #[error("the bytes cannot be decoded")]
    Decode(#[from] prost::DecodeError),
    /// A required field is missing, or has an unknown value.
    #[error("{0} is missing, or newer than this program supports")]
    Missing(&'static str),
    /// A name or id is invalid.
    #[error("a name is not valid")]
    Name(#[from] NameError),
    /// An address is invalid.
    #[error("an address is not valid")]
    Address(#[from] std::net::AddrParseError),
    /// A number is out of range.
    #[error("{0} is out of range")]
    Range(&'static str),
    /// The config is of a newer release.
    #[error("the config has format {format}, but this agent supports {known}: upgrade keelway-hypervisor-agent")]
    Format {
        /// The format of the config.
        format: u32,
        /// The formats that this program understands.
        known: FormatRange,
    },
}

/// Encodes a config, with digests that are computed here.
#[must_use]
pub fn encode_config(config: &MachineConfig) -> Vec<u8> {
    encode_stored((config, &config.pod_digests()), &config.digest())
}

/// Decodes a config.
pub fn decode_config(bytes: &[u8]) -> Result<MachineConfig, WireError> {
    proto::MachineConfig::decode(bytes)?.try_into()
}

/// Decodes the config and the digest of an `ApplyRequest`. Ignores the unchanged pods.
#[cfg(feature = "testing")]
pub fn decode_request(bytes: &[u8]) -> Result<(MachineConfig, String), WireError> {
    let proto::ApplyRequest { config, digest, same: _ } = proto::ApplyRequest::decode(bytes)?;
    Ok((config.ok_or(WireError::Missing("the config"))?.try_into()?, digest))
}

/// Decodes a machine's state from a `MachineState`.
#[cfg(feature = "testing")]
pub fn decode_state(bytes: &[u8]) -> Result<MachineState, WireError> {
    proto::MachineState::decode(bytes)?.try_into()
}

/// Encodes a config for the disk, with the digests that its driver computed.
#[must_use]
pub fn encode_stored((config, digests): (&MachineConfig, &BTreeMap<PodName, PodDigests>), digest: &str) -> Vec<u8> {
    let config = proto::MachineConfig::from(RevisedConfig { config, digests });
    proto::MachineConfig { digest: digest.to_owned(), ..config }.encode_to_vec()
}

/// Decodes a config from disk, with the digests of its pods and of itself. The latter is `None` for a config of v0.1.0, which stored it elsewhere.
#[expect(clippy::type_complexity, reason = "a config in three parts")]
pub fn decode_stored(
    bytes: &[u8],
) -> Result<(MachineConfig, BTreeMap<PodName, PodDigests>, Option<String>), WireError> {
    let mut config = proto::MachineConfig::decode(bytes)?;
    let digest = Some(std::mem::take(&mut config.digest)).filter(|digest| !digest.is_empty());
    let (config, digests) = read_config(config)?;
    Ok((config, digests, digest))
}

/// Decodes the unchanged pods, with the digests of their content.
pub fn same_pods(pods: Vec<proto::SamePod>) -> Result<BTreeMap<PodName, Vec<u8>>, WireError> {
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
