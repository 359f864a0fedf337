//! The two meta pages. A snapshot is of the transaction of the newer one.

use std::io::{Read, Seek};

use super::{
    DatabaseError,
    blocks::Blocks,
    page::{PAGE_HEADER, u32_at, u64_at},
};

const MAGIC: u32 = 0xED0C_DAED;
const VERSION: u32 = 2;
/// The length of a meta, with its checksum at the end.
const LENGTH: u64 = 64;
const CHECKSUM: usize = 56;
/// bbolt's page size is that of the operating system.
const PAGE_SIZES: std::ops::RangeInclusive<u32> = 512..=65_536;

/// What a meta page records.
#[derive(Debug, Clone, Copy)]
pub(super) struct Meta {
    pub(super) page_size: u64,
    /// The page of the root bucket.
    pub(super) root: u64,
    /// The number of pages.
    pub(super) pages: u64,
    transaction: u64,
}

impl Meta {
    pub(super) fn read<R: Read + Seek>(blocks: &mut Blocks<R>) -> Result<Self, DatabaseError> {
        let first = Self::at(blocks, 0)?;
        // The place of the second page depends on the page size, which the first one records. If the first is damaged, we try each size.
        let sizes = first.map_or_else(|| (9..=16).map(|bits| 1 << bits).collect(), |meta| vec![meta.page_size]);
        let mut found = first;
        for size in sizes {
            let second = Self::at(blocks, size)?.filter(|meta| meta.page_size == size);
            found = found.into_iter().chain(second).max_by_key(|meta| meta.transaction);
        }
        found.ok_or(DatabaseError::NoMeta)
    }

    /// Returns the meta of a page at this place; none if it is not valid.
    fn at<R: Read + Seek>(blocks: &mut Blocks<R>, at: u64) -> Result<Option<Self>, DatabaseError> {
        let start = at + PAGE_HEADER;
        if start + LENGTH > blocks.length() {
            return Ok(None);
        }
        let bytes = blocks.read(start, LENGTH).map_err(DatabaseError::Read)?;
        Ok(Self::parse(&bytes))
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let page_size = u32_at(bytes, 8)?;
        let is_valid = u32_at(bytes, 0)? == MAGIC
            && u32_at(bytes, 4)? == VERSION
            && PAGE_SIZES.contains(&page_size)
            && page_size.is_power_of_two()
            && u64_at(bytes, CHECKSUM)? == fnv_1a(bytes.get(..CHECKSUM)?);
        let page_size = page_size.into();
        let (root, pages, transaction) = (u64_at(bytes, 16)?, u64_at(bytes, 40)?, u64_at(bytes, 48)?);
        is_valid.then_some(Self { page_size, root, pages, transaction })
    }
}

/// FNV-1a with 64 bits, the checksum of a meta.
fn fnv_1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}
