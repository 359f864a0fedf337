//! The versions that a kubelet may have (Kubernetes' version skew policy). Pure.

use std::fmt;

/// How many minor versions a kubelet may be older than the API server.
const OLDEST: u32 = 3;

/// A version of Kubernetes, without what follows its patch number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct KubernetesVersion {
    major: u32,
    minor: u32,
    patch: u32,
}

impl KubernetesVersion {
    /// Parses `v1.37.0`, `1.37.0`, or such a version with a suffix, such as `v1.37.0-rc.1+k3s`.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        let text = text.strip_prefix('v').unwrap_or(text);
        let numbers = text.split(['-', '+']).next()?;
        let mut numbers = numbers.split('.').map(str::parse);
        let mut next = || numbers.next()?.ok();
        let version = Self { major: next()?, minor: next()?, patch: next()? };
        numbers.next().is_none().then_some(version)
    }
}

impl fmt::Display for KubernetesVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

/// A kubelet that the version skew policy does not allow.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SkewFault {
    /// The kubelet is newer than the API server.
    #[error(
        "the kubelet of {image} has version {kubelet}, which is newer than the API server ({api_server}); upgrade the cluster first, or choose an older version"
    )]
    Newer {
        /// The image of the kubelet.
        image: String,
        /// The version of the kubelet.
        kubelet: String,
        /// The version of the API server.
        api_server: String,
    },
    /// The kubelet is too old.
    #[error(
        "the kubelet of {image} has version {kubelet}, which is more than {OLDEST} minor versions older than the API server ({api_server}); choose a newer version"
    )]
    Older {
        /// The image of the kubelet.
        image: String,
        /// The version of the kubelet.
        kubelet: String,
        /// The version of the API server.
        api_server: String,
    },
}

/// Checks a kubelet's version against that of the API server. A newer patch of the same minor version is allowed.
pub(crate) fn check(image: &str, kubelet: KubernetesVersion, server: KubernetesVersion) -> Result<(), SkewFault> {
    let texts = || (image.to_owned(), kubelet.to_string(), server.to_string());
    if (kubelet.major, kubelet.minor) > (server.major, server.minor) {
        let (image, kubelet, api_server) = texts();
        return Err(SkewFault::Newer { image, kubelet, api_server });
    }
    if kubelet.major < server.major || kubelet.minor + OLDEST < server.minor {
        let (image, kubelet, api_server) = texts();
        return Err(SkewFault::Older { image, kubelet, api_server });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(text: &str) -> KubernetesVersion {
        KubernetesVersion::parse(text).unwrap()
    }

    #[test]
    fn versions_are_parsed_with_prefix_and_suffix() {
        for text in ["1.37.0", "v1.37.0", " v1.37.0\n", "v1.37.0-rc.1", "v1.37.0+k3s1"] {
            assert_eq!(version(text).to_string(), "1.37.0");
        }
        for text in ["", "v1", "1.37", "1.37.x", "1.37.0.1", "latest"] {
            assert_eq!(KubernetesVersion::parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_kubelet_is_never_newer_and_at_most_three_minors_older() {
        let checked = |kubelet: &str| check("node:x", version(kubelet), version("v1.37.1"));
        for allowed in ["1.37.1", "1.37.9", "1.37.0", "1.36.3", "1.34.0"] {
            assert_eq!(checked(allowed), Ok(()), "{allowed}");
        }
        let newer = checked("1.38.0").unwrap_err();
        assert!(matches!(newer, SkewFault::Newer { .. }) && newer.to_string().contains("(1.37.1)"), "{newer}");
        assert!(matches!(checked("2.0.0"), Err(SkewFault::Newer { .. })));
        assert!(matches!(checked("1.33.9"), Err(SkewFault::Older { .. })));
        assert!(matches!(checked("0.99.0"), Err(SkewFault::Older { .. })));
    }
}
