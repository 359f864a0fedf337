//! Addresses of the worker's pod ranges that no pod gets.

use std::{
    fs,
    io::{self, Write},
    net::IpAddr,
    path::{Path, PathBuf},
};

use ipnet::IpNet;

use super::PodProbeError;

/// Where the plugin `host-local` has a file for each address in use, with the container and its interface.
pub(super) const ADDRESSES: &str = "/var/lib/cni/networks/keelway";
const OWNER: &str = "keelway-node\neth0";
/// The number of addresses that are tried, from the end of the range: the plugin assigns those at the beginning first.
const TRIED: u8 = 8;

/// An address that is reserved until this is dropped.
#[derive(Debug)]
pub(super) struct ReservedAddress {
    file: PathBuf,
    pub(super) address: IpAddr,
}

impl ReservedAddress {
    /// Reserves one of the last addresses of a range, or the one that a daemon that was killed had reserved.
    pub(super) fn take(directory: &Path, range: &IpNet, gateway: IpAddr) -> Result<Self, PodProbeError> {
        for address in last_addresses(range).filter(|address| *address != gateway) {
            let file = directory.join(address.to_string());
            let failed = |source| PodProbeError::Reserve { directory: directory.display().to_string(), source };
            if reserve(&file).map_err(failed)? {
                return Ok(Self { file, address });
            }
        }
        Err(PodProbeError::NoAddress(*range))
    }
}

impl Drop for ReservedAddress {
    fn drop(&mut self) {
        // A file that stays reserves the address for the next daemon.
        let _ = fs::remove_file(&self.file);
    }
}

/// Returns whether the address is the worker's now.
fn reserve(file: &Path) -> io::Result<bool> {
    match fs::File::create_new(file) {
        Ok(mut created) => created.write_all(OWNER.as_bytes()).map(|()| true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            Ok(fs::read_to_string(file).is_ok_and(|owner| owner == OWNER))
        }
        Err(error) => Err(error),
    }
}

/// Returns the last addresses that pods can have, the last one first.
fn last_addresses(range: &IpNet) -> impl Iterator<Item = IpAddr> {
    let (range, last) = (*range, range.broadcast());
    let before = move |steps: u8| match last {
        IpAddr::V4(last) => last.to_bits().checked_sub(steps.into()).map(|bits| IpAddr::V4(bits.into())),
        IpAddr::V6(last) => last.to_bits().checked_sub(steps.into()).map(|bits| IpAddr::V6(bits.into())),
    };
    (1..=TRIED).filter_map(before).filter(move |address| range.contains(address) && *address != range.network())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_of_a_pod_is_not_used() {
        let directory = tempfile::tempdir().unwrap();
        let take = |range: &str, gateway: &str| {
            ReservedAddress::take(directory.path(), &range.parse().unwrap(), gateway.parse().unwrap())
        };
        fs::write(directory.path().join("10.244.3.254"), "0123\neth0").unwrap();
        let first = take("10.244.3.0/24", "10.244.3.1").unwrap();
        assert_eq!(first.address.to_string(), "10.244.3.253");
        assert_eq!(fs::read_to_string(directory.path().join("10.244.3.253")).unwrap(), OWNER);
        std::mem::forget(first);
        let again = take("10.244.3.0/24", "10.244.3.1").unwrap();
        assert_eq!(again.address.to_string(), "10.244.3.253", "of a daemon that was killed");
        drop(again);
        assert!(!directory.path().join("10.244.3.253").exists());
        assert_eq!(take("fd01:3::/80", "fd01:3::1").unwrap().address.to_string(), "fd01:3::ffff:ffff:fffe");
        assert!(
            matches!(take("10.244.3.0/30", "10.244.3.1").map(|taken| taken.address), Ok(address) if address.to_string() == "10.244.3.2")
        );
        assert!(matches!(take("10.244.3.0/31", "10.244.3.0"), Err(PodProbeError::NoAddress(_))));
    }
}
