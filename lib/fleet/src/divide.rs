//! Divides replicas by the method of the largest remainder. The sum is always kept.

use core::cmp::Reverse;

/// One part of a division.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DivisionPart {
    /// The weight.
    pub weight: u32,
    /// The replicas that the part has now.
    pub current: u32,
}

/// Returns the replicas of each part. With no weight at all, every part is equal. Without parts, the result is empty.
///
/// Each part has its quota rounded down. The rest goes to the parts with the largest remainder, one each. Of equal remainders, those parts come first
/// that have such a replica now; then those with more weight; then the first. With unequal weights, a part can shrink when the total grows.
#[must_use]
pub fn divide(total: u32, parts: &[DivisionPart]) -> Vec<u32> {
    let is_unweighted = parts.iter().all(|part| part.weight == 0);
    let weight = |part: &DivisionPart| if is_unweighted { 1 } else { u64::from(part.weight) };
    let whole: u64 = parts.iter().map(weight).sum();
    // Without parts, nothing is divided by it.
    let whole = whole.max(1);
    let product = |part: &DivisionPart| u64::from(total) * weight(part);
    let floor = |part: &DivisionPart| u32::try_from(product(part) / whole).unwrap_or(total);
    let mut replicas: Vec<u32> = parts.iter().map(floor).collect();
    let rest = total - replicas.iter().sum::<u32>();
    let mut order: Vec<usize> = (0..parts.len()).filter(|&index| weight(&parts[index]) > 0).collect();
    order.sort_by_key(|&index| {
        let part = &parts[index];
        let keeps = part.current > replicas[index];
        (Reverse(product(part) % whole), Reverse(keeps), Reverse(part.weight), index)
    });
    for index in order.into_iter().take(rest as usize) {
        replicas[index] += 1;
    }
    replicas
}
