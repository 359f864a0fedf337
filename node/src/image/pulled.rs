//! Finds the images that were pulled for a worker. Pure, except for the kubelet's records.

use std::{collections::BTreeSet, fs, path::Path};

use containerd_client::services::v1::Image;
use serde_json::Value;

use crate::files::{self, NodeFileError};

/// The directory below the kubelet's directory in which it records each image that it pulled (KEP-2535). Kubelets before 1.35 have no records.
const RECORDS: &str = "image_manager/pulled";
/// The label with which containerd marks the image of its sandboxes, which it pulls by itself.
const PINNED: (&str, &str) = ("io.cri-containerd.pinned", "pinned");

/// Returns the names under which containerd has the images that the kubelet pulled.
pub(crate) fn records(kubelet_root: &Path) -> Result<BTreeSet<String>, NodeFileError> {
    let directory = kubelet_root.join(RECORDS);
    let entries = match fs::read_dir(&directory) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(BTreeSet::new()),
        entries => entries.map_err(NodeFileError::new("list", &directory))?,
    };
    let mut names = BTreeSet::new();
    for entry in entries.flatten() {
        let record = files::read(&entry.path())?.and_then(|text| serde_json::from_str::<Value>(&text).ok());
        names.extend(record.and_then(|record| record["imageRef"].as_str().map(str::to_owned)));
    }
    Ok(names)
}

/// The facts that decide which images are removed.
#[derive(Debug, Default)]
pub(super) struct ImageOrigins<'a> {
    /// The digests of the images before the join.
    pub(super) before: BTreeSet<String>,
    /// Names of images that the kubelet or the join pulled.
    pub(super) pulled: BTreeSet<String>,
    /// Names of images that containers use.
    pub(super) used: BTreeSet<String>,
    /// All images. An image has several names, some of which appear later.
    pub(super) all: &'a [Image],
}

impl ImageOrigins<'_> {
    /// Returns the names to remove, and the names of images that were added since the join and stay.
    pub(super) fn removals(&self) -> (Vec<String>, Vec<String>) {
        let digests = |is_meant: &dyn Fn(&Image) -> bool| -> BTreeSet<String> {
            self.all.iter().filter(|image| is_meant(image)).map(digest_of).collect()
        };
        let pulled = digests(&|image| self.pulled.contains(&image.name) || is_pinned(image));
        let used = digests(&|image| self.used.contains(&image.name));
        let new = self.all.iter().filter(|image| !self.before.contains(&digest_of(image)));
        let (removed, stay): (Vec<&Image>, Vec<&Image>) = new.partition(|image| {
            let digest = digest_of(image);
            pulled.contains(&digest) && !used.contains(&digest)
        });
        let names = |images: Vec<&Image>| images.into_iter().map(|image| image.name.clone()).collect();
        (names(removed), names(stay))
    }
}

fn is_pinned(image: &Image) -> bool {
    image.labels.get(PINNED.0).is_some_and(|value| value == PINNED.1)
}

/// Returns the digest of an image.
pub(super) fn digest_of(image: &Image) -> String {
    image.target.as_ref().map(|target| target.digest.clone()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use containerd_client::types::Descriptor;

    use super::*;

    fn image(name: &str, digest: &str) -> Image {
        let target = Some(Descriptor { digest: digest.to_owned(), ..Descriptor::default() });
        Image { name: name.to_owned(), target, ..Image::default() }
    }

    fn set(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn only_images_that_were_pulled_for_the_worker_are_removed() {
        let mut pause = image("pause:3", "p");
        pause.labels.insert(PINNED.0.to_owned(), PINNED.1.to_owned());
        let all = [
            image("app:1", "a"),
            image("sha256:01", "a"),
            image("old:1", "o"),
            image("others:1", "x"),
            pause,
            image("used:1", "u"),
            image("used:latest", "u"),
        ];
        let origins = ImageOrigins {
            before: set(&["o"]),
            pulled: set(&["sha256:01", "old:1", "used:1"]),
            used: set(&["used:latest"]),
            all: &all,
        };
        let (removed, stay) = origins.removals();
        assert_eq!(removed, ["app:1", "sha256:01", "pause:3"]);
        assert_eq!(stay, ["others:1", "used:1", "used:latest"]);
    }

    /// The records are those of kubelets of 1.37 and 1.35.
    #[test]
    fn records_of_the_kubelet_are_read() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(records(root.path()).unwrap(), set(&[]));
        let directory = root.path().join(RECORDS);
        fs::create_dir_all(&directory).unwrap();
        let record = |version: &str, name: &str| {
            let mapping = r#"{"docker.io/testing/test":{"nodePodsAccessible":true}}"#;
            format!(
                r#"{{"kind":"ImagePulledRecord","apiVersion":"kubelet.config.k8s.io/{version}","lastUpdatedTime":"2024-10-21T12:26:40Z","imageRef":"{name}","credentialMapping":{mapping}}}"#
            )
        };
        fs::write(directory.join("sha256-1"), record("v1beta1", "sha256:01")).unwrap();
        fs::write(directory.join("sha256-2"), record("v1alpha1", "sha256:02")).unwrap();
        fs::write(directory.join("sha256-3"), "{").unwrap();
        assert_eq!(records(root.path()).unwrap(), set(&["sha256:01", "sha256:02"]));
    }
}
