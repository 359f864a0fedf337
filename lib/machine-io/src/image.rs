//! Images on the machine, from image archives and from registries.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::{Path, PathBuf},
    sync::{Arc, PoisonError},
};

use keelway_api::{image_override::reported_name, registry::RegistryCredentials};
use keelway_cri::{CriRuntime, Login};
use tokio::sync::Mutex;

use crate::{
    access::MachineAccess, execute::EffectError, fetched_images::Fetches, local::LocalMachine, pull::PullError,
    unused_images::UnusedImage,
};

/// Returns the name of an image's file in a directory of archives: the name of the image with `/` and `:` replaced by `_`, and `.tar`.
#[must_use]
pub fn archive_name(image: &str) -> String {
    format!("{}.tar", image.replace(['/', ':'], "_"))
}

/// Makes sure that a runtime has an image: from the directory of archives if it contains the image, and otherwise from its registry.
///
/// # Errors
/// Returns an error if neither has the image, or if the runtime refuses it.
pub async fn ensure(runtime: &CriRuntime, archives: &Path, image: &str) -> Result<(), EffectError> {
    Images::of_runtime(runtime, archives, &ImageFetchLocks::default()).ensure(image, None).await
}

/// Imports an image that a runtime lacks from the directory of archives. Does nothing if the directory does not contain the image.
///
/// # Errors
/// Returns an error if the archive cannot be read, or if the runtime refuses it.
pub async fn import(runtime: &CriRuntime, archives: &Path, image: &str) -> Result<(), EffectError> {
    let turns = ImageFetchLocks::default();
    let images = Images::of_runtime(runtime, archives, &turns);
    match images.open_archive(image).await? {
        Some((archive, path)) if runtime.image_status(image).await?.is_none() => {
            images.import(archive, path, image).await
        }
        Some(_) | None => Ok(()),
    }
}

/// A lock for each image, so that pods with the same image wait for one fetch.
#[derive(Debug, Default)]
pub(crate) struct ImageFetchLocks(std::sync::Mutex<BTreeMap<String, Arc<Mutex<()>>>>);

impl ImageFetchLocks {
    fn of(&self, image: &str) -> Arc<Mutex<()>> {
        let mut turns = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(turns.entry(image.to_owned()).or_default())
    }
}

/// The images of one machine.
pub struct Images<'a> {
    runtime: &'a CriRuntime,
    archives: Option<&'a Path>,
    turns: &'a ImageFetchLocks,
    /// The record of fetched images, if this process keeps one.
    record: Option<(&'a Fetches, &'a MachineAccess)>,
}

impl<'a> Images<'a> {
    /// Returns the images of a machine.
    pub fn of(machine: &'a LocalMachine) -> Self {
        Self {
            runtime: &machine.runtime,
            archives: machine.archives.as_deref(),
            turns: &machine.fetch_locks,
            record: machine.fetches.is_recording().then_some((&machine.fetches, &machine.access)),
        }
    }

    fn of_runtime(runtime: &'a CriRuntime, archives: &'a Path, turns: &'a ImageFetchLocks) -> Self {
        Self { runtime, archives: Some(archives), turns, record: None }
    }

    /// Makes sure that the machine has an image.
    ///
    /// # Errors
    /// Neither the archives nor the registry have the image, or the runtime refuses it.
    pub async fn ensure(&self, image: &str, credentials: Option<&RegistryCredentials>) -> Result<(), EffectError> {
        let name = reported_name(image);
        let turn = self.turns.of(&name);
        let _turn = turn.lock().await;
        if self.runtime.image_status(image).await?.is_some() {
            return Ok(());
        }
        let Some((record, site)) = self.record else {
            return self.fetch(image, credentials).await;
        };
        record.begin(site, &name).await;
        let fetched = self.fetch(image, credentials).await;
        match &fetched {
            Ok(()) => {
                if let Some(found) = self.runtime.image_status(image).await? {
                    record.end(site, &name, found.id).await;
                }
            }
            // The fetch certainly failed. If the image appears later, another program fetched it.
            Err(error) if !error.leaves_open() => record.forget(site, &BTreeSet::from([name.into_owned()])).await,
            Err(_) => {}
        }
        fetched
    }

    async fn fetch(&self, image: &str, credentials: Option<&RegistryCredentials>) -> Result<(), EffectError> {
        let Some((archive, path)) = self.open_archive(image).await? else {
            let login = credentials.map(|found| Login { username: &found.username, password: &found.password });
            let pulled = self.runtime.pull_image(image, login).await;
            return pulled.map(|_| ()).map_err(|error| PullError::of(image, credentials.is_some(), error).into());
        };
        self.import(archive, path, image).await
    }

    async fn import(&self, archive: tokio::fs::File, path: PathBuf, image: &str) -> Result<(), EffectError> {
        self.runtime.import_images(archive).await?;
        match self.runtime.image_status(image).await? {
            Some(_) => Ok(()),
            None => Err(EffectError::OtherImage { path, image: image.to_owned() }),
        }
    }

    /// Removes an unused image. Removes nothing once `holds` returns false, because another config may name the image, or if another program added a
    /// name to the image. Returns whether the image is gone.
    pub async fn remove(&self, unused: &UnusedImage, holds: impl Fn() -> bool + Send) -> Result<bool, EffectError> {
        let mut turns = Vec::new();
        for name in &unused.names {
            turns.push(self.turns.of(name).lock_owned().await);
        }
        let found = self.runtime.image_status(&unused.id).await?;
        if found.is_some_and(|image| image.tags != unused.tags) || !holds() {
            return Ok(false);
        }
        self.runtime.remove_image(&unused.id).await?;
        if let Some((fetches, site)) = self.record {
            fetches.forget(site, &unused.names).await;
        }
        Ok(true)
    }

    async fn open_archive(&self, image: &str) -> Result<Option<(tokio::fs::File, PathBuf)>, EffectError> {
        let Some(archives) = self.archives else {
            return Ok(None);
        };
        let path = archives.join(archive_name(image));
        match tokio::fs::File::open(&path).await {
            Ok(archive) => Ok(Some((archive, path))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(EffectError::OpenArchive { path, source }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_is_named_after_its_image() {
        assert_eq!(
            archive_name("registry.k8s.io/kube-apiserver:v1.37.0"),
            "registry.k8s.io_kube-apiserver_v1.37.0.tar"
        );
    }
}
