//! Images that a person gives in place of those that Keelway chooses.

use std::borrow::Cow;

use crate::registry::{registry_of, repository_of};

/// The names of the images that run in a cluster or on its workers, without their registries.
pub const NAMES: [&str; 12] = [
    "cluster-controller",
    "coredns",
    "etcd",
    "fleet-controller",
    "haproxy",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-proxy",
    "kube-scheduler",
    "metrics-server",
    "node",
    "pause",
];

/// Those of them that workers run.
pub const OF_WORKERS: [&str; 5] = ["coredns", "kube-proxy", "metrics-server", "node", "pause"];

/// The number of hexadecimal digits of SHA-256.
pub(crate) const DIGITS: usize = 64;
/// The length that registries allow for a tag (OCI Distribution Specification, "Pulling manifests").
pub(crate) const LONGEST_TAG: usize = 128;

/// The parts of `REGISTRY/NAME:TAG@sha256:DIGEST`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImageOverride<'a> {
    /// The registry, with the path in it.
    pub registry: &'a str,
    /// The name, which is the last element of the path.
    pub name: &'a str,
    /// The tag.
    pub tag: &'a str,
}

impl<'a> ImageOverride<'a> {
    /// Reads an override. Returns `None` if the text does not have its form.
    #[must_use]
    pub fn parse(text: &'a str) -> Option<Self> {
        let (image, digest) = text.split_once('@')?;
        let digits = digest.strip_prefix("sha256:")?;
        let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        let (registry, name, tag) = parts(image)?;
        let is_start = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
        let is_tag = tag.len() <= LONGEST_TAG
            && tag.bytes().next().is_some_and(is_start)
            && tag.bytes().all(|byte| is_start(byte) || byte == b'.' || byte == b'-');
        (digits.len() == DIGITS && digits.bytes().all(is_digit) && is_tag).then_some(Self { registry, name, tag })
    }
}

/// Returns the first of the overrides that has the name and the tag of an image, or the image itself.
///
/// The tag belongs to a release, so an override ends with an upgrade to another release.
#[must_use]
pub fn overridden(image: String, overrides: &[String]) -> String {
    let of_image = parts(&image).map(|(_, name, tag)| (name, tag));
    let found = overrides.iter().find(|text| {
        ImageOverride::parse(text).is_some_and(|ImageOverride { name, tag, .. }| Some((name, tag)) == of_image)
    });
    found.cloned().unwrap_or(image)
}

/// Returns whether an override is for an image that workers run.
#[must_use]
pub fn is_of_workers(text: &str) -> bool {
    ImageOverride::parse(text).is_some_and(|found| OF_WORKERS.contains(&found.name))
}

/// Returns the tag of an image, which may have a digest as well. It is empty if the image has none.
#[must_use]
pub fn tag_of(image: &str) -> &str {
    let image = image.split_once('@').map_or(image, |(image, _)| image);
    parts(image).map_or("", |(_, _, tag)| tag)
}

/// Returns the name under which a container runtime reports an image. It completes names of Docker's registry, and of an image with both a tag and a digest it
/// drops the tag (`ParseDockerRef` of `github.com/distribution/reference`).
#[must_use]
pub fn reported_name(image: &str) -> Cow<'_, str> {
    let (repository, rest) = image.split_at(repository_of(image).len());
    let version = rest.find('@').map_or(rest, |at| &rest[at..]);
    let path = repository.strip_prefix("index.docker.io/").or_else(|| repository.strip_prefix("docker.io/"));
    let of_docker = path.or_else(|| (!repository.starts_with(registry_of(image))).then_some(repository));
    match of_docker {
        Some(path) if path.contains('/') => ["docker.io/", path, version].concat().into(),
        Some(path) => ["docker.io/library/", path, version].concat().into(),
        None if version.len() == rest.len() => image.into(),
        None => [repository, version].concat().into(),
    }
}

/// Splits `REGISTRY/NAME:TAG`.
fn parts(image: &str) -> Option<(&str, &str, &str)> {
    let (registry, last) = image.rsplit_once('/')?;
    let (name, tag) = last.split_once(':')?;
    Some((registry, name, tag))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::release::{self, Release};

    const DIGEST: &str = "@sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";

    #[test]
    fn an_override_replaces_the_image_of_its_name_and_tag() {
        let other = format!("mirror.example.com:5000/k8s/etcd:3.7.0-0{DIGEST}");
        let overrides = [format!("mirror.example.com/etcd:3.6.8-0{DIGEST}"), other.clone(), other.replace("k8s", "b")];
        let image = |name: &str| overridden(name.to_owned(), &overrides);
        assert_eq!(image("registry.k8s.io/etcd:3.7.0-0"), other);
        for unchanged in ["registry.k8s.io/etcd:3.6.6-0", "registry.k8s.io/pause:3.7.0-0", "etcd:3.7.0-0"] {
            assert_eq!(image(unchanged), unchanged);
        }
    }

    #[test]
    fn an_override_has_a_registry_a_tag_and_a_digest() {
        let parse = |text: &str| ImageOverride::parse(&format!("{text}{DIGEST}")).is_some();
        assert!(parse("registry.k8s.io/coredns/coredns:v1.14.6"));
        assert!(!parse("registry.k8s.io/etcd") && !parse("etcd:3.7.0-0") && !parse("registry.k8s.io/etcd:.1"));
        assert_eq!(ImageOverride::parse("registry.k8s.io/etcd:3.7.0-0@sha256:9f86"), None);
        assert_eq!(ImageOverride::parse("registry.k8s.io/etcd:3.7.0-0"), None);
    }

    #[test]
    fn every_image_of_a_release_has_a_name_of_the_list() {
        let release: Release = release::newest();
        let images = [
            release.etcd_image(None),
            release.coredns_image(None),
            release.node_image(None),
            release.pause_image(None),
            release.kubernetes_image("kube-apiserver", None),
            release.kubernetes_image("kube-controller-manager", None),
            release.kubernetes_image("kube-scheduler", None),
            release.kubernetes_image("kube-proxy", None),
            release::haproxy_image(None),
            release::metrics_server_image(None),
            release::cluster_controller_image(None, release::KEELWAY),
            release::fleet_controller_image(None, release::KEELWAY),
        ];
        let mut names: Vec<&str> = images.iter().map(|image| parts(image).unwrap().1).collect();
        names.sort_unstable();
        assert_eq!(names, NAMES);
    }

    #[test]
    fn a_runtime_reports_a_digest_without_the_tag() {
        let image = format!("registry.example.com:5000/k8s/etcd:3.7.0-0{DIGEST}");
        assert_eq!(reported_name(&image), format!("registry.example.com:5000/k8s/etcd{DIGEST}"));
        assert_eq!(reported_name("registry.k8s.io/etcd:3.7.0-0"), "registry.k8s.io/etcd:3.7.0-0");
        for image in ["docker.io/mirror/etcd:1", "index.docker.io/mirror/etcd:1", "mirror/etcd:1"] {
            assert_eq!(reported_name(image), "docker.io/mirror/etcd:1");
        }
        assert_eq!(reported_name("haproxy:2.6"), "docker.io/library/haproxy:2.6");
        assert_eq!(reported_name("docker.io/haproxy"), "docker.io/library/haproxy");
        assert_eq!(reported_name("localhost:5000/etcd:1"), "localhost:5000/etcd:1");
        assert_eq!((tag_of(&image), tag_of("localhost:5000/etcd")), ("3.7.0-0", ""));
    }
}
