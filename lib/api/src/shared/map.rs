//! Shared values by name, in leaves that copies of a map share. Changing a value copies its leaf and the list of leaves.
//!
//! The map is a tree of two levels. With `n` values, a lookup is two binary searches and a copy is constant. A change costs about `n / 64` reference
//! counts and the names of one leaf, whereas a `BTreeMap` copies everything. A comparison skips the parts that two maps share.

use core::{
    fmt,
    iter::FlatMap,
    ops::{Bound, Index, RangeBounds, RangeFrom},
    slice,
};
use std::{borrow::Borrow, collections::BTreeMap};

use super::Shared;

/// The maximum number of entries of a leaf. A leaf with more is split into two.
const MOST: usize = 64;

type Leaf<K, V> = Vec<(K, Shared<V>)>;

/// Shared values by name. Copies of the map share what none of them has changed.
pub struct Map<K, V> {
    /// No leaf is empty. Names ascend within a leaf and from one leaf to the next.
    leaves: Shared<Vec<Shared<Leaf<K, V>>>>,
}

/// The position of an entry, or the position to insert it: the index of its leaf, and its index there.
type LeafPosition = Result<(usize, usize), (usize, usize)>;

/// An iterator over the entries of a map, in the order of names.
pub type Iter<'a, K, V> = FlatMap<
    slice::Iter<'a, Shared<Leaf<K, V>>>,
    core::iter::Map<slice::Iter<'a, (K, Shared<V>)>, fn(&'a (K, Shared<V>)) -> (&'a K, &'a Shared<V>)>,
    fn(&'a Shared<Leaf<K, V>>) -> LeafEntries<'a, K, V>,
>;

type LeafEntries<'a, K, V> =
    core::iter::Map<slice::Iter<'a, (K, Shared<V>)>, fn(&'a (K, Shared<V>)) -> (&'a K, &'a Shared<V>)>;

fn pair<K, V>((name, value): &(K, Shared<V>)) -> (&K, &Shared<V>) {
    (name, value)
}

fn entries<K, V>(leaf: &Shared<Leaf<K, V>>) -> LeafEntries<'_, K, V> {
    leaf.iter().map(pair)
}

impl<K, V> Map<K, V> {
    /// Returns whether both are the same map in memory. Their contents then need no comparison.
    #[must_use]
    pub fn ptr_eq(&self, other: &Self) -> bool {
        self.leaves.ptr_eq(&other.leaves)
    }

    /// Returns the number of values.
    #[must_use]
    pub fn len(&self) -> usize {
        self.leaves.iter().map(|leaf| leaf.len()).sum()
    }

    /// Returns whether the map is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.leaves.is_empty()
    }

    /// Iterates over names and values, in the order of names.
    pub fn iter(&self) -> Iter<'_, K, V> {
        self.leaves.iter().flat_map(entries)
    }

    /// Iterates over the names, in order.
    #[must_use]
    pub fn keys(&self) -> impl DoubleEndedIterator<Item = &K> + Clone {
        self.iter().map(|(name, _)| name)
    }

    /// Iterates over the values, in the order of names.
    #[must_use]
    pub fn values(&self) -> impl DoubleEndedIterator<Item = &Shared<V>> + Clone {
        self.iter().map(|(_, value)| value)
    }
}

impl<K: Ord, V> Map<K, V> {
    fn place<Q: Ord + ?Sized>(&self, name: &Q) -> LeafPosition
    where
        K: Borrow<Q>,
    {
        let is_before = |leaf: &Shared<Leaf<K, V>>| leaf.last().is_some_and(|(last, _)| last.borrow() < name);
        let number = self.leaves.partition_point(is_before);
        let Some(leaf) = self.leaves.get(number) else { return Err((number, 0)) };
        match leaf.binary_search_by(|(known, _)| known.borrow().cmp(name)) {
            Ok(place) => Ok((number, place)),
            Err(place) => Err((number, place)),
        }
    }

    fn at(&self, (leaf, place): (usize, usize)) -> Option<&(K, Shared<V>)> {
        self.leaves.get(leaf)?.get(place)
    }

