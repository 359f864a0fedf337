//! A NAT that keeps source ports and drops unexpected packets, as most home routers do.

use std::{path::Path, process::Command};

use keelway_e2e::{command::run, deadline, worker_fleet::WorkerFleet};

/// Without the chain `input`, the router itself would answer the first packet of the other end. Its connection tracking then has an entry for the
/// port, and the worker's own packets leave from another one.
pub(crate) const RULES: &str = "nft 'flush ruleset
table ip home {
    chain postrouting { type nat hook postrouting priority srcnat; oifname outside masquerade; }
    chain forward {
        type filter hook forward priority filter; policy drop;
        iifname inside accept
        ct state established,related accept
    }
    chain input { type filter hook input priority filter; iifname outside ct state new drop; }
}'";

/// Makes a NAT of the workers a home router. Connections through it go on.
pub(crate) fn make(worker_fleet: &WorkerFleet, nat: &str) {
    set(worker_fleet, nat, RULES);
}

/// Replaces the rules of a NAT.
pub(crate) fn set(worker_fleet: &WorkerFleet, nat: &str, rules: &str) {
    let router = Path::new("/run/keelway-local").join(&worker_fleet.fleet.fleet).join(format!("nat-{nat}/net"));
    let inside = format!("--net={}", router.display());
    let _ = run(Command::new("nsenter").args([&inside, "sh", "-ec", rules]), &[], deadline::READ).succeeded();
}
