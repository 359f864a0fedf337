//! The probe that workers send each other through the direct device: its version, and whether its sender hears the other end.

/// The port of both ends, inside the VPN.
pub(super) const PROBE_PORT: u16 = 51823;
const VERSION: u8 = 1;

/// Encodes a probe.
pub(super) fn encode(hears: bool) -> [u8; 2] {
    [VERSION, u8::from(hears)]
}

/// Parses a probe, and ignores further bytes. `None`: it is none, or one of an unknown version.
pub(super) fn parse(bytes: &[u8]) -> Option<bool> {
    match bytes {
        [VERSION, hears, ..] => Some(*hears == 1),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probe_is_read_as_it_was_written() {
        assert_eq!([true, false].map(|hears| parse(&encode(hears))), [Some(true), Some(false)]);
        assert_eq!(parse(&[VERSION, 1, 7]), Some(true));
        assert_eq!([parse(&[2, 1]), parse(&[VERSION]), parse(&[])], [None; 3]);
    }
}
