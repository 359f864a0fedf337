//! Watches of controllers.

use std::{fmt::Debug, hash::Hash, time::Duration};

use backon::ExponentialBuilder;
use kube::{
    Api, Resource,
    runtime::{
        Controller,
        watcher::{self, ExponentialBackoff},
    },
};
use serde::de::DeserializeOwned;

/// The first pause after a watch has failed. Jitter at most doubles each pause.
const SHORTEST: Duration = Duration::from_millis(250);
/// The last of the growing pauses.
const LONGEST: Duration = Duration::from_secs(1);

/// Returns the pauses after failures of a watch.
#[must_use]
pub fn watch_backoff() -> ExponentialBackoff {
    let builder = ExponentialBuilder::default().with_min_delay(SHORTEST).with_max_delay(LONGEST);
    builder.with_jitter().without_max_times().into()
}

/// Returns a controller of all objects of an API, which works again within seconds after a restart of the API server.
///
/// A [`Controller`] pauses all its watches after an error of any of them. In a pause, nothing reads their responses, so requests that are under way
/// time out and become the next errors. With its own pauses of up to 30 seconds, a controller of several watches works again only after minutes.
#[must_use]
pub fn controller_of<K>(api: Api<K>) -> Controller<K>
where
    K: Clone + Resource + DeserializeOwned + Debug + Send + Sync + 'static,
    K::DynamicType: Eq + Hash + Clone + Default,
{
    Controller::new(api, watcher::Config::default()).trigger_backoff(watch_backoff())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_never_end_and_stay_short() {
        assert!(watch_backoff().take(100).all(|pause| pause >= SHORTEST && pause <= 2 * LONGEST));
        assert_eq!(watch_backoff().take(100).count(), 100);
    }
}
