//! The elements of one page. Its layout is that of bbolt's `internal/common/page.go`, in little-endian order.

use super::PageProblem;

/// The length of a page's header: number, flags, count, and the number of pages that continue it.
pub(super) const PAGE_HEADER: u64 = 16;
const HEADER: usize = 16;
const ELEMENT: usize = 16;
const BRANCH: u16 = 0x01;
const LEAF: u16 = 0x02;
/// The flag of a leaf element whose value is a bucket.
const BUCKET: u32 = 0x01;

pub(super) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at.checked_add(4)?)?.try_into().ok().map(u32::from_le_bytes)
}

pub(super) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..at.checked_add(8)?)?.try_into().ok().map(u64::from_le_bytes)
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at.checked_add(2)?)?.try_into().ok().map(u16::from_le_bytes)
}

fn length_at(bytes: &[u8], at: usize) -> Option<usize> {
    usize::try_from(u32_at(bytes, at)?).ok()
}

/// The header of a page.
#[derive(Debug, Clone, Copy)]
pub(super) struct PageHeader {
    pub(super) number: u64,
    pub(super) is_leaf: bool,
    /// The number of pages after this one that belong to it.
    pub(super) overflow: u64,
    count: usize,
}

impl PageHeader {
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, PageProblem> {
        let fields = || Some((u64_at(bytes, 0)?, u16_at(bytes, 8)?, u16_at(bytes, 10)?, u32_at(bytes, 12)?));
        let (number, flags, count, overflow) = fields().ok_or(PageProblem::Element)?;
        let is_leaf = match flags {
            BRANCH => false,
            LEAF => true,
            _ => return Err(PageProblem::Kind),
        };
        Ok(Self { number, is_leaf, overflow: overflow.into(), count: count.into() })
    }
}

/// An element of a branch: the first key of a page, and its number.
pub(super) struct BranchElement<'a> {
    pub(super) key: &'a [u8],
    pub(super) page: u64,
}

/// An element of a leaf.
pub(super) struct LeafElement<'a> {
    pub(super) key: &'a [u8],
    pub(super) value: &'a [u8],
    pub(super) is_bucket: bool,
}

pub(super) fn branches<'a>(page: &'a [u8], header: &PageHeader) -> Result<Vec<BranchElement<'a>>, PageProblem> {
    let element = |at: usize| {
        let key = slice(page, at, length_at(page, at)?, length_at(page, at + 4)?)?;
        Some(BranchElement { key, page: u64_at(page, at + 8)? })
    };
    elements(header, element)
}

pub(super) fn leaves<'a>(page: &'a [u8], header: &PageHeader) -> Result<Vec<LeafElement<'a>>, PageProblem> {
    let element = |at: usize| {
        let is_bucket = u32_at(page, at)? & BUCKET != 0;
        let (position, key_length) = (length_at(page, at + 4)?, length_at(page, at + 8)?);
        let key = slice(page, at, position, key_length)?;
        let value = slice(page, at, position.checked_add(key_length)?, length_at(page, at + 12)?)?;
        Some(LeafElement { key, value, is_bucket })
    };
    elements(header, element)
}

fn elements<T>(header: &PageHeader, element: impl Fn(usize) -> Option<T>) -> Result<Vec<T>, PageProblem> {
    (0..header.count).map(|index| element(HEADER + index * ELEMENT).ok_or(PageProblem::Element)).collect()
}

/// Positions are relative to their element.
fn slice(page: &[u8], element: usize, position: usize, length: usize) -> Option<&[u8]> {
    let start = element.checked_add(position)?;
    page.get(start..start.checked_add(length)?)
}
