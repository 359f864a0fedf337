//! Explains why an image was not pulled, and what to do. Runtimes have no error codes for the causes, only messages.

use keelway_api::registry::registry_of;
use keelway_base::error_chain::chain_text;
use keelway_cri as cri;

/// An image was not pulled.
#[derive(Debug, thiserror::Error)]
#[error("cannot pull {image} from {registry}: {help}")]
pub struct PullError {
    image: String,
    registry: String,
    help: String,
    #[source]
    source: cri::CriError,
}

impl PullError {
    pub(crate) fn of(image: &str, with_credentials: bool, source: cri::CriError) -> Self {
        let registry = registry_of(image);
        let help = PullFailure::of(&error_text(&source)).help(registry, with_credentials);
        Self { image: image.to_owned(), registry: registry.to_owned(), help, source }
    }

    /// Returns whether the runtime may have pulled the image nevertheless.
    pub(crate) fn leaves_open(&self) -> bool {
        self.source.retriable()
    }
}

/// Returns the error with all of its causes, in lower case.
fn error_text(error: &cri::CriError) -> String {
    chain_text(error).to_lowercase()
}

/// The cause of a failed pull.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PullFailure {
    Authority,
    Credentials,
    Unreachable,
    Absent,
    Other,
}

/// Messages of containerd, and of Go's network and TLS packages, by cause. The order matters: messages of a failed handshake also match those of a
/// failed connection, and a registry that refuses credentials also reports that the image may not exist.
const WORDS: [(PullFailure, &[&str]); 4] = [
    (
        PullFailure::Authority,
        &["x509:", "failed to verify certificate", "http: server gave http response to https client"],
    ),
    (
        PullFailure::Credentials,
        &["unauthorized", "authorization failed", "insufficient_scope", "no basic auth credentials", "forbidden"],
    ),
    (
        PullFailure::Unreachable,
        &["dial tcp", "connection refused", "no such host", "i/o timeout", "no route to host", "no response within"],
    ),
    (PullFailure::Absent, &["not found", "manifest unknown"]),
];

impl PullFailure {
    fn of(words: &str) -> Self {
        let known = WORDS.into_iter().find(|(_, known)| known.iter().any(|known| words.contains(known)));
        known.map_or(Self::Other, |(cause, _)| cause)
    }

    fn help(self, registry: &str, with_credentials: bool) -> String {
        match (self, with_credentials) {
            (Self::Authority, _) => format!(
                "the machine's runtime does not trust its certificate: add its authority to /etc/containerd/certs.d/{registry}"
            ),
            (Self::Credentials, true) => {
                "it refused these credentials: correct the Secret of spec.images.pullSecrets".to_owned()
            }
            (Self::Credentials, false) => {
                "it requires credentials: name a Secret with them in spec.images.pullSecrets".to_owned()
            }
            (Self::Unreachable, _) => {
                "the machine cannot reach it: check the network between them, or name another registry in spec.images.registry"
                    .to_owned()
            }
            (Self::Absent, _) => "it has no such image: push the image, or correct spec.images.registry".to_owned(),
            (Self::Other, _) => "see the error of the machine's runtime".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cause_of_a_failed_pull_is_read_from_containerds_error() {
        let known = [
            (
                "failed to do request: Head \"https://r.io/v2/pause/manifests/3\": tls: failed to verify certificate: x509: \
                 certificate signed by unknown authority",
                PullFailure::Authority,
            ),
            (
                "unexpected status from HEAD request to https://r.io/v2/pause/manifests/3: 401 Unauthorized",
                PullFailure::Credentials,
            ),
            (
                "pull access denied, repository does not exist or may require authorization: authorization failed: no basic \
                 auth credentials",
                PullFailure::Credentials,
            ),
            (
                "failed to do request: Head \"https://r.io/v2\": dial tcp 10.0.0.1:443: connect: connection refused",
                PullFailure::Unreachable,
            ),
            ("failed to resolve image: r.io/pause:3: not found", PullFailure::Absent),
            ("no space left on device", PullFailure::Other),
        ];
        for (words, cause) in known {
            assert_eq!(PullFailure::of(&words.to_lowercase()), cause, "{words}");
        }
    }
}
