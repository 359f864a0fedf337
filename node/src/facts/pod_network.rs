//! Observes what decides on the network of pods.

use std::{collections::BTreeSet, fs, net::IpAddr, path::Path};

use keelway_vpn::netlink::interface::Interface;

use crate::{changes::BRIDGE, checks::PodNetworkFacts};

/// The extensions of the files that containerd reads.
const EXTENSIONS: [&str; 3] = ["conf", "conflist", "json"];

/// Observes the CNI configurations in a directory, and the bridge of pods.
pub(crate) fn pod_network(directory: &Path) -> PodNetworkFacts {
    PodNetworkFacts { directory: directory.to_owned(), files: configurations(directory), bridge: bridge() }
}

fn configurations(directory: &Path) -> BTreeSet<String> {
    let is_read = |entry: &fs::DirEntry| {
        let path = entry.path();
        let extension = path.extension().and_then(|extension| extension.to_str());
        extension.is_some_and(|extension| EXTENSIONS.contains(&extension))
            && entry.file_type().is_ok_and(|kind| !kind.is_dir())
    };
    let entries = fs::read_dir(directory).into_iter().flatten().flatten().filter(is_read);
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

fn bridge() -> BTreeSet<IpAddr> {
    let addresses = Interface::find(BRIDGE).and_then(|bridge| bridge.addresses()).unwrap_or_default();
    // Every interface has a link-local address of IPv6.
    let is_link_local = |address: &IpAddr| matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local());
    addresses.into_iter().filter(|address| !is_link_local(address)).collect()
}

#[cfg(test)]
mod tests {
    use rustix::thread::UnshareFlags;

    use super::*;
    use crate::isolated::{run, within};

    #[test]
    fn only_files_that_containerd_reads_are_listed() {
        let directory = tempfile::tempdir().unwrap();
        for file in ["10-a.conflist", "20-b.conf", "30-c.json", "40-d.conflist.bak", ".keep"] {
            fs::write(directory.path().join(file), "").unwrap();
        }
        fs::create_dir(directory.path().join("50-e.conf")).unwrap();
        let found: Vec<String> = configurations(directory.path()).into_iter().collect();
        assert_eq!(found, ["10-a.conflist", "20-b.conf", "30-c.json"]);
        assert!(configurations(&directory.path().join("none")).is_empty());
    }

    #[test]
    fn the_addresses_of_the_bridge_are_listed() {
        within(UnshareFlags::NEWNET, || {
            assert!(bridge().is_empty());
            run("ip", &["link", "add", BRIDGE, "type", "bridge"]);
            run("ip", &["link", "set", BRIDGE, "up"]);
            run("ip", &["address", "add", "10.88.0.1/16", "dev", BRIDGE]);
            assert_eq!(bridge(), ["10.88.0.1".parse().unwrap()].into());
        });
    }
}
