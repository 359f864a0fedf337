//! The direct path between two workers, and what breaks it.

use std::net::IpAddr;

use keelway_e2e::worker_fleet::TestWorker;
use serde_json::Value;

/// Drops everything between the worker and one address outside the cluster's networks.
const CUT: &str = "nft add table inet cut
nft add chain inet cut in '{ type filter hook input priority -10; }'
nft add chain inet cut out '{ type filter hook output priority -10; }'
nft add rule inet cut in ip saddr ADDRESS drop
nft add rule inet cut out ip daddr ADDRESS drop";

pub(crate) fn is_direct(worker: &TestWorker<'_>, other: &TestWorker<'_>) -> bool {
    path(worker, other).is_some_and(|path| path["state"] == "direct")
}

pub(crate) fn path(worker: &TestWorker<'_>, other: &TestWorker<'_>) -> Option<Value> {
    let address = other.status()["addresses"][0].clone();
    worker.status()["directPaths"].as_array()?.iter().find(|path| path["address"] == address).cloned()
}

pub(crate) fn cut(worker: &TestWorker<'_>, address: IpAddr) {
    let _ = worker.shell(&CUT.replace("ADDRESS", &address.to_string())).succeeded();
}
