//! Addresses in a Hypervisor that no interface of its machine has.

use alloc::{format, string::String, vec::Vec};

use keelway_api::{
    condition::{ConditionStatus, ConditionValue, reason::ConditionReason},
    hypervisor::Addresses,
    machine::MachineState,
};

use crate::{text::joined, verdict::verdict};

/// The condition of a Hypervisor. It exists only while components could not listen on an address.
pub(crate) const ADDRESSES_FOUND: &str = "AddressesFound";

/// Returns the condition if an address on which components listen is on no interface. A machine that reports no addresses has none missing.
pub(crate) fn absent_addresses(addresses: &Addresses, state: &MachineState) -> Option<ConditionValue> {
    let of_ingresses =
        if addresses.bind.is_empty() { ("public", &addresses.public) } else { ("bind", &addresses.bind) };
    let listed = [("private", &addresses.private), of_ingresses];
    let listed =
        listed.into_iter().flat_map(|(field, addresses)| addresses.iter().map(move |address| (field, address)));
    let is_absent = |(_, address): &(&str, &String)| {
        address.parse().is_ok_and(|address| !state.addresses.is_empty() && !state.addresses.contains(&address))
    };
    let absent: Vec<String> =
        listed.filter(is_absent).map(|(field, address)| format!("{address} of spec.addresses.{field}")).collect();
    (!absent.is_empty()).then(|| {
        let message = format!("no interface of the machine has {}", joined(absent, ", "));
        verdict(ConditionStatus::False, ConditionReason::AddressNotFound, message)
    })
}