    /// Returns the value with this name.
    #[must_use]
    pub fn get<Q: Ord + ?Sized>(&self, name: &Q) -> Option<&Shared<V>>
    where
        K: Borrow<Q>,
    {
        self.at(self.place(name).ok()?).map(|(_, value)| value)
    }

    /// Returns the value with this name, and the name as stored in the map.
    #[must_use]
    pub fn get_key_value<Q: Ord + ?Sized>(&self, name: &Q) -> Option<(&K, &Shared<V>)>
    where
        K: Borrow<Q>,
    {
        self.at(self.place(name).ok()?).map(pair)
    }

    /// Returns whether there is a value with this name.
    #[must_use]
    pub fn contains_key<Q: Ord + ?Sized>(&self, name: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.place(name).is_ok()
    }

    /// Iterates over the names and values of a range, in the order of names.
    pub fn range<Q: Ord + ?Sized>(&self, range: impl RangeBounds<Q>) -> impl Iterator<Item = (&K, &Shared<V>)>
    where
        K: Borrow<Q>,
    {
        let first = match range.start_bound() {
            Bound::Included(name) => self.place(name).unwrap_or_else(|place| place),
            Bound::Excluded(name) => self.place(name).map_or_else(|place| place, |(leaf, place)| (leaf, place + 1)),
            Bound::Unbounded => (0, 0),
        };
        let end = match range.end_bound() {
            Bound::Included(name) => self.place(name).map_or_else(|place| place, |(leaf, place)| (leaf, place + 1)),
            Bound::Excluded(name) => self.place(name).unwrap_or_else(|place| place),
            Bound::Unbounded => (self.leaves.len(), 0),
        };
        let leaves = (first.0..).zip(self.leaves.get(first.0..).unwrap_or_default());
        let places =
            leaves.flat_map(|(number, leaf)| leaf.iter().enumerate().map(move |(at, entry)| ((number, at), entry)));
        places.skip(first.1).take_while(move |(at, _)| *at < end).map(|(_, (name, value))| (name, value))
    }

    /// Returns the names whose values differ from `before`, and the names that only one of both maps contains.
    pub fn changed_since<'a>(&'a self, before: &'a Self) -> impl Iterator<Item = &'a K>
    where
        V: PartialEq,
    {
        let is_one = self.ptr_eq(before);
        let mut walks = (!is_one).then(|| (Walk::of(self), Walk::of(before)));
        core::iter::from_fn(move || {
            let (now, before) = walks.as_mut()?;
            loop {
                let (name, is_changed) = step(now, before)?;
                if is_changed {
                    return Some(name);
                }
            }
        })
    }
}

impl<K: Ord + Clone, V> Map<K, V> {
    fn leaf_mut(&mut self, number: usize) -> Option<&mut Leaf<K, V>> {
        self.leaves.get_mut(number).map(|leaf| &mut **leaf)
    }

    /// Returns a mutable reference to the value with this name.
    pub fn get_mut<Q: Ord + ?Sized>(&mut self, name: &Q) -> Option<&mut Shared<V>>
    where
        K: Borrow<Q>,
    {
        let (leaf, place) = self.place(name).ok()?;
        self.leaf_mut(leaf)?.get_mut(place).map(|(_, value)| value)
    }

    /// Inserts a value and returns the previous one with the same name.
    pub fn insert(&mut self, name: K, value: impl Into<Shared<V>>) -> Option<Shared<V>> {
        let value = value.into();
        match self.place(&name) {
            Ok((leaf, place)) => {
                let (_, known) = self.leaf_mut(leaf)?.get_mut(place)?;
                Some(core::mem::replace(known, value))
            }
            Err(place) => {
                self.insert_at(place, name, value);
                None
            }
        }
    }

    /// Returns a mutable reference to the value of this name. If the map has no such value, it inserts `value` first.
    pub fn get_or_insert_with(&mut self, name: K, value: impl FnOnce() -> Shared<V>) -> &mut Shared<V> {
        let (leaf, place) = match self.place(&name) {
            Ok(place) => place,
            Err(place) => self.insert_at(place, name, value()),
        };
        let leaf: &mut Leaf<K, V> = &mut self.leaves[leaf];
        &mut leaf[place].1
    }

