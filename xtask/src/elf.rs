//! Reads the headers of a program (System V ABI, chapters 4 and 5).

use anyhow::{Context, Result, ensure};

const MAGIC: &[u8] = b"\x7fELF";
/// `ELFCLASS64` and `ELFDATA2LSB`: 64 bits, little-endian.
const KIND: [u8; 2] = [2, 1];
/// The offsets of `e_phoff`, `e_phentsize` and `e_phnum`.
const HEADERS_AT: usize = 32;
const HEADER_SIZE: usize = 54;
const HEADER_COUNT: usize = 56;
/// The type of the program header that names a loader. Every program with shared libraries has one.
const PT_INTERP: u32 = 3;

/// Returns whether the program needs a loader, and therefore shared libraries.
pub(crate) fn has_loader(program: &[u8]) -> Result<bool> {
    ensure!(program.starts_with(MAGIC), "not a program");
    ensure!(program.get(4..6) == Some(&KIND), "not a program of 64 bits, the lowest byte first");
    let first = usize::try_from(u64::from_le_bytes(bytes(program, HEADERS_AT)?))?;
    let size = usize::from(u16::from_le_bytes(bytes(program, HEADER_SIZE)?));
    let count = usize::from(u16::from_le_bytes(bytes(program, HEADER_COUNT)?));
    for header in 0..count {
        let at = first.checked_add(size * header).context("a program that is cut off")?;
        if u32::from_le_bytes(bytes(program, at)?) == PT_INTERP {
            return Ok(true);
        }
    }
    Ok(false)
}

fn bytes<const N: usize>(program: &[u8], at: usize) -> Result<[u8; N]> {
    let found = program.get(at..).and_then(|rest| rest.first_chunk());
    found.copied().context("a program that is cut off")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a file header followed by one program header of this type.
    fn program(kind: u32) -> Vec<u8> {
        let mut bytes = [MAGIC, &KIND, &[0; 58]].concat();
        bytes[HEADERS_AT] = 64;
        bytes[HEADER_SIZE] = 56;
        bytes[HEADER_COUNT] = 1;
        bytes.extend(kind.to_le_bytes());
        bytes.extend([0; 52]);
        bytes
    }

    #[test]
    fn programs_with_and_without_a_loader_are_distinguished() {
        assert!(has_loader(&program(PT_INTERP)).unwrap());
        assert!(!has_loader(&program(1)).unwrap());
    }

    #[test]
    fn files_that_are_not_programs_are_refused() {
        assert!(has_loader(b"#!/bin/sh").is_err());
        assert!(has_loader(&program(1)[..64]).is_err());
    }

    /// Test programs are linked dynamically against the libraries of the system.
    #[test]
    fn this_test_has_a_loader() {
        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        assert!(has_loader(&own).unwrap());
    }
}
