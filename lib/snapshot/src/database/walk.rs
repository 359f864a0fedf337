//! The walk over all buckets, in the order of `etcdutl snapshot status`.

use std::io::{Read, Seek};

use crc::{CRC_32_ISCSI, Crc, Digest, Table};

use super::{
    DatabaseError, DatabaseSummary, PageProblem,
    blocks::Blocks,
    meta::Meta,
    page::{PAGE_HEADER, PageHeader, branches, leaves, u64_at},
};

static CASTAGNOLI: Crc<u32, Table<16>> = Crc::<u32, Table<16>>::new(&CRC_32_ISCSI);
/// More levels than 2^64 pages need.
const MOST_LEVELS: usize = 40;
/// The length of a bucket's header in its value: the page of its root, and a sequence.
const BUCKET_HEADER: usize = 16;
const KEYS: &[u8] = b"key";
const META: &[u8] = b"meta";
const STORAGE_VERSION: &[u8] = b"storageVersion";

pub(super) struct DatabaseWalk<'a, R> {
    blocks: &'a mut Blocks<R>,
    meta: &'a Meta,
    /// Whether each page was visited.
    visited: Vec<bool>,
    hash: Digest<'static, u32, Table<16>>,
    found: FoundEntries,
}

/// What the walk has found so far.
#[derive(Default)]
struct FoundEntries {
    has_keys: bool,
    revision: u64,
    entries: u64,
    version: Option<String>,
}

/// The keys that a page may have: from the first on, before the second. None: no bound.
#[derive(Clone, Copy, Default)]
struct KeyRange<'a>(Option<&'a [u8]>, Option<&'a [u8]>);

impl KeyRange<'_> {
    /// Checks that the keys are in order and in this range.
    fn check<'k>(self, mut keys: impl Iterator<Item = &'k [u8]> + Clone) -> Result<(), PageProblem> {
        let Self(from, before) = self;
        let is_inside = |key: &[u8]| from.is_none_or(|from| from <= key) && before.is_none_or(|before| key < before);
        let is_sorted = keys.clone().is_sorted_by(|one, next| one < next);
        if is_sorted && keys.all(is_inside) { Ok(()) } else { Err(PageProblem::Order) }
    }
}

/// What the elements of a tree are.
#[derive(Clone, Copy)]
enum TreeLevel<'a> {
    /// Buckets.
    Root,
    /// Keys and values of this bucket.
    Bucket(&'a [u8]),
}

impl<'a, R: Read + Seek> DatabaseWalk<'a, R> {
    pub(super) fn over(blocks: &'a mut Blocks<R>, meta: &'a Meta) -> Result<Self, DatabaseError> {
        // The length of the file bounds the number of pages.
        let pages = usize::try_from(meta.pages).map_err(|_| DatabaseError::NoMeta)?;
        let (visited, hash) = (vec![false; pages], CASTAGNOLI.digest());
        let mut walk = Self { blocks, meta, visited, hash, found: FoundEntries::default() };
        walk.tree(TreeLevel::Root, (meta.root, KeyRange::default()), 0)?;
        Ok(walk)
    }

    pub(super) fn summary(self, total_size: u64) -> Result<DatabaseSummary, DatabaseError> {
        let FoundEntries { has_keys, revision, entries, version } = self.found;
        if !has_keys {
            return Err(DatabaseError::NoKeys);
        }
        Ok(DatabaseSummary { hash: self.hash.finalize(), revision, entries, total_size, version })
    }

