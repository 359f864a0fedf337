//! Which images are removed: those that this agent fetched, and that neither its config nor a container has used for a while. Pure.

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use keelway_api::machine::MachineConfig;
use keelway_cri::{self as cri, CriRuntime};

use crate::{fetched_images::FetchRecord, supervise::MonotonicTime};

/// How long an image stays that nothing uses. A day: an upgrade that somebody takes back the next morning finds the images of the release
/// before, also where no registry answers; and a machine holds the images of the releases of one day beside those that run. A kubelet
/// waits for 2 minutes (`imageMinimumGCAge`) as it removes images only while the disk is nearly full; the age at which it removes them on
/// any disk (`imageMaximumGCAge`, KEP-4210) is not set by default.
pub(crate) const GRACE: Duration = Duration::from_secs(24 * 3600);

/// The images that a runtime has, and what its containers use.
#[derive(Debug, Default)]
pub(crate) struct ImageUse {
    images: Vec<cri::CriImage>,
    /// Names and ids of the images of all containers, whoever made them and whether they run.
    used: BTreeSet<String>,
}

/// Containers are listed after images: one that is made meanwhile is seen.
pub(crate) async fn observe(runtime: &CriRuntime) -> Result<ImageUse, cri::CriError> {
    let images = runtime.list_images().await?;
    let containers = runtime.list_containers(&BTreeMap::new()).await?;
    let used = containers.into_iter().flat_map(|container| [container.image, container.image_ref]).collect();
    Ok(ImageUse { images, used })
}

/// An image to be removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct UnusedImage {
    /// The runtime's id.
    pub(crate) id: String,
    /// All of its names with a tag.
    pub(crate) tags: Vec<String>,
    /// Under which the agent fetched it.
    pub(crate) names: BTreeSet<String>,
}

/// What is to be done about images.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ImageCleanupPlan {
    pub(crate) remove: Vec<UnusedImage>,
    /// Names in the record that stand for no image of the agent's any more.
    pub(crate) forget: BTreeSet<String>,
    /// When the next image may be removed.
    pub(crate) next: Option<MonotonicTime>,
}

/// The images that a config asks for.
pub(crate) fn wanted_by(config: &MachineConfig) -> BTreeSet<&str> {
    let of_containers = config.pods.values().flat_map(|pod| &pod.containers).map(|container| container.image.as_str());
    of_containers.chain(config.pods.values().map(|pod| pod.pause_image.as_str())).collect()
}

/// Since when the agent has seen nothing use the images that it fetched, by name. It counts on a clock that only goes forwards and begins
/// anew with the agent, as a kubelet's does: a wrong clock removes nothing.
#[derive(Debug, Default)]
pub(crate) struct Idle(BTreeMap<String, MonotonicTime>);

impl Idle {
    /// Another config is in effect: what it asks for is used.
    pub(crate) fn another_config(&mut self, wanted: &BTreeSet<&str>) {
        self.0.retain(|name, _| !wanted.contains(name.as_str()));
    }

    /// The age of these begins anew: something uses them, or they could not be removed.
    pub(crate) fn restart_age(&mut self, names: &BTreeSet<String>) {
        self.0.retain(|name, _| !names.contains(name));
    }

    /// Decides by a look that was taken while nothing was being fetched.
    pub(crate) fn decide(
        &mut self,
        (now, grace): (MonotonicTime, Duration),
        (record, wanted): (&FetchRecord, &BTreeSet<&str>),
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
        // What a config asks for may be on its way.
        verdict.forget.retain(|name| !wanted.contains(name.as_str()));
        self.0.retain(|name, _| known.contains(name));
        verdict
    }
}

/// An image, beside the record.
struct Fetched<'a> {
    record: &'a FetchRecord,
    image: &'a cri::CriImage,
}

impl Fetched<'_> {
    /// The names under which the agent fetched it. A name that somebody moved to another image since is none of them.
    fn names(&self) -> BTreeSet<String> {
        let of_image = self.image.tags.iter().chain(&self.image.digests);
        let is_recorded = |name: &&String| {
            self.record.images.get(*name).is_some_and(|known| known.id.as_ref().is_none_or(|id| *id == self.image.id))
        };
        of_image.filter(is_recorded).cloned().collect()
    }

    /// A runtime removes an image with all of its names, also those that somebody else gave it. One that the agent fetched by its tag has
    /// a name with a digest in the same repository, too.
    fn is_of_nobody_else(&self, names: &BTreeSet<String>) -> bool {
        let repositories: BTreeSet<&str> = names.iter().map(|name| repository_of(name)).collect();
        self.image.tags.iter().all(|tag| names.contains(tag))
            && self.image.digests.iter().all(|digest| repositories.contains(repository_of(digest)))
    }
}

fn references(image: &cri::CriImage) -> impl Iterator<Item = &str> {
    image.tags.iter().chain(&image.digests).chain([&image.id]).map(String::as_str)
}

/// `registry:5000/name` of `registry:5000/name:tag` and of `registry:5000/name@sha256:..`.
fn repository_of(name: &str) -> &str {
    let name = name.split_once('@').map_or(name, |(name, _)| name);
    match name.rsplit_once(':') {
        Some((repository, tag)) if !tag.contains('/') => repository,
        _ => name,
    }
}