    /// Inserts an entry and returns its position afterwards.
    fn insert_at(&mut self, (number, place): (usize, usize), name: K, value: Shared<V>) -> (usize, usize) {
        // A name after all others is added to the last leaf.
        let (number, place) = match (self.leaves.get(number), number.checked_sub(1)) {
            (Some(_), _) => (number, place),
            (None, Some(last)) => (last, self.leaves[last].len()),
            (None, None) => {
                self.leaves.push(Leaf::new().into());
                (0, 0)
            }
        };
        let leaf: &mut Leaf<K, V> = &mut self.leaves[number];
        leaf.insert(place, (name, value));
        if leaf.len() <= MOST {
            return (number, place);
        }
        let rest = leaf.split_off(MOST / 2);
        self.leaves.insert(number + 1, rest.into());
        if place < MOST / 2 { (number, place) } else { (number + 1, place - MOST / 2) }
    }

    /// Returns this map with additional values whose names are adjacent. If no other name is between them, they form a separate leaf, and all other
    /// leaves stay shared.
    #[must_use]
    pub fn with(&self, values: impl IntoIterator<Item = (K, Shared<V>)>) -> Self {
        let mut with = self.clone();
        let mut leaf: Leaf<K, V> = values.into_iter().collect();
        leaf.sort_by(|(one, _), (other, _)| one.cmp(other));
        let Some(((first, _), (last, _))) = leaf.first().zip(leaf.last()) else { return with };
        let number = self.leaves.partition_point(|leaf| leaf.last().is_some_and(|(name, _)| name < first));
        let is_apart = self.leaves.get(number).is_none_or(|leaf| leaf.first().is_some_and(|(name, _)| name > last));
        if is_apart && leaf.len() <= MOST {
            leaf.shrink_to_fit();
            with.leaves.insert(number, leaf.into());
        } else {
            with.extend(leaf);
        }
        with
    }

    /// Removes and returns the value with this name.
    pub fn remove<Q: Ord + ?Sized>(&mut self, name: &Q) -> Option<Shared<V>>
    where
        K: Borrow<Q>,
    {
        let (number, place) = self.place(name).ok()?;
        let (_, value) = self.leaf_mut(number)?.remove(place);
        self.join(number);
        Some(value)
    }

    /// Merges two neighbouring leaves if together they have at most half of the maximum, so that removals do not leave many small leaves.
    fn join(&mut self, number: usize) {
        let len = |number: usize| self.leaves.get(number).map(|leaf| leaf.len());
        if len(number) == Some(0) {
            self.leaves.remove(number);
            return;
        }
        let pairs = [Some(number), number.checked_sub(1)].into_iter().flatten();
        let small = |first: &usize| len(*first).zip(len(first + 1)).is_some_and(|(one, next)| one + next <= MOST / 2);
        if let Some(first) = pairs.into_iter().find(small) {
            let next = self.leaves.remove(first + 1);
            self.leaves[first].extend(next.into_inner());
        }
    }

    /// Removes all entries.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// Keeps the entries for which the function returns true.
    pub fn retain(&mut self, mut is_kept: impl FnMut(&K, &Shared<V>) -> bool) {
        let gone: Vec<K> =
            self.iter().filter(|(name, value)| !is_kept(name, value)).map(|(name, _)| name.clone()).collect();
        for name in gone {
            self.remove(&name);
        }
    }

    /// Iterates over names and mutable values, in the order of names.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (&K, &mut Shared<V>)> {
        self.leaves.iter_mut().flat_map(|leaf| leaf.iter_mut()).map(|(name, value)| (&*name, value))
    }

    /// Iterates over names from this one on, and their mutable values, in the order of names.
    pub fn range_mut(&mut self, from: RangeFrom<K>) -> impl Iterator<Item = (&K, &mut Shared<V>)> {
        let (number, place) = self.place(&from.start).unwrap_or_else(|place| place);
        let leaves = self.leaves.iter_mut().skip(number).flat_map(|leaf| leaf.iter_mut());
        leaves.skip(place).map(|(name, value)| (&*name, value))
    }

    /// Iterates over mutable values, in the order of names.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut Shared<V>> {
        self.iter_mut().map(|(_, value)| value)
    }

    /// Replaces values that are equal to those of another map by references to the latter, so that each is in memory once.
    pub fn share_equal(&mut self, other: &Self)
    where
        V: PartialEq,
    {
        if self == other {
            *self = other.clone();
            return;
        }
        let twin = |(name, value): (&K, &Shared<V>)| {
            let known = other.get(name).filter(|known| !known.ptr_eq(value) && *known == value)?;
            Some((name.clone(), known.clone()))
        };
        let twins: Vec<(K, Shared<V>)> = self.iter().filter_map(twin).collect();
        self.extend(twins);
    }
}

