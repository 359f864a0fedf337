//! Sets and maps of rules, as the kernel lists them.

use super::{
    super::{encode::attributes, seen::number},
    ruleset::{NftVerdict, find},
};

/// `NFT_SET_INTERVAL`, `NFT_SET_CONCAT`
const INTERVAL: u32 = 0x4;
const CONCAT: u32 = 0x80;
/// `NFT_SET_ELEM_INTERVAL_END`, `NFT_SET_ELEM_CATCHALL`
const INTERVAL_END: u32 = 0x1;
const CATCH_ALL: u32 = 0x2;

/// A set or map.
#[derive(Debug, Default)]
pub(super) struct NftSet {
    pub(super) flags: u32,
    pub(super) elements: Vec<NftElement>,
    /// Whether all elements are known.
    pub(super) is_whole: bool,
}

#[derive(Debug, Clone)]
pub(super) struct NftElement {
    key: Vec<u8>,
    key_end: bool,
    flags: u32,
    pub(super) value: Option<Vec<u8>>,
    pub(super) verdict: Option<NftVerdict>,
}

/// The result of a lookup.
#[derive(Debug)]
pub(super) enum SetLookup<'a> {
    Found(&'a NftElement),
    Absent,
    Unknown,
}

impl NftSet {
    /// Adds the elements of one message of a list.
    pub(super) fn note(&mut self, message: &[u8]) {
        let list = find(message, 3).unwrap_or_default();
        self.elements.extend(attributes(list).map(|(_, bytes)| NftElement::of(bytes)));
    }

    /// Looks up a key. A byte of the key may be unknown.
    pub(super) fn look_up(&self, key: &[Option<u8>]) -> SetLookup<'_> {
        if !self.is_whole || self.flags & CONCAT != 0 && self.flags & INTERVAL != 0 {
            return SetLookup::Unknown;
        }
        let found = if self.flags & INTERVAL == 0 { self.exact(key) } else { self.interval(key) };
        match found {
            SetLookup::Absent => self.catch_all().map_or(SetLookup::Absent, SetLookup::Found),
            found @ (SetLookup::Found(_) | SetLookup::Unknown) => found,
        }
    }

    fn catch_all(&self) -> Option<&NftElement> {
        self.elements.iter().find(|element| element.flags & CATCH_ALL != 0)
    }

    fn keyed(&self) -> impl Iterator<Item = &NftElement> {
        self.elements.iter().filter(|element| element.flags & CATCH_ALL == 0)
    }

    fn exact(&self, key: &[Option<u8>]) -> SetLookup<'_> {
        let may_be = |element: &&NftElement| {
            element.key.iter().zip(key).all(|(wanted, byte)| byte.is_none_or(|byte| byte == *wanted))
        };
        let mut candidates = self.keyed().filter(may_be);
        match candidates.next() {
            None => SetLookup::Absent,
            Some(element) if key.iter().take(element.key.len()).all(Option::is_some) => SetLookup::Found(element),
            Some(_) => SetLookup::Unknown,
        }
    }

    /// An interval begins at one element and ends before the next one, which may mark that.
    fn interval(&self, key: &[Option<u8>]) -> SetLookup<'_> {
        let length = self.keyed().map(|element| element.key.len()).max().unwrap_or_default();
        let Some(known) = key.iter().take(length).copied().collect::<Option<Vec<u8>>>() else {
            return if self.elements.is_empty() { SetLookup::Absent } else { SetLookup::Unknown };
        };
        if self.elements.iter().any(|element| element.key_end) {
            return SetLookup::Unknown;
        }
        let before = self.keyed().filter(|element| element.key <= known);
        let last = before.max_by_key(|element| (&element.key, element.flags & INTERVAL_END == 0));
        match last {
            Some(element) if element.flags & INTERVAL_END == 0 => SetLookup::Found(element),
            _ => SetLookup::Absent,
        }
    }
}

impl NftElement {
    fn of(bytes: &[u8]) -> Self {
        let data = find(bytes, 2);
        Self {
            key: find(bytes, 1).and_then(|key| find(key, 1)).unwrap_or_default().to_vec(),
            key_end: find(bytes, 10).is_some(),
            flags: find(bytes, 3).and_then(number).unwrap_or_default(),
            value: data.and_then(|data| find(data, 1)).map(<[u8]>::to_vec),
            verdict: data.and_then(|data| find(data, 2)).and_then(NftVerdict::of),
        }
    }
}