    fn tree(
        &mut self,
        level: TreeLevel<'_>,
        (page, range): (u64, KeyRange<'_>),
        depth: usize,
    ) -> Result<(), DatabaseError> {
        let damaged = |problem| DatabaseError::Page { page, problem };
        if depth > MOST_LEVELS {
            return Err(damaged(PageProblem::Depth));
        }
        let (bytes, header) = self.page(page)?;
        if header.is_leaf {
            return self.leaf(level, (page, range), &bytes, &header);
        }
        let below = branches(&bytes, &header).map_err(damaged)?;
        range.check(below.iter().map(|element| element.key)).map_err(damaged)?;
        let next = below.iter().skip(1).map(|element| Some(element.key)).chain([range.1]);
        below.iter().zip(next).try_for_each(|(element, next)| {
            self.tree(level, (element.page, KeyRange(Some(element.key), next)), depth + 1)
        })
    }

    fn leaf(
        &mut self,
        level: TreeLevel<'_>,
        (page, range): (u64, KeyRange<'_>),
        bytes: &[u8],
        header: &PageHeader,
    ) -> Result<(), DatabaseError> {
        let damaged = |problem| DatabaseError::Page { page, problem };
        let elements = leaves(bytes, header).map_err(damaged)?;
        range.check(elements.iter().map(|element| element.key)).map_err(damaged)?;
        for element in elements {
            match level {
                TreeLevel::Root if element.is_bucket => self.bucket(page, element.key, element.value)?,
                TreeLevel::Bucket(bucket) if !element.is_bucket => {
                    self.entry(bucket, element.key, element.value).map_err(damaged)?;
                }
                TreeLevel::Root | TreeLevel::Bucket(_) => return Err(damaged(PageProblem::Bucket)),
            }
        }
        Ok(())
    }

    fn bucket(&mut self, page: u64, name: &[u8], value: &[u8]) -> Result<(), DatabaseError> {
        let damaged = |problem| DatabaseError::Page { page, problem };
        self.hash.update(name);
        self.found.has_keys |= name == KEYS;
        match u64_at(value, 0).ok_or(damaged(PageProblem::Element))? {
            // A small bucket is a page within the value.
            0 => {
                let inline = value.get(BUCKET_HEADER..).ok_or(damaged(PageProblem::Element))?;
                let header = PageHeader::parse(inline).map_err(damaged)?;
                self.leaf(TreeLevel::Bucket(name), (page, KeyRange::default()), inline, &header)
            }
            root => self.tree(TreeLevel::Bucket(name), (root, KeyRange::default()), 0),
        }
    }

    fn entry(&mut self, bucket: &[u8], key: &[u8], value: &[u8]) -> Result<(), PageProblem> {
        self.hash.update(key);
        self.hash.update(value);
        self.found.entries += 1;
        if bucket == KEYS {
            // Keys are in the order of their revisions.
            self.found.revision = main_revision(key).ok_or(PageProblem::Revision)?;
        } else if bucket == META && key == STORAGE_VERSION {
            self.found.version = Some(String::from_utf8_lossy(value).into_owned());
        }
        Ok(())
    }

    /// Reads a page with the pages that continue it, once.
    fn page(&mut self, page: u64) -> Result<(Vec<u8>, PageHeader), DatabaseError> {
        let damaged = |problem| DatabaseError::Page { page, problem };
        let size = self.meta.page_size;
        // The first two pages are the meta pages.
        if page < 2 || page >= self.meta.pages {
            return Err(damaged(PageProblem::Outside));
        }
        let header = self.blocks.read(page * size, PAGE_HEADER).map_err(DatabaseError::Read)?;
        let header = PageHeader::parse(&header).map_err(damaged)?;
        if header.number != page {
            return Err(damaged(PageProblem::Number));
        }
        let end = page + 1 + header.overflow;
        if end > self.meta.pages {
            return Err(damaged(PageProblem::Outside));
        }
        for number in page..end {
            let visited = usize::try_from(number).ok().and_then(|number| self.visited.get_mut(number));
            let visited = visited.ok_or(damaged(PageProblem::Outside))?;
            if std::mem::replace(visited, true) {
                return Err(damaged(PageProblem::Shared));
            }
        }
        let bytes = self.blocks.read(page * size, (end - page) * size).map_err(DatabaseError::Read)?;
        Ok((bytes, header))
    }
}

/// Returns the main part of a revision: 8 bytes, `_`, 8 bytes of the sub-revision, and `t` for a deletion.
fn main_revision(key: &[u8]) -> Option<u64> {
    let (main, rest) = key.split_at_checked(8)?;
    let is_revision = rest.first() == Some(&b'_') && matches!(rest.get(9..), Some([] | [b't']));
    let main = main.try_into().ok().map(u64::from_be_bytes)?;
    is_revision.then_some(main)
}
