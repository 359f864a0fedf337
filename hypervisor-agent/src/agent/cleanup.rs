//! Removal of images that this agent fetched and that are no longer used.

use std::{sync::Arc, time::Duration};

use jiff::SignedDuration;
use keelway_base::error_chain::chain_text;
use keelway_machine::supervise::MonotonicTime;
use keelway_machine_io::{
    image::Images,
    local::LocalMachine,
    unused_images::{self, Idle, ImageCleanupPlan, ImageUse, UnusedImage},
};

use super::config_store::{ConfigStore, StoredConfig};

/// How long unused images are kept.
#[derive(Debug, Clone, Copy)]
pub struct ImageLimits {
    /// The agent removes an image that it fetched once the image was unused for this long (`imageMaximumGCAge` of a kubelet). `None` disables the
    /// removal.
    pub max_age: Option<Duration>,
}

impl ImageLimits {
    /// Returns limits with this age. As with a kubelet, 0 disables the removal.
    #[must_use]
    pub fn of_age(age: Duration) -> Self {
        Self { max_age: (!age.is_zero()).then_some(age) }
    }
}

impl Default for ImageLimits {
    /// The default age is one day.
    fn default() -> Self {
        Self { max_age: Some(unused_images::GRACE) }
    }
}

/// The reconciler's state of image removal.
#[derive(Debug, Default)]
pub(super) struct Cleanup {
    limits: ImageLimits,
    idle: Idle,
    busy: bool,
}

/// The images that were removed, and those whose removal failed.
#[derive(Debug, Default)]
pub(super) struct CleanupResult {
    removed: Vec<UnusedImage>,
    failed: Vec<(UnusedImage, String)>,
}

impl Cleanup {
    pub(super) fn new(limits: ImageLimits) -> Self {
        Self { limits, ..Self::default() }
    }

    /// Returns whether there is an image that the agent fetched and that the config does not name. Only then the agent queries the runtime for the
    /// use of its images.
    pub(super) fn has_candidates(&self, machine: &LocalMachine, config: Option<&StoredConfig>) -> bool {
        let Some(kept) = config.filter(|_| self.limits.max_age.is_some() && !self.busy) else { return false };
        let wanted = unused_images::wanted_by(&kept.config);
        machine.fetches.record().images.keys().any(|name| !wanted.contains(name.as_str()))
    }

    pub(super) fn another_config(&mut self, config: Option<&StoredConfig>) {
        let wanted = config.map(|kept| unused_images::wanted_by(&kept.config)).unwrap_or_default();
        self.idle.another_config(&wanted);
    }

    /// Returns the next removals. Empty while a removal is in progress.
    pub(super) fn decide(
        &mut self,
        now: MonotonicTime,
        machine: &LocalMachine,
        kept: &StoredConfig,
        seen: &ImageUse,
    ) -> ImageCleanupPlan {
        let Some(grace) = self.limits.max_age.filter(|_| !self.busy) else { return ImageCleanupPlan::default() };
        let (record, wanted) = (machine.fetches.record(), unused_images::wanted_by(&kept.config));
        let verdict = self.idle.decide((now, grace), (&record, &wanted), seen);
        self.busy = !verdict.remove.is_empty() || !verdict.forget.is_empty();
        verdict
    }

    /// Ends a removal. Returns one event for each image: whether it is a failure, and its message.
    pub(super) fn done(&mut self, cleaned: &CleanupResult) -> Vec<(bool, String)> {
        self.busy = false;
        let age = self.limits.max_age.unwrap_or_default();
        let removed = cleaned.removed.iter().map(|image| (false, removal_text(image, age)));
        let failed =
            cleaned.failed.iter().map(|(image, why)| (true, format!("cannot remove image {}: {why}", names_of(image))));
        let events = removed.chain(failed).collect();
        cleaned.failed.iter().for_each(|(image, _)| self.idle.restart_age(&image.names));
        events
    }
}

fn removal_text(image: &UnusedImage, age: Duration) -> String {
    let age = SignedDuration::try_from(age).unwrap_or(SignedDuration::MAX);
    format!("removed image {}: no config has named it and no container has used it for {age:#}", names_of(image))
}

fn names_of(image: &UnusedImage) -> String {
    image.names.iter().map(String::as_str).collect::<Vec<_>>().join(", ")
}

/// Executes the removals as long as the config that they were decided for is in effect.
pub(super) async fn clean_up(
    machine: &LocalMachine,
    book: &ConfigStore,
    kept: &Arc<StoredConfig>,
    verdict: ImageCleanupPlan,
) -> CleanupResult {
    let ImageCleanupPlan { remove, forget, .. } = verdict;
    let holds = || book.current().is_some_and(|current| Arc::ptr_eq(&current, kept));
    if holds() {
        machine.fetches.forget(&machine.access, &forget).await;
    }
    let mut cleaned = CleanupResult::default();
    for image in remove {
        match Images::of(machine).remove(&image, holds).await {
            Ok(true) => cleaned.removed.push(image),
            Ok(false) => {}
            Err(error) => cleaned.failed.push((image, chain_text(&error))),
        }
    }
    cleaned
}
