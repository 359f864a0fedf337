//! The encoding that tests compare with, from the headers of the kernel alone.

/// Marks an attribute that holds others (`NLA_F_NESTED`).
pub(crate) const NESTED: u16 = 0x8000;

/// An attribute as `linux/netlink.h` lays it out: length with header, type, value, padding to four bytes.
pub(crate) fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let mut bytes = u16::try_from(value.len() + 4).unwrap().to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}
