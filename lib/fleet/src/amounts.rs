//! Amounts of resources, in thousandths.

use alloc::collections::BTreeMap;

use serde_json::{Map, Value as Json};

use crate::{
    ResourceQuantities,
    quantity::{QuantityRounding, readable, text, thousandths},
};

/// The resource of which every pod needs one.
pub(crate) const PODS: &str = "pods";
/// More than any node has: what is needed if a quantity cannot be read.
const UNREADABLE: i128 = i64::MAX as i128;

/// Amounts of resources by name. A resource that is not named is 0.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ResourceAmounts(BTreeMap<String, i128>);

impl ResourceAmounts {
    /// Reads what is needed. A quantity that cannot be read is more than any node has.
    pub(crate) fn needed(quantities: &Json) -> Self {
        let entries = quantities.as_object().into_iter().flat_map(Map::iter);
        Self(entries.map(|(name, quantity)| (name.clone(), needed(quantity))).collect())
    }

    /// Reads what is there. A quantity that cannot be read is left out.
    #[must_use]
    pub fn available(quantities: &ResourceQuantities) -> Self {
        let entries = quantities.iter();
        let amounts = entries.filter_map(|(name, quantity)| {
            Some((name.clone(), thousandths(quantity, QuantityRounding::Down)?)).filter(|(_, amount)| *amount > 0)
        });
        Self(amounts.collect())
    }

    pub(crate) fn get(&self, resource: &str) -> i128 {
        self.0.get(resource).copied().unwrap_or(0)
    }

    pub(crate) fn set(&mut self, resource: &str, amount: i128) {
        self.0.insert(resource.to_owned(), amount);
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, i128)> {
        self.0.iter().map(|(name, amount)| (name.as_str(), *amount))
    }

    /// Adds amounts.
    pub fn add(&mut self, other: &Self) {
        self.combine(other, |own, other| own + other);
    }

    /// Keeps the larger amount of each resource.
    pub(crate) fn raise(&mut self, other: &Self) {
        self.combine(other, i128::max);
    }

    fn combine(&mut self, other: &Self, with: fn(i128, i128) -> i128) {
        for (name, amount) in &other.0 {
            let own = self.get(name);
            self.set(name, with(own, *amount));
        }
    }

    /// Returns what is left after these amounts. Nothing is less than 0.
    #[must_use]
    pub fn minus(&self, other: &Self) -> Self {
        let left = self.0.iter().map(|(name, amount)| (name.clone(), amount - other.get(name)));
        Self(left.filter(|(_, amount)| *amount > 0).collect())
    }

    pub(crate) fn times(&self, factor: u32) -> Self {
        Self(self.0.iter().map(|(name, amount)| (name.clone(), amount * i128::from(factor))).collect())
    }

    /// Returns how often these amounts are there.
    pub(crate) fn holds(&self, other: &Self) -> u64 {
        let positive = other.0.iter().filter(|(_, amount)| **amount > 0);
        let times = positive.map(|(name, amount)| self.get(name) / amount).min();
        times.map_or(u64::MAX, |times| u64::try_from(times).unwrap_or(0))
    }

    /// Returns each amount rounded up to a power of two.
    pub(crate) fn rounded_up(&self) -> Self {
        let up = |amount: i128| i128::try_from(amount.unsigned_abs().next_power_of_two()).unwrap_or(amount);
        Self(
            self.0
                .iter()
                .filter(|(_, amount)| **amount > 0)
                .map(|(name, amount)| (name.clone(), up(*amount)))
                .collect(),
        )
    }

    /// Returns the largest share of these amounts in others, rounded up. Resources of which the others need nothing do not count.
    pub(crate) fn shares_of(&self, other: &Self) -> u64 {
        let positive = other.0.iter().filter(|(_, amount)| **amount > 0);
        let shares = positive.map(|(name, amount)| (self.get(name) + amount - 1) / amount);
        shares.max().map_or(0, |shares| u64::try_from(shares).unwrap_or(0))
    }

    /// Whether any resource is more than in other amounts.
    pub(crate) fn exceeds(&self, other: &Self) -> bool {
        self.0.iter().any(|(name, amount)| *amount > other.get(name))
    }

    /// Returns the resources that other amounts name.
    pub(crate) fn only(&self, other: &Self) -> Self {
        Self(other.0.keys().map(|name| (name.clone(), self.get(name))).collect())
    }

    /// Returns the amounts as documents have them.
    #[must_use]
    pub fn quantities(&self) -> ResourceQuantities {
        self.0.iter().map(|(name, amount)| (name.clone(), text(*amount))).collect()
    }

    /// Returns the amounts for people, without the number of pods.
    pub(crate) fn readable(&self) -> String {
        let named = self.0.iter().filter(|(name, _)| *name != PODS);
        let parts: Vec<String> = named.map(|(name, amount)| format!("{name} {}", readable(name, *amount))).collect();
        if parts.is_empty() { "no resources".to_owned() } else { parts.join(", ") }
    }
}

fn needed(quantity: &Json) -> i128 {
    let read = match quantity {
        Json::String(text) => thousandths(text, QuantityRounding::Up),
        Json::Number(number) => thousandths(&number.to_string(), QuantityRounding::Up),
        Json::Null | Json::Bool(_) | Json::Array(_) | Json::Object(_) => None,
    };
    read.unwrap_or(UNREADABLE)
}
