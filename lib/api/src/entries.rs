//! A map for a small number of values.

use core::{
    iter::Map,
    ops::Index,
    slice::{Iter, IterMut},
};

use serde::{Serialize, Serializer};

/// Values by name, in order, in as little memory as possible: a `BTreeMap` allocates room for eleven entries with the first one. Inserting takes
/// linear time, so the map is for small numbers of values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CompactMap<V>(Vec<(String, V)>);

impl<V> CompactMap<V> {
    fn place(&self, name: &str) -> Result<usize, usize> {
        self.0.binary_search_by(|(known, _)| known.as_str().cmp(name))
    }

    /// Returns the value with this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&V> {
        self.0.get(self.place(name).ok()?).map(|(_, value)| value)
    }

    /// Returns whether there is a value with this name.
    #[must_use]
    pub fn contains_key(&self, name: &str) -> bool {
        self.place(name).is_ok()
    }

    /// Inserts a value and returns the previous one with the same name.
    pub fn insert(&mut self, name: String, value: V) -> Option<V> {
        match self.place(&name) {
            Ok(at) => self.0.get_mut(at).map(|(_, known)| core::mem::replace(known, value)),
            Err(at) => {
                self.0.insert(at, (name, value));
                None
            }
        }
    }

    /// Removes and returns the value with this name.
    pub fn remove(&mut self, name: &str) -> Option<V> {
        self.place(name).ok().map(|at| self.0.remove(at).1)
    }

    /// Returns the number of values.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether the map is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Iterates over all entries, in the order of names.
    #[must_use]
    pub fn iter(&self) -> <&Self as IntoIterator>::IntoIter {
        self.into_iter()
    }

    /// Iterates over all entries with mutable values, in the order of names.
    pub fn iter_mut(&mut self) -> <&mut Self as IntoIterator>::IntoIter {
        self.into_iter()
    }

    /// Iterates over all names, in order.
    pub fn keys(&self) -> impl Iterator<Item = &String> {
        self.0.iter().map(|(name, _)| name)
    }
}

impl<V> Default for CompactMap<V> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<V> Index<&str> for CompactMap<V> {
    type Output = V;

    /// Returns the value with this name. Panics if there is none.
    fn index(&self, name: &str) -> &V {
        #[expect(clippy::expect_used, reason = "as any map does")]
        self.get(name).expect("an entry of this name")
    }
}

impl<V> Extend<(String, V)> for CompactMap<V> {
    fn extend<T: IntoIterator<Item = (String, V)>>(&mut self, entries: T) {
        for (name, value) in entries {
            self.insert(name, value);
        }
    }
}

impl<V> FromIterator<(String, V)> for CompactMap<V> {
    fn from_iter<T: IntoIterator<Item = (String, V)>>(entries: T) -> Self {
        let mut all = Self::default();
        all.extend(entries);
        all.0.shrink_to_fit();
        all
    }
}

impl<V, const N: usize> From<[(String, V); N]> for CompactMap<V> {
    fn from(entries: [(String, V); N]) -> Self {
        entries.into_iter().collect()
    }
}

impl<V> IntoIterator for CompactMap<V> {
    type Item = (String, V);
    type IntoIter = std::vec::IntoIter<(String, V)>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl<'a, V> IntoIterator for &'a CompactMap<V> {
    type Item = (&'a String, &'a V);
    type IntoIter = Map<Iter<'a, (String, V)>, fn(&'a (String, V)) -> (&'a String, &'a V)>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter().map(|(name, value)| (name, value))
    }
}

impl<'a, V> IntoIterator for &'a mut CompactMap<V> {
    type Item = (&'a String, &'a mut V);
    type IntoIter = Map<IterMut<'a, (String, V)>, fn(&'a mut (String, V)) -> (&'a String, &'a mut V)>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter_mut().map(|(name, value)| (&*name, value))
    }
}

/// Serializes the entries as a map.
impl<V: Serialize> Serialize for CompactMap<V> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_map_allocates_only_its_entries() {
        let few: CompactMap<u32> = [("b".to_owned(), 2), ("a".to_owned(), 1)].into();
        assert_eq!((few.0.capacity(), few.clone().0.capacity()), (2, 2));
    }

    proptest! {
        #[test]
        fn a_map_does_the_same(steps in prop::collection::vec(("[a-d]", any::<Option<u8>>()), 0..20)) {
            let (mut entries, mut map) = (CompactMap::default(), BTreeMap::new());
            for (name, value) in steps {
                let done = match value {
                    Some(value) => (entries.insert(name.clone(), value), map.insert(name.clone(), value)),
                    None => (entries.remove(&name), map.remove(&name)),
                };
                prop_assert_eq!(done.0, done.1);
                prop_assert_eq!(entries.get(&name), map.get(&name));
                prop_assert_eq!(entries.contains_key(&name), map.contains_key(&name));
                prop_assert_eq!((entries.len(), entries.is_empty()), (map.len(), map.is_empty()));
            }
            prop_assert!(entries.iter().eq(map.iter()) && entries.keys().eq(map.keys()));
            prop_assert_eq!(serde_json::to_string(&entries).unwrap(), serde_json::to_string(&map).unwrap());
            prop_assert!(map.clone().into_iter().collect::<CompactMap<u8>>() == entries);
            for (_, value) in &mut entries {
                *value = 7;
            }
            prop_assert!(entries.into_iter().eq(map.into_keys().map(|name| (name, 7))));
        }
    }
}
