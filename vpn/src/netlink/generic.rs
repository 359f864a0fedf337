//! Generic netlink: finds a family by its name.

use netlink_packet_core::{NLM_F_DUMP, NetlinkDeserializable};
use netlink_packet_generic::ctrl::nlas::GenlCtrlAttrs;
use netlink_packet_generic::ctrl::{GenlCtrl, GenlCtrlCmd};
use netlink_packet_generic::{GenlFamily, GenlMessage};
use netlink_packet_wireguard::WireguardMessage;
use netlink_sys::protocols::NETLINK_GENERIC;

use super::{NetlinkError, NetlinkSocket, exchange};

/// A connection to the kernel's WireGuard.
pub(crate) struct WireguardFamily {
    link: NetlinkSocket,
    id: u16,
}

impl WireguardFamily {
    /// Finds the family. Returns `Missing` if the kernel has no WireGuard.
    pub(crate) fn open() -> Result<Self, NetlinkError> {
        let link = NetlinkSocket::open(NETLINK_GENERIC)?;
        let name = WireguardMessage::family_name();
        let request = GenlMessage::from_payload(GenlCtrl {
            cmd: GenlCtrlCmd::GetFamily,
            nlas: vec![GenlCtrlAttrs::FamilyName(name.to_owned())],
        });
        let answers = exchange(&link, "find the netlink family wireguard", 0, request).map_err(|error| {
            let is_unknown = error.errno() == Some(rustix::io::Errno::NOENT.raw_os_error());
            if is_unknown { NetlinkError::Missing(name.to_owned()) } else { error }
        })?;
        let id = answers
            .iter()
            .flat_map(|answer| &answer.payload.nlas)
            .find_map(|attribute| if let GenlCtrlAttrs::FamilyId(id) = attribute { Some(*id) } else { None });
        let id = id.ok_or_else(|| NetlinkError::Missing(name.to_owned()))?;
        Ok(Self { link, id })
    }

    /// Requests a device. The kernel answers with as many messages as it needs.
    pub(crate) fn get(&self, request: WireguardMessage) -> Result<Vec<WireguardMessage>, NetlinkError> {
        self.exchange("get a WireGuard device", NLM_F_DUMP, request)
    }

    /// Changes a device.
    pub(crate) fn set(&self, request: WireguardMessage) -> Result<(), NetlinkError> {
        self.exchange("set a WireGuard device", 0, request).map(drop)
    }

    fn exchange(
        &self,
        operation: &'static str,
        flags: u16,
        request: WireguardMessage,
    ) -> Result<Vec<WireguardMessage>, NetlinkError>
    where
        GenlMessage<WireguardMessage>: NetlinkDeserializable,
    {
        let mut message = GenlMessage::from_payload(request);
        message.set_resolved_family_id(self.id);
        let answers = exchange(&self.link, operation, flags, message)?;
        Ok(answers.into_iter().map(|answer| answer.payload).collect())
    }
}
