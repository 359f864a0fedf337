//! Fetches images that the next versions of pods need, while the pods run. An upgrade begins once they are there.

use std::collections::{BTreeMap, BTreeSet};

use keelway_api::machine::{MachineConfig, MachineState, fetch_failure};
use keelway_base::{backoff::Backoff, error_chain::chain_text};
use keelway_machine::{action::WantedImage, supervise::MonotonicTime};
use keelway_machine_io::{image::Images, local::LocalMachine};

/// The reconciler's state of these images.
#[derive(Debug, Default)]
pub(super) struct Prefetch {
    is_busy: bool,
    backoff: Backoff,
    /// Why each image could not be fetched.
    failures: BTreeMap<String, String>,
    /// Those that were fetched last. The next observation has them.
    fetched: BTreeSet<String>,
}

/// Each image, and why it could not be fetched.
pub(super) struct PrefetchResult(Vec<(String, Result<(), String>)>);

impl Prefetch {
    /// Another config may have other credentials, so failed images are tried at once.
    pub(super) fn another_config(&mut self) {
        self.backoff = Backoff::default();
    }

    /// Returns the images to fetch now. Empty while others are fetched, and until failed ones are tried again.
    pub(super) fn due(&mut self, now: MonotonicTime, config: &MachineConfig, state: &MachineState) -> Vec<WantedImage> {
        let missing = missing(config, state);
        self.failures.retain(|image, _| missing.contains_key(image));
        if self.is_busy {
            return Vec::new();
        }
        let fetched = std::mem::take(&mut self.fetched);
        for image in fetched.into_iter().filter(|image| missing.contains_key(image)) {
            let failure = fetch_failure(&image, "it was fetched, and the runtime does not list it under this name");
            self.failures.insert(image, failure);
            self.backoff.failed(now);
        }
        // An image would use the room that etcd needs.
        if state.disk_pressure || self.next().is_some_and(|next| next > now) {
            return Vec::new();
        }
        self.is_busy = !missing.is_empty();
        missing.into_values().collect()
    }

    /// When failed images are tried again.
    pub(super) fn next(&self) -> Option<MonotonicTime> {
        self.backoff.held_until().filter(|_| !self.failures.is_empty())
    }

    pub(super) fn is_busy(&self) -> bool {
        self.is_busy
    }

    pub(super) fn failures(&self) -> impl Iterator<Item = &String> {
        self.failures.values()
    }

    /// Ends a fetch. Returns an event for each image: whether it is a failure, and its message.
    pub(super) fn done(&mut self, now: MonotonicTime, PrefetchResult(images): PrefetchResult) -> Vec<(bool, String)> {
        self.is_busy = false;
        self.failures.clear();
        for (image, fetched) in &images {
            if let Err(why) = fetched {
                self.failures.insert(image.clone(), fetch_failure(image, why));
            } else {
                self.fetched.insert(image.clone());
            }
        }
        if self.failures.is_empty() {
            self.backoff = Backoff::default();
        } else {
            self.backoff.failed(now);
        }
        let events = images.into_iter().map(|(image, _)| match self.failures.get(&image) {
            Some(failure) => (true, failure.clone()),
            None => (false, format!("fetched image {image}, which the next version of a component needs")),
        });
        events.collect()
    }
}

/// The images that the machine lacks, by name.
fn missing(config: &MachineConfig, state: &MachineState) -> BTreeMap<String, WantedImage> {
    let of_pod = config.pods.values().flat_map(|pod| pod.prefetch.iter().map(move |image| (pod, image)));
    let missing = of_pod.filter(|(_, image)| !state.has_image(image));
    let wanted = missing.map(|(pod, image)| {
        let credentials = pod.registries.get(image).cloned();
        (image.clone(), WantedImage { name: image.clone(), credentials })
    });
    wanted.collect()
}

/// Fetches images one after the other, because components share the network of the machine.
pub(super) async fn prefetch(machine: &LocalMachine, images: Vec<WantedImage>) -> PrefetchResult {
    let mut results = Vec::new();
    for WantedImage { name, credentials } in images {
        let fetched = Images::of(machine).ensure(&name, credentials.as_ref()).await;
        results.push((name, fetched.map_err(|error| chain_text(&error))));
    }
    PrefetchResult(results)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use keelway_api::machine::{ConfigFormat, Pod, Start};
    use keelway_machine::converge::model::MachineModel;

    use super::*;

    const IMAGES: [&str; 2] = ["registry.example.com/etcd:2", "registry.example.com/pause:2"];
    const NOW: MonotonicTime = Duration::from_secs(100);

    fn config_with(images: &[&str]) -> MachineConfig {
        let pod = Pod {
            user: 1,
            files: Vec::new(),
            data: Vec::new(),
            containers: Vec::new(),
            pause_image: "registry.example.com/pause:1".to_owned(),
            servers: None,
            start: Start::Always,
            hold: false,
            registries: BTreeMap::new(),
            prefetch: images.iter().map(ToString::to_string).collect(),
        };
        MachineConfig {
            format: ConfigFormat::NEWEST,
            installation: "00000000000000ff".parse().unwrap(),
            term: 1,
            generation: 1,
            pods: [("00000000000000c1/etcd-0".parse().unwrap(), pod)].into(),
            others: BTreeSet::new(),
            removals: BTreeMap::new(),
        }
    }

    fn names(images: &[WantedImage]) -> Vec<&str> {
        images.iter().map(|image| image.name.as_str()).collect()
    }

    #[test]
    fn images_are_fetched_once_and_failed_ones_again_after_a_delay() {
        let (config, mut state) = (config_with(&IMAGES), MachineModel::empty().state);
        let mut prefetch = Prefetch::default();
        assert_eq!(names(&prefetch.due(NOW, &config, &state)), IMAGES);
        assert_eq!(prefetch.due(NOW, &config, &state).len(), 0, "they are being fetched");

        state.images.insert(IMAGES[0].to_owned());
        let failed = (IMAGES[1].to_owned(), Err("no such image".to_owned()));
        let events = prefetch.done(NOW, PrefetchResult(vec![(IMAGES[0].to_owned(), Ok(())), failed]));
        assert_eq!(events.iter().map(|(is_failure, _)| *is_failure).collect::<Vec<_>>(), [false, true]);
        assert_eq!(prefetch.due(NOW, &config, &state).len(), 0, "not at once");
        let next = prefetch.next().unwrap();
        assert!(
            next > NOW && prefetch.failures().eq(["cannot fetch image registry.example.com/pause:2: no such image"])
        );
        assert_eq!(names(&prefetch.due(next, &config, &state)), [IMAGES[1]]);

        state.images.insert(IMAGES[1].to_owned());
        let _ = prefetch.done(next, PrefetchResult(vec![(IMAGES[1].to_owned(), Ok(()))]));
        assert_eq!((prefetch.due(next, &config, &state).len(), prefetch.next()), (0, None));
    }

    #[test]
    fn another_config_is_tried_at_once() {
        let (config, state) = (config_with(&IMAGES[..1]), MachineModel::empty().state);
        let mut prefetch = Prefetch::default();
        let _ = prefetch.due(NOW, &config, &state);
        let _ = prefetch.done(NOW, PrefetchResult(vec![(IMAGES[0].to_owned(), Err("x".to_owned()))]));
        prefetch.another_config();
        assert_eq!(names(&prefetch.due(NOW, &config, &state)), [IMAGES[0]]);
    }
}