/// An iterator over a map that can skip entire leaves.
struct Walk<'a, K, V> {
    leaves: slice::Iter<'a, Shared<Leaf<K, V>>>,
    entries: slice::Iter<'a, (K, Shared<V>)>,
}

impl<'a, K: Ord, V> Walk<'a, K, V> {
    fn of(map: &'a Map<K, V>) -> Self {
        let mut walk = Self { leaves: map.leaves.iter(), entries: [].iter() };
        walk.turn();
        walk
    }

    /// Advances to the next leaf at the end of one.
    fn turn(&mut self) {
        if self.entries.as_slice().is_empty()
            && let Some(leaf) = self.leaves.next()
        {
            self.entries = leaf.iter();
        }
    }

    fn peek(&self) -> Option<&'a (K, Shared<V>)> {
        self.entries.as_slice().first()
    }

    fn next(&mut self) -> Option<&'a (K, Shared<V>)> {
        let entry = self.entries.next();
        self.turn();
        entry
    }

    /// Skips the rest of a leaf that both maps share. Returns whether they share it.
    fn skip_common(&mut self, other: &mut Self) -> bool {
        let is_common = core::ptr::eq(self.entries.as_slice(), other.entries.as_slice());
        if !is_common || self.peek().is_none() {
            return false;
        }
        for walk in [self, other] {
            walk.entries = [].iter();
            walk.turn();
        }
        true
    }
}

/// Returns the next name of both maps, and whether its value differs.
fn step<'a, K: Ord, V: PartialEq>(now: &mut Walk<'a, K, V>, before: &mut Walk<'a, K, V>) -> Option<(&'a K, bool)> {
    while now.skip_common(before) {}
    let order = match (now.peek(), before.peek()) {
        (None, None) => return None,
        (Some(_), None) => core::cmp::Ordering::Less,
        (None, Some(_)) => core::cmp::Ordering::Greater,
        (Some((name, _)), Some((old, _))) => name.cmp(old),
    };
    match order {
        core::cmp::Ordering::Less => now.next().map(|(name, _)| (name, true)),
        core::cmp::Ordering::Greater => before.next().map(|(name, _)| (name, true)),
        core::cmp::Ordering::Equal => {
            now.next().zip(before.next()).map(|((name, value), (_, old))| (name, value != old))
        }
    }
}

impl<K, V> Default for Map<K, V> {
    fn default() -> Self {
        Self { leaves: Vec::new().into() }
    }
}

impl<K, V> Clone for Map<K, V> {
    fn clone(&self) -> Self {
        Self { leaves: self.leaves.clone() }
    }
}

impl<K: PartialEq, V: PartialEq> PartialEq for Map<K, V> {
    fn eq(&self, other: &Self) -> bool {
        self.ptr_eq(other) || (self.len() == other.len() && self.iter().eq(other))
    }
}

impl<K: fmt::Debug, V: fmt::Debug> fmt::Debug for Map<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self).finish()
    }
}

impl<K: Ord + Borrow<Q>, V, Q: Ord + ?Sized> Index<&Q> for Map<K, V> {
    type Output = Shared<V>;

    fn index(&self, name: &Q) -> &Shared<V> {
        #[expect(clippy::expect_used, reason = "as with every map, an index is there")]
        self.get(name).expect("no value of this name")
    }
}

impl<K: Ord, V, T: Into<Shared<V>>> FromIterator<(K, T)> for Map<K, V> {
    /// If a name occurs several times, the last value counts.
    fn from_iter<I: IntoIterator<Item = (K, T)>>(values: I) -> Self {
        let mut leaves: Vec<Shared<Leaf<K, V>>> = Vec::new();
        let mut sorted = BTreeMap::from_iter(values).into_iter().map(|(name, value)| (name, value.into()));
        loop {
            let leaf: Leaf<K, V> = sorted.by_ref().take(MOST).collect();
            if leaf.is_empty() {
                return Self { leaves: leaves.into() };
            }
            leaves.push(leaf.into());
        }
    }
}

