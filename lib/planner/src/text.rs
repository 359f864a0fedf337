//! Parts of texts for people.

use alloc::{
    format,
    string::{String, ToString},
    vec::Vec,
};
use core::net::IpAddr;

use keelway_api::hypervisor::HypervisorRole;

/// `1 component`, `2 components`, `no components`.
pub(crate) fn count(number: usize, noun: &str) -> String {
    match number {
        0 => format!("no {noun}s"),
        1 => format!("1 {noun}"),
        _ => format!("{number} {noun}s"),
    }
}

/// `a, b, c`, with this separator.
pub(crate) fn joined(names: impl IntoIterator<Item = impl ToString>, separator: &str) -> String {
    names.into_iter().map(|name| name.to_string()).collect::<Vec<_>>().join(separator)
}

/// The highest number of names in a text.
const NAMED: usize = 6;

/// `a, b and 3 more`.
pub(crate) fn listed(names: impl ExactSizeIterator<Item = impl ToString>) -> String {
    let more = names.len().saturating_sub(NAMED);
    let told = joined(names.take(NAMED), ", ");
    if more == 0 { told } else { format!("{told} and {more} more") }
}

pub(crate) fn kind_of_machine(kind: HypervisorRole) -> &'static str {
    match kind {
        HypervisorRole::Public => "public",
        HypervisorRole::Private => "private",
    }
}

/// `https://ADDRESS:PORT`. An IPv6 address is in brackets.
pub(crate) fn url(address: &IpAddr, port: u16) -> String {
    format!("https://{}", core::net::SocketAddr::new(*address, port))
}
