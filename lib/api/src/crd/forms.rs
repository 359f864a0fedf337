//! Patterns of texts, as regular expressions in the dialect of CEL (RE2).

use crate::release::MinorRelease;

/// An RFC 1123 label of at most 63 characters.
pub const LABEL: &str = "[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?";
/// A port greater than 0.
pub(super) const PORT: &str =
    "0*([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])";
/// An IPv6 address in brackets, as far as a pattern can check it.
pub(super) const BRACKETED: &str = "\\[[0-9a-fA-F:.]+\\]";
/// An amount of memory.
pub(super) const MEMORY: &str = "[0-9]{1,15}([KMGT]i|[kMGT])?";
/// An amount of CPU.
pub(super) const CPU: &str = "[0-9]{1,6}m?";
/// A duration.
pub const SPAN: &str = "([0-9]+[hms])+";
/// A duration that is too long for CEL.
pub const ENDLESS: &str = "[0-9]{7,}h|[0-9]{9,}m|[0-9]{10,}s";
/// The id of a cluster or installation.
pub(super) const ID: &str = "^[0-9a-f]{16}$";

/// An RFC 1123 subdomain.
#[must_use]
pub fn subdomain() -> String {
    format!("{LABEL}(\\.{LABEL})*")
}

/// A patch release of these minor versions, as [`crate::release::find`] reads it.
pub(super) fn release_form<'a>(rows: impl Iterator<Item = &'a MinorRelease>) -> String {
    let minors: Vec<String> = rows.map(|row| row.minor.to_string()).collect();
    format!("1[.]({})[.](0|[1-9][0-9]{{0,2}})", minors.join("|"))
}

/// Returns the condition that a text is a DNS name: its last label is not a number.
pub(super) fn is_dns_name(text: &str) -> String {
    let whole = super::cel::is(text, &subdomain());
    format!("({whole} && !{text}.matches('(^|\\\\.)[0-9]+$'))")
}
