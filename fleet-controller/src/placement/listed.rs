//! The objects of one watch.

use std::collections::{BTreeMap, BTreeSet};

use kube::{ResourceExt, runtime::watcher::Event};

/// The objects of one watch, by key.
#[derive(Debug)]
pub struct ListedObjects<K, T> {
    /// The objects.
    pub items: BTreeMap<K, T>,
    /// The keys of the current list so far.
    listing: BTreeSet<K>,
    /// Whether a list was complete once.
    pub is_whole: bool,
}

/// What an event changed.
#[derive(Debug, PartialEq, Eq)]
pub enum ListedChange<K> {
    /// Nothing that matters.
    Nothing,
    /// The object was created or changed.
    Changed(K),
    /// The API server reported that the object is deleted.
    Deleted(K),
    /// A list is complete. These objects are not in it, which is no evidence that they are deleted.
    Listed {
        /// The objects that were known before.
        missing: BTreeSet<K>,
    },
}

impl<K, T> Default for ListedObjects<K, T> {
    fn default() -> Self {
        Self { items: BTreeMap::new(), listing: BTreeSet::new(), is_whole: false }
    }
}

impl<K: Ord + Clone, T> ListedObjects<K, T> {
    /// Notes an event. `read` returns `None` for objects that do not matter.
    pub fn observe<E>(&mut self, event: Event<E>, read: impl Fn(E) -> Option<(K, T)>) -> ListedChange<K> {
        match event {
            Event::Init => {
                self.listing.clear();
                ListedChange::Nothing
            }
            Event::InitApply(object) => match read(object) {
                Some((key, item)) => {
                    self.listing.insert(key.clone());
                    self.items.insert(key.clone(), item);
                    ListedChange::Changed(key)
                }
                None => ListedChange::Nothing,
            },
            Event::InitDone => {
                self.is_whole = true;
                let missing: BTreeSet<K> =
                    self.items.keys().filter(|key| !self.listing.contains(key)).cloned().collect();
                self.items.retain(|key, _| !missing.contains(key));
                ListedChange::Listed { missing }
            }
            Event::Apply(object) => match read(object) {
                Some((key, item)) => {
                    self.items.insert(key.clone(), item);
                    ListedChange::Changed(key)
                }
                None => ListedChange::Nothing,
            },
            Event::Delete(object) => match read(object) {
                Some((key, _)) => {
                    self.items.remove(&key);
                    ListedChange::Deleted(key)
                }
                None => ListedChange::Nothing,
            },
        }
    }
}

impl<K: Ord, T: ResourceExt> ListedObjects<K, T> {
    /// Whether an event contains the known version of an object, or an older one: the response to a write contained it before the watch did.
    #[must_use]
    pub fn has(&self, event: &Event<T>, key: impl Fn(&T) -> K) -> bool {
        let Event::Apply(object) = event else { return false };
        let known = self.items.get(&key(object)).filter(|known| known.uid() == object.uid());
        known.and_then(version).zip(version(object)).is_some_and(|(known, event)| event <= known)
    }
}

/// Returns the version of an object. API servers make them increase.
fn version(object: &impl ResourceExt) -> Option<u128> {
    object.resource_version()?.parse().ok()
}
