//! The generations of a key or an authority.

/// The generations of a key or authority that rotates without an interruption. `active` is in use. `next` is distributed to everything
/// that must trust it before it becomes active. `previous` stays trusted while objects that it signed or encrypted are in use.
///
/// `R` is the part of a previous generation that is stored. Of a signing key, that is the public half only, so that a retired key
/// cannot sign.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Generations<T, R = T> {
    /// Distributed, not yet in use.
    pub next: Option<T>,
    /// In use.
    pub active: T,
    /// No longer in use, still trusted.
    pub previous: Option<R>,
}

impl<T, R> Generations<T, R> {
    /// Returns the first generation without a next or previous one.
    pub fn first(active: T) -> Self {
        Self { next: None, active, previous: None }
    }

    /// Returns a view of all generations in the order active, next, previous. The active one is first because
    /// kube-apiserver encrypts with the first key of its list and tries the others in turn to decrypt.
    pub fn bundle<'a, V>(
        &'a self,
        current: impl Fn(&'a T) -> V,
        retired: impl FnOnce(&'a R) -> V,
    ) -> impl Iterator<Item = V> {
        let previous = self.previous.as_ref().map(retired);
        core::iter::once(&self.active).chain(&self.next).map(current).chain(previous)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bundles_are_ordered() {
        let all = Generations { next: Some(3), active: 2, previous: Some("one") };
        assert_eq!(all.bundle(ToString::to_string, ToString::to_string).collect::<Vec<_>>(), ["2", "3", "one"]);
        let first = Generations::<_, u32>::first(1);
        assert_eq!(first.bundle(|n| *n, |n| *n).collect::<Vec<_>>(), [1]);
    }
}
