//! The generations of a key or an authority.

/// The generations of something that is replaced without an interruption. `active` is in use;
/// `next` is announced to all who must trust it before it is used; `previous` is still trusted
/// while something of it is around.
///
/// `R` is what is kept of a previous one: of a signing key only the half that verifies, so that
/// nothing can be signed with it any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Generations<T, R = T> {
    /// Announced, not yet in use.
    pub next: Option<T>,
    /// In use.
    pub active: T,
    /// No longer in use, still trusted.
    pub previous: Option<R>,
}

impl<T, R> Generations<T, R> {
    /// The first generation, alone.
    pub fn first(active: T) -> Self {
        Self { next: None, active, previous: None }
    }

    /// A view of all generations in the order of every bundle: active, next, previous. The active
    /// one comes first, because kube-apiserver encrypts with the first key of its list and tries
    /// the others in turn.
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
