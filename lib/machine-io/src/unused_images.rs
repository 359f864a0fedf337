//! Decides which images are removed: those that this agent fetched, and that neither its config nor a container has used for a while. Pure.

#[cfg(test)]
mod tests;

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use keelway_api::{image_override::reported_name, machine::MachineConfig, registry::repository_of};

use keelway_machine::supervise::MonotonicTime;

use keelway_cri::{self as cri, CriRuntime};

use crate::fetched_images::FetchRecord;

/// How long an unused image is kept: one day. If an upgrade is rolled back the next morning, the images of the earlier release are still there, also
/// if no registry responds. A machine holds the images of one day's releases beside those in use. A kubelet waits for 2 minutes
/// (`imageMinimumGCAge`), because it removes images only while the disk is nearly full. The age at which it removes them on any disk
/// (`imageMaximumGCAge`, KEP-4210) is not set by default.
pub const GRACE: Duration = Duration::from_secs(24 * 3600);

/// The images of a runtime, and those that its containers use.
#[derive(Debug, Default)]
pub struct ImageUse {
    images: Vec<cri::CriImage>,
    /// Names and ids of the images of all containers: of any program, running or not.
    used: BTreeSet<String>,
}

/// Lists containers after images, so that a container that is created meanwhile is included.
pub async fn observe(runtime: &CriRuntime) -> Result<ImageUse, cri::CriError> {
    let images = runtime.list_images().await?;
    let containers = runtime.list_containers(&BTreeMap::new()).await?;
    let used = containers.into_iter().flat_map(|container| [container.image, container.image_ref]).collect();
    Ok(ImageUse { images, used })
}

/// An image to remove.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnusedImage {
    /// The id that the runtime assigned.
    pub(crate) id: String,
    /// All names with a tag.
    pub(crate) tags: Vec<String>,
    /// The names under which the agent fetched the image.
    pub names: BTreeSet<String>,
}

/// The decision about images.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ImageCleanupPlan {
    /// The images to remove now.
    pub remove: Vec<UnusedImage>,
    /// Names in the record that no longer refer to an image of the agent.
    pub forget: BTreeSet<String>,
    /// When the next image may be removed.
    pub next: Option<MonotonicTime>,
}

/// Returns the images that a config names, as the runtime reports them.
#[must_use]
pub fn wanted_by(config: &MachineConfig) -> BTreeSet<Cow<'_, str>> {
    let of_containers = config.pods.values().flat_map(|pod| &pod.containers).map(|container| &container.image);
    let of_pods = config.pods.values().flat_map(|pod| pod.prefetch.iter().chain([&pod.pause_image]));
    of_containers.chain(of_pods).map(|image| reported_name(image)).collect()
}

/// The time since which each fetched image has been unused, by name. The clock is monotonic and starts with the agent, as a kubelet's does. A wrong
/// system clock therefore removes nothing.
#[derive(Debug, Default)]
pub struct Idle(BTreeMap<String, MonotonicTime>);

impl Idle {
    /// Marks the images of a new config as used.
    pub fn another_config(&mut self, wanted: &BTreeSet<Cow<str>>) {
        self.0.retain(|name, _| !wanted.contains(name.as_str()));
    }

    /// Restarts the age of these images, because they are used or could not be removed.
    pub fn restart_age(&mut self, names: &BTreeSet<String>) {
        self.0.retain(|name, _| !names.contains(name));
    }

    /// Decides on an observation that was made while no image was being fetched.
    pub fn decide(
        &mut self,
        (now, grace): (MonotonicTime, Duration),
        (record, wanted): (&FetchRecord, &BTreeSet<Cow<str>>),
        seen: &ImageUse,
    ) -> ImageCleanupPlan {
        let mut verdict = ImageCleanupPlan::default();
        let mut known = BTreeSet::new();
        for image in &seen.images {
            let fetched = Fetched { record, image };
            let names = fetched.names();
            known.extend(names.iter().cloned());
            let is_wanted = references(image).any(|name| wanted.contains(name));
            let is_used = references(image).any(|name| seen.used.contains(name));
            if names.is_empty() || is_wanted || is_used || image.pinned || !fetched.is_of_nobody_else(&names) {
                self.restart_age(&names);
                continue;
            }
            let since = names.iter().map(|name| *self.0.entry(name.clone()).or_insert(now));
            let due = since.max().unwrap_or(now).saturating_add(grace);
            if due <= now {
                verdict.remove.push(UnusedImage { id: image.id.clone(), tags: image.tags.clone(), names });
            } else {
                verdict.next = verdict.next.into_iter().chain([due]).min();
            }
        }
        verdict.forget = record.images.keys().filter(|name| !known.contains(*name)).cloned().collect();
        // An image that the config names may still be in transfer.
        verdict.forget.retain(|name| !wanted.contains(name.as_str()));
        self.0.retain(|name, _| known.contains(name));
        verdict
    }
}

/// An image, together with the record of fetched images.
struct Fetched<'a> {
    record: &'a FetchRecord,
    image: &'a cri::CriImage,
}

impl Fetched<'_> {
    /// Returns the names under which the agent fetched the image. A name that another program moved to another image since is left out.
    fn names(&self) -> BTreeSet<String> {
        let of_image = self.image.tags.iter().chain(&self.image.digests);
        let is_recorded = |name: &&String| {
            self.record.images.get(*name).is_some_and(|known| known.id.as_ref().is_none_or(|id| *id == self.image.id))
        };
        of_image.filter(is_recorded).cloned().collect()
    }

    /// Returns whether no other program named the image. A runtime removes an image with all of its names, also those from other programs. An image
    /// that the agent fetched by a tag also has a name with a digest in the same repository.
    fn is_of_nobody_else(&self, names: &BTreeSet<String>) -> bool {
        let repositories: BTreeSet<&str> = names.iter().map(|name| repository_of(name)).collect();
        self.image.tags.iter().all(|tag| names.contains(tag))
            && self.image.digests.iter().all(|digest| repositories.contains(repository_of(digest)))
    }
}

fn references(image: &cri::CriImage) -> impl Iterator<Item = &str> {
    image.tags.iter().chain(&image.digests).chain([&image.id]).map(String::as_str)
}
