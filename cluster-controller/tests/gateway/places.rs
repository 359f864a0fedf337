//! Addresses to which a URL must not lead, with servers that listen there.

use crate::daemon::Daemon;
use crate::ports::Ports;
use crate::support::Namespace;

/// A hypervisor, the loopback of the machine that dials, and the metadata service of a cloud.
const PLACES: [&str; 3] = ["10.231.0.20", "127.0.0.1", METADATA];
const METADATA: &str = "169.254.169.254";

/// The first port of each kind of server that is called by URL. It is the port at the hypervisor. The other places have the next ports.
pub(crate) const WEBHOOKS: u16 = 7010;
pub(crate) const ISSUERS: u16 = 7020;
pub(crate) const CONVERSIONS: u16 = 7030;
pub(crate) const KINDS: [u16; 3] = [WEBHOOKS, ISSUERS, CONVERSIONS];

/// Returns host and port of each place.
pub(crate) fn places(kind: u16) -> Vec<String> {
    PLACES.iter().zip(kind..).map(|(host, port)| format!("{host}:{port}")).collect()
}

pub(crate) fn urls(kind: u16) -> Vec<String> {
    places(kind).iter().map(|place| format!("https://{place}/")).collect()
}

/// Listens at the places that every machine has itself.
pub(crate) fn of_itself(machine: &Namespace) -> Ports {
    machine.ip(&["addr", "add", &format!("{METADATA}/32"), "dev", "lo"]);
    Ports::listen(machine, KINDS.into_iter().flat_map(|kind| [kind + 1, kind + 2]))
}

/// Returns whether the program received a request for each place, and refused it.
pub(crate) fn are_refused(daemon: &Daemon, places: &[String]) -> bool {
    let log = daemon.process.as_ref().unwrap().log();
    places.iter().all(|place| log.lines().any(|line| line.contains("refused") && line.contains(&quoted(place))))
}

fn quoted(place: &str) -> String {
    format!("\"{place}\"")
}