impl<K: Ord + Clone, V> Extend<(K, Shared<V>)> for Map<K, V> {
    fn extend<I: IntoIterator<Item = (K, Shared<V>)>>(&mut self, values: I) {
        for (name, value) in values {
            self.insert(name, value);
        }
    }
}

impl<K: Clone, V> IntoIterator for Map<K, V> {
    type Item = (K, Shared<V>);
    type IntoIter =
        core::iter::FlatMap<std::vec::IntoIter<Shared<Leaf<K, V>>>, Leaf<K, V>, fn(Shared<Leaf<K, V>>) -> Leaf<K, V>>;

    fn into_iter(self) -> Self::IntoIter {
        self.leaves.into_inner().into_iter().flat_map(Shared::into_inner)
    }
}

impl<'a, K, V> IntoIterator for &'a Map<K, V> {
    type Item = (&'a K, &'a Shared<V>);
    type IntoIter = Iter<'a, K, V>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Bound::{Excluded, Unbounded};

    use proptest::prelude::*;

    use super::*;

    fn map(values: &[(u8, &str)]) -> Map<u8, String> {
        values.iter().map(|(name, value)| (*name, Shared::from((*value).to_owned()))).collect()
    }

    /// Asserts that the map equals the model and that its structure is valid.
    fn assert_is(map: &Map<u16, u32>, model: &BTreeMap<u16, u32>) {
        assert!(map.iter().map(|(name, value)| (*name, **value)).eq(model.iter().map(|(name, value)| (*name, *value))));
        assert_eq!((map.len(), map.is_empty()), (model.len(), model.is_empty()));
        assert!(map.leaves.iter().all(|leaf| !leaf.is_empty() && leaf.len() <= MOST));
        let pairs = map.leaves.windows(2);
        let wasted = pairs.filter(|pair| pair[0].len() + pair[1].len() <= MOST / 4).count();
        assert_eq!(wasted, 0, "leaves that are nearly empty");
    }

    #[derive(Debug, Clone)]
    enum Deed {
        Insert(u16, u32),
        Change(u16, u32),
        Remove(u16),
        Retain(u16),
        Copy,
    }

    fn deed() -> impl Strategy<Value = Deed> {
        let name = 0..400_u16;
        prop_oneof![
            8 => (name.clone(), any::<u32>()).prop_map(|(name, value)| Deed::Insert(name, value)),
            3 => (name.clone(), any::<u32>()).prop_map(|(name, value)| Deed::Change(name, value)),
            4 => name.clone().prop_map(Deed::Remove),
            1 => (1..4_u16).prop_map(Deed::Retain),
            1 => Just(Deed::Copy),
        ]
    }

    proptest! {
        #[test]
        fn it_is_as_a_map_of_the_standard_library(deeds in prop::collection::vec(deed(), 0..900), from in 0..400_u16) {
            let (mut map, mut model) = (Map::default(), BTreeMap::new());
            let (mut copy, mut copied) = (map.clone(), model.clone());
            for deed in deeds {
                match deed {
                    Deed::Insert(name, value) => {
                        let before = map.insert(name, value).map(Shared::into_inner);
                        prop_assert_eq!(before, model.insert(name, value));
                    }
                    Deed::Change(name, value) => {
                        **map.get_or_insert_with(name, || 0.into()) ^= value;
                        *model.entry(name).or_insert(0) ^= value;
                    }
                    Deed::Remove(name) => {
                        prop_assert_eq!(map.remove(&name).map(Shared::into_inner), model.remove(&name));
                    }
                    Deed::Retain(share) => {
                        map.retain(|name, _| name % 4 != share);
                        model.retain(|name, _| name % 4 != share);
                    }
                    Deed::Copy => (copy, copied) = (map.clone(), model.clone()),
                }
            }
            assert_is(&map, &model);
            assert_is(&copy, &copied);
            let changed = map.changed_since(&copy).copied();
            let names: std::collections::BTreeSet<u16> = model.keys().chain(copied.keys()).copied().collect();
            let expected = names.into_iter().filter(|name| model.get(name) != copied.get(name));
            prop_assert!(changed.eq(expected));
            let found = |names: &mut dyn Iterator<Item = u16>| names.collect::<Vec<u16>>();
            let ranges = [
                (found(&mut map.range(from..).map(|(name, _)| *name)), found(&mut model.range(from..).map(|(name, _)| *name))),
                (found(&mut map.range(..from).map(|(name, _)| *name)), found(&mut model.range(..from).map(|(name, _)| *name))),
                (
                    found(&mut map.range((Excluded(from), Unbounded)).map(|(name, _)| *name)),
                    found(&mut model.range((Excluded(from), Unbounded)).map(|(name, _)| *name)),
                ),
            ];
            prop_assert!(ranges.iter().all(|(found, expected)| found == expected));
            prop_assert_eq!(map == copy, model == copied);
            let values: Map<u16, u32> = model.iter().map(|(name, value)| (*name, *value)).collect();
            prop_assert_eq!(&map, &values);
        }
    }

