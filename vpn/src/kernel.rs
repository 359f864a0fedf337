//! The kernel's WireGuard, over netlink.

mod messages;

use crate::data_path::{DataPath, DataPathError, DataPathKind};
use crate::device::DeviceConfig;
use crate::netlink::NetlinkError;
use crate::netlink::generic::WireguardFamily;
use crate::netlink::interface::Interface;
use crate::peers::{PeerChange, PeerSet, plan_changes};
use crate::stats::PeerStats;

/// An interface of the kernel's WireGuard that this process creates. It is deleted when it is dropped.
pub struct KernelDevice {
    name: String,
    interface: Interface,
    family: WireguardFamily,
    /// The peers as they were last set. The kernel reports current endpoints, not configured ones.
    seen: PeerSet,
}

impl KernelDevice {
    /// Creates the interface. If the kernel has no WireGuard, it returns `Missing` or a refusal with EOPNOTSUPP.
    pub fn create(config: &DeviceConfig) -> Result<Self, NetlinkError> {
        let (interface, name) = Interface::create_wireguard(&config.name)?;
        // From here on, any error deletes the interface.
        let created = CreatedInterface(Some(interface));
        let family = WireguardFamily::open()?;
        for message in messages::configure(&name, config) {
            family.set(message)?;
        }
        let interface = created.into_interface().ok_or_else(|| NetlinkError::Missing(name.clone()))?;
        Ok(Self { name, interface, family, seen: PeerSet::default() })
    }
}

struct CreatedInterface(Option<Interface>);

impl CreatedInterface {
    fn into_interface(mut self) -> Option<Interface> {
        self.0.take()
    }
}

impl Drop for CreatedInterface {
    fn drop(&mut self) {
        if let Some(interface) = &self.0 {
            let _ = interface.delete();
        }
    }
}

impl Drop for KernelDevice {
    fn drop(&mut self) {
        if let Err(error) = self.interface.delete() {
            tracing::warn!(name = self.name, %error, "cannot delete the interface");
        }
    }
}

impl DataPath for KernelDevice {
    fn kind(&self) -> DataPathKind {
        DataPathKind::Kernel
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn set_peers(&mut self, wanted: &PeerSet) -> Result<Vec<PeerChange>, DataPathError> {
        let changes = plan_changes(&self.seen, wanted);
        for message in messages::change(&self.name, &changes) {
            self.family.set(message).map_err(DataPathError::Kernel)?;
        }
        for change in &changes {
            self.seen.apply(change);
        }
        Ok(changes)
    }

    fn stats(&mut self) -> Result<Vec<PeerStats>, DataPathError> {
        let request = messages::get(&self.name);
        let answers = self.family.get(request).map_err(DataPathError::Kernel)?;
        Ok(messages::stats(&answers))
    }
}
