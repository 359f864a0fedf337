//! The kernel's WireGuard, by netlink.

mod messages;

use crate::data_path::{DataPath, DataPathError, DataPathKind};
use crate::device::DeviceConfig;
use crate::netlink::NetlinkError;
use crate::netlink::generic::WireguardFamily;
use crate::netlink::interface::Interface;
use crate::peers::{PeerChange, PeerSet, plan_changes};
use crate::stats::PeerStats;

/// An interface of the kernel's WireGuard, made here. It is taken away when it is dropped.
pub struct KernelDevice {
    name: String,
    interface: Interface,
    family: WireguardFamily,
    /// As asked for: the kernel tells where peers are, not where they were said to be.
    seen: PeerSet,
}

impl KernelDevice {
    /// Makes the interface. `Missing`, or a refusal with EOPNOTSUPP, where the kernel has no WireGuard.
    pub fn create(config: &DeviceConfig) -> Result<Self, NetlinkError> {
        let (interface, name) = Interface::create_wireguard(&config.name)?;
        // From here on, whatever fails takes the interface away again.
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
            tracing::warn!(name = self.name, %error, "the interface stays");
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
