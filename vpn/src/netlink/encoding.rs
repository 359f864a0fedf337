//! The encoding that tests compare with, taken only from the kernel's headers.

/// Marks an attribute that contains others (`NLA_F_NESTED`).
pub(crate) const NESTED: u16 = 0x8000;

/// Encodes an attribute as `linux/netlink.h` defines it: length with header, type, value, padding to four bytes.
pub(crate) fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let mut bytes = u16::try_from(value.len() + 4).unwrap().to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}
