//! Settings of each interface. A new interface gets the default of the machine, and other programs, such as udev with `sysctl.d`, may change them
//! at any time.

use std::fs;

use super::{change, file, read, write};
use crate::{changes::BRIDGE, facts, files::NodeFileError, settings::Layout, tunnels};

/// The directory with the settings of each interface.
const INTERFACES: &str = "net/ipv4/conf";
/// A loose `rp_filter`: accepts responses through another tunnel than the request's. The kernel uses the larger one of this value and that of `all`.
const LOOSE: &str = "2";

/// Lets packets from pods, tunnels and uplinks be forwarded, and responses arrive through any tunnel. The worker's own interfaces disappear when it
/// leaves, so only changes of uplinks are recorded.
pub(super) fn set(layout: &Layout) -> Result<(), NodeFileError> {
    for name in own_interfaces() {
        set_present(&format!("{INTERFACES}/{name}/forwarding"), "1")?;
        if name != BRIDGE {
            set_present(&format!("{INTERFACES}/{name}/rp_filter"), LOOSE)?;
        }
    }
    facts::uplinks().iter().try_for_each(|name| change(layout, &format!("{INTERFACES}/{name}/forwarding"), "1"))
}

fn own_interfaces() -> impl Iterator<Item = String> {
    let names = fs::read_dir(file(INTERFACES)).into_iter().flatten().flatten();
    let names = names.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name == BRIDGE || name.starts_with(tunnels::INTERFACE))
}

/// Sets a setting of an interface, which may disappear meanwhile.
fn set_present(name: &str, wanted: &str) -> Result<(), NodeFileError> {
    if read(name).is_none_or(|found| found == wanted) {
        return Ok(());
    }
    tracing::info!(setting = name, wanted, "restoring a kernel setting that another program changed");
    match write(name, wanted) {
        Err(_) if !file(name).exists() => Ok(()),
        written => written,
    }
}

#[cfg(test)]
mod tests {
    use rustix::thread::UnshareFlags;

    use super::*;
    use crate::{
        changes::Changes,
        isolated::{run, within},
    };

    #[test]
    fn settings_of_new_and_changed_interfaces_are_restored() {
        within(UnshareFlags::NEWNET, || {
            let state = tempfile::tempdir().unwrap();
            let layout = Layout::new(state.path());
            write("net/ipv4/conf/default/forwarding", "0").unwrap();
            write("net/ipv4/conf/default/rp_filter", "1").unwrap();
            for name in ["eth0", "eth1", "cni0", "keelway3"] {
                run("ip", &["link", "add", name, "type", "bridge"]);
            }
            run("ip", &["address", "add", "192.0.2.2/24", "dev", "eth0"]);
            run("ip", &["link", "set", "eth0", "up"]);
            run("ip", &["route", "add", "default", "via", "192.0.2.1"]);
            set(&layout).unwrap();
            let value = |name: &str| read(&format!("net/ipv4/conf/{name}")).unwrap();
            let forwarding = ["eth0", "eth1", "cni0", "keelway3"].map(|name| value(&format!("{name}/forwarding")));
            assert_eq!(forwarding, ["1", "0", "1", "1"]);
            let filters = ["eth0", "cni0", "keelway3"].map(|name| value(&format!("{name}/rp_filter")));
            assert_eq!(filters, ["1", "1", "2"]);
            let changed = Changes::read(&layout).unwrap().sysctls;
            assert_eq!(
                changed.into_iter().collect::<Vec<_>>(),
                [("net/ipv4/conf/eth0/forwarding".to_owned(), "0".to_owned())]
            );
            write("net/ipv4/conf/keelway3/rp_filter", "1").unwrap();
            set(&layout).unwrap();
            assert_eq!(value("keelway3/rp_filter"), "2");
        });
    }
}
