//! [`MachineEvent`].

use keelway_api::{jiff::Timestamp, machine::MachineEvent};

use super::WireError;
use crate::proto;

impl From<&MachineEvent> for proto::MachineEvent {
    fn from(event: &MachineEvent) -> Self {
        Self {
            pod: event.pod.as_ref().map(Into::into),
            container: event.container.clone(),
            warning: event.warning,
            reason: event.reason.clone(),
            message: event.message.clone(),
            count: event.count,
            first: event.first.to_string(),
            last: event.last.to_string(),
        }
    }
}

impl TryFrom<proto::MachineEvent> for MachineEvent {
    type Error = WireError;

    fn try_from(event: proto::MachineEvent) -> Result<Self, WireError> {
        let time = |text: &str| text.parse::<Timestamp>().map_err(|_| WireError::Range("a time"));
        Ok(Self {
            pod: event.pod.map(TryInto::try_into).transpose()?,
            container: event.container,
            warning: event.warning,
            reason: event.reason,
            message: event.message,
            count: event.count,
            first: time(&event.first)?,
            last: time(&event.last)?,
        })
    }
}