    #[test]
    fn copies_are_one_until_one_is_changed() {
        let map = map(&[(1, "a"), (2, "b")]);
        let mut copy = map.clone();
        assert!(map.ptr_eq(&copy));
        copy.get_mut(&1).unwrap().push('x');
        assert!(!map[&1].ptr_eq(&copy[&1]) && map[&2].ptr_eq(&copy[&2]));
        assert_eq!((map[&1].as_str(), copy[&1].as_str()), ("a", "ax"));
    }

    #[test]
    fn a_change_leaves_the_other_leaves_to_all() {
        let map: Map<u16, u16> = (0..1000).map(|name| (name, name)).collect();
        let mut copy = map.clone();
        copy.insert(500, 0);
        let common = map.leaves.iter().zip(copy.leaves.iter()).filter(|(one, other)| one.ptr_eq(other));
        assert_eq!((map.leaves.len(), common.count()), (16, 15));
    }

    #[test]
    fn values_that_stand_together_leave_all_others_shared() {
        let map: Map<u16, u16> = (0..200).chain(300..500).map(|name| (name, name)).collect();
        let common = |with: &Map<u16, u16>| {
            map.leaves.iter().filter(|one| with.leaves.iter().any(|other| one.ptr_eq(other))).count()
        };
        let shared = |names: core::ops::Range<u16>| names.map(|name| (name, Shared::from(name + 1)));
        for (run, expected) in [(500..510, 7), (250..260, 6), (195..205, 5)] {
            let with = map.with(shared(run.clone()));
            let mut model: BTreeMap<u16, u16> = map.iter().map(|(name, value)| (*name, **value)).collect();
            model.extend(run.map(|name| (name, name + 1)));
            assert!(with.iter().map(|(name, value)| (*name, **value)).eq(model));
            assert!(common(&with) >= expected, "{} of {}", common(&with), map.leaves.len());
        }
        assert!(map.with([]).ptr_eq(&map));
        assert_eq!(Map::default().with(shared(0..100)).len(), 100);
    }

    #[test]
    fn changes_are_added_removed_and_replaced_entries() {
        let before = map(&[(1, "a"), (2, "b"), (4, "d")]);
        let now = map(&[(0, "z"), (1, "a"), (2, "x"), (3, "c")]);
        assert_eq!(now.changed_since(&before).copied().collect::<Vec<_>>(), [0, 2, 3, 4]);
        assert_eq!(now.changed_since(&now.clone()).count(), 0);
        assert_eq!(now.changed_since(&Map::default()).count(), 4);
    }

    #[test]
    fn equal_values_become_one() {
        let before = map(&[(1, "a"), (2, "b")]);
        let mut now = map(&[(1, "a"), (2, "x")]);
        now.share_equal(&before);
        assert!(now[&1].ptr_eq(&before[&1]));
        assert_eq!(now[&2].as_str(), "x");
        let mut same = map(&[(1, "a"), (2, "b")]);
        same.share_equal(&before);
        assert!(same.ptr_eq(&before));
    }
}
