//! The ids that etcd assigns to the members of a static initial cluster and to the cluster: hashes of the arguments of the first start
//! (`computeMemberID` and `genID` in `server/etcdserver/api/membership` of etcd 3.4 to 3.7).

use alloc::{collections::BTreeSet, string::String, vec::Vec};

use sha1::{Digest, Sha1};

/// The id of a member with these peer URLs and this token.
pub(crate) fn member(peer_urls: &[String], token: &str) -> u64 {
    let sorted: BTreeSet<&String> = peer_urls.iter().collect();
    let mut hash = Sha1::new();
    for url in sorted {
        hash.update(url);
    }
    hash.update(token);
    first_bytes(hash)
}

/// The id of the cluster whose first members have these ids.
pub(crate) fn cluster(members: impl IntoIterator<Item = u64>) -> u64 {
    let mut sorted: Vec<u64> = members.into_iter().collect();
    sorted.sort_unstable();
    let mut hash = Sha1::new();
    for id in sorted {
        hash.update(id.to_be_bytes());
    }
    first_bytes(hash)
}

fn first_bytes(hash: Sha1) -> u64 {
    let digest = hash.finalize();
    digest.iter().take(8).fold(0, |id, byte| id << 8 | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use alloc::{format, string::ToString};

    use super::*;

    /// The expected ids are those that etcd 3.7.0 assigned to three members with these arguments.
    #[test]
    fn ids_are_those_of_etcd() {
        let ids = [42380, 42381, 42382].map(|port| member(&[format!("http://127.0.0.1:{port}")], "0123456789abcdef"));
        assert_eq!(ids.map(|id| format!("{id:x}")), ["f510c406db03c6eb", "44eb1210b67572b6", "1d1ee60e16ddf206"]);
        assert_eq!(format!("{:x}", cluster(ids)), "aedc1242907bfc0");
    }

    #[test]
    fn the_order_of_urls_does_not_matter() {
        let urls = ["https://[fd00::1]:20001", "https://10.0.0.1:20001"].map(ToString::to_string);
        let [a, b] = &urls;
        assert_eq!(member(&urls, "t"), member(&[b.clone(), a.clone()], "t"));
    }
}
