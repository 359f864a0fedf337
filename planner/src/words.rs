//! Words that texts for people share.

use alloc::{format, string::String};

use keelway_api::hypervisor::HypervisorRole;

/// `1 component`, `2 components`, `no components`.
pub(crate) fn count(number: usize, noun: &str) -> String {
    match number {
        0 => format!("no {noun}s"),
        1 => format!("1 {noun}"),
        _ => format!("{number} {noun}s"),
    }
}

/// A kind of machine, inside a sentence.
pub(crate) fn kind_of_machine(kind: HypervisorRole) -> &'static str {
    match kind {
        HypervisorRole::Public => "public",
        HypervisorRole::Private => "private",
    }
}
