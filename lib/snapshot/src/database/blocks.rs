//! Random access to a sealed file. Each block is decrypted as a whole, so the last ones are kept.

use std::{
    collections::BTreeMap,
    io::{self, Read, Seek, SeekFrom},
};

/// The size of a block: what age seals together.
const BLOCK: u64 = 64 * 1024;
/// The number of blocks in memory: 8 MiB.
const KEPT: usize = 128;

pub(super) struct Blocks<R> {
    reader: R,
    length: u64,
    kept: BTreeMap<u64, KeptBlock>,
    reads: u64,
}

struct KeptBlock {
    bytes: Vec<u8>,
    read: u64,
}

impl<R: Read + Seek> Blocks<R> {
    pub(super) fn new(reader: R, length: u64) -> Self {
        Self { reader, length, kept: BTreeMap::new(), reads: 0 }
    }

    pub(super) fn length(&self) -> u64 {
        self.length
    }

    /// Returns `length` bytes from `at` on. An error if the file has fewer.
    pub(super) fn read(&mut self, at: u64, length: u64) -> io::Result<Vec<u8>> {
        let end = at.checked_add(length).filter(|end| *end <= self.length);
        let end = end.ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof))?;
        let mut found = Vec::with_capacity(usize::try_from(length).map_err(io::Error::other)?);
        let mut from = at;
        while from < end {
            let block = self.block(from / BLOCK)?;
            let start = usize::try_from(from % BLOCK).map_err(io::Error::other)?;
            let left = usize::try_from(end - from).map_err(io::Error::other)?;
            let part = block.get(start..block.len().min(start.saturating_add(left))).unwrap_or_default();
            if part.is_empty() {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            found.extend_from_slice(part);
            from += part.len() as u64;
        }
        Ok(found)
    }

    fn block(&mut self, number: u64) -> io::Result<&[u8]> {
        self.reads += 1;
        let reads = self.reads;
        if !self.kept.contains_key(&number) {
            let bytes = self.load(number)?;
            self.drop_the_oldest();
            self.kept.insert(number, KeptBlock { bytes, read: reads });
        }
        let kept = self.kept.get_mut(&number).ok_or(io::ErrorKind::NotFound)?;
        kept.read = reads;
        Ok(&kept.bytes)
    }

    fn load(&mut self, number: u64) -> io::Result<Vec<u8>> {
        let at = number.saturating_mul(BLOCK);
        self.reader.seek(SeekFrom::Start(at))?;
        let mut bytes = Vec::new();
        (&mut self.reader).take(BLOCK.min(self.length.saturating_sub(at))).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    fn drop_the_oldest(&mut self) {
        if self.kept.len() >= KEPT {
            let oldest = self.kept.iter().min_by_key(|(_, block)| block.read).map(|(number, _)| *number);
            oldest.and_then(|number| self.kept.remove(&number));
        }
    }
}
