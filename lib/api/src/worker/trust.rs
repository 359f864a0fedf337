//! Annotations of a Node with which a worker reports the authorities that it uses.

/// The SHA-256 of the authorities that the worker and its kubelet trust: of the bytes of [`super::AUTHORITIES_KEY`], in lowercase hexadecimal
/// digits. The worker sets it once its kubelet runs with them.
pub const TRUSTED_AUTHORITIES: &str = "keelway.dev/trusted-authorities";
/// The authority key identifiers of the certificates that the kubelet uses, as client and as server, in lowercase hexadecimal digits: each
/// once, sorted, separated by commas.
pub const CERTIFICATE_ISSUERS: &str = "keelway.dev/certificate-issuers";
