//! Values and maps whose copies are one until one of them is changed: a world is large, and little of it changes at a time.

use core::{
    fmt,
    iter::Peekable,
    ops::{Deref, DerefMut},
};
use std::{
    collections::{BTreeMap, btree_map},
    sync::Arc,
};

use serde::{Serialize, Serializer};

/// A value that its copies share. It is copied where it is changed while others have it.
#[derive(Default)]
pub struct Shared<T>(Arc<T>);

impl<T> Shared<T> {
    /// Whether both are one value: what is in them need not be compared.
    #[must_use]
    pub fn is_one_with(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl<T: Clone> Shared<T> {
    /// The value by itself.
    #[must_use]
    pub fn into_inner(self) -> T {
        Arc::unwrap_or_clone(self.0)
    }
}

impl<T> From<T> for Shared<T> {
    fn from(value: T) -> Self {
        Self(Arc::new(value))
    }
}

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> Deref for Shared<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: Clone> DerefMut for Shared<T> {
    fn deref_mut(&mut self) -> &mut T {
        Arc::make_mut(&mut self.0)
    }
}

impl<T: PartialEq> PartialEq for Shared<T> {
    fn eq(&self, other: &Self) -> bool {
        self.is_one_with(other) || self.0 == other.0
    }
}

impl<T: Eq> Eq for Shared<T> {}

impl<T: fmt::Debug> fmt::Debug for Shared<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<T: Serialize> Serialize for Shared<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

/// Shared values by name, in a map that its copies share, too.
pub struct Map<K, V>(Shared<BTreeMap<K, Shared<V>>>);

impl<K, V> Map<K, V> {
    /// Whether both are one map: what is in them need not be compared.
    #[must_use]
    pub fn is_one_with(&self, other: &Self) -> bool {
        self.0.is_one_with(&other.0)
    }
}

impl<K: Ord + Clone, V> Map<K, V> {
    /// Puts a value in the place of the one of its name, which is returned.
    pub fn insert(&mut self, name: K, value: impl Into<Shared<V>>) -> Option<Shared<V>> {
        self.0.insert(name, value.into())
    }

    /// Names whose values are others than before, or which one of both has not.
    pub fn changed_since<'a>(&'a self, before: &'a Self) -> impl Iterator<Item = &'a K>
    where
        V: PartialEq,
    {
        let mut walks = (!self.is_one_with(before)).then(|| (self.iter().peekable(), before.iter().peekable()));
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

    /// Takes the values of another map in the place of those that are equal to them, so that they are there once.
    pub fn share(&mut self, other: &Self)
    where
        V: PartialEq,
    {
        if self == other {
            *self = other.clone();
            return;
        }
        for (name, value) in &mut *self.0 {
            if let Some(known) = other.get(name).filter(|known| !known.is_one_with(value) && **known == *value) {
                *value = known.clone();
            }
        }
    }
}

type Walk<'a, K, V> = Peekable<btree_map::Iter<'a, K, Shared<V>>>;

/// The next name of both, and whether what it names is another thing.
fn step<'a, K: Ord, V: PartialEq>(now: &mut Walk<'a, K, V>, before: &mut Walk<'a, K, V>) -> Option<(&'a K, bool)> {
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
        Self(BTreeMap::new().into())
    }
}

impl<K, V> Clone for Map<K, V> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<K, V> Deref for Map<K, V> {
    type Target = BTreeMap<K, Shared<V>>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl<K: Clone, V> DerefMut for Map<K, V> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}

impl<K: PartialEq, V: PartialEq> PartialEq for Map<K, V> {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl<K: fmt::Debug, V: fmt::Debug> fmt::Debug for Map<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<K: Ord, V> FromIterator<(K, Shared<V>)> for Map<K, V> {
    fn from_iter<I: IntoIterator<Item = (K, Shared<V>)>>(values: I) -> Self {
        Self(BTreeMap::from_iter(values).into())
    }
}

impl<K: Clone, V> IntoIterator for Map<K, V> {
    type Item = (K, Shared<V>);
    type IntoIter = btree_map::IntoIter<K, Shared<V>>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_inner().into_iter()
    }
}

impl<'a, K, V> IntoIterator for &'a Map<K, V> {
    type Item = (&'a K, &'a Shared<V>);
    type IntoIter = btree_map::Iter<'a, K, Shared<V>>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

impl<'a, K: Clone, V> IntoIterator for &'a mut Map<K, V> {
    type Item = (&'a K, &'a mut Shared<V>);
    type IntoIter = btree_map::IterMut<'a, K, Shared<V>>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter_mut()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(values: &[(u8, &str)]) -> Map<u8, String> {
        values.iter().map(|(name, value)| (*name, Shared::from((*value).to_owned()))).collect()
    }

    #[test]
    fn copies_are_one_until_one_is_changed() {
        let map = map(&[(1, "a"), (2, "b")]);
        let mut copy = map.clone();
        assert!(map.0.is_one_with(&copy.0));
        copy.get_mut(&1).unwrap().push('x');
        assert!(!map[&1].is_one_with(&copy[&1]) && map[&2].is_one_with(&copy[&2]));
        assert_eq!((map[&1].as_str(), copy[&1].as_str()), ("a", "ax"));
    }

    #[test]
    fn what_changed_is_what_came_went_or_is_another() {
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
        now.share(&before);
        assert!(now[&1].is_one_with(&before[&1]));
        assert_eq!(now[&2].as_str(), "x");
        let mut same = map(&[(1, "a"), (2, "b")]);
        same.share(&before);
        assert!(same.0.is_one_with(&before.0));
    }
}
