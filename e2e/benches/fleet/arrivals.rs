//! When objects appear, as a client that watches them sees it.

use std::{
    collections::BTreeMap,
    fmt::Debug,
    pin::pin,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use futures::StreamExt;
use kube::{
    Api, Resource, ResourceExt,
    runtime::{
        WatchStreamExt,
        watcher::{self, watcher},
    },
};
use serde::de::DeserializeOwned;
use tokio::sync::Notify;

/// Many times longer than anything takes.
const PATIENCE: Duration = Duration::from_secs(1800);

/// The times at which objects were seen first, by the last part of their names.
#[derive(Default)]
pub(crate) struct Arrivals {
    seen: Mutex<BTreeMap<String, Instant>>,
    changed: Notify,
}

impl Arrivals {
    /// Watches objects from now on.
    pub(crate) fn of<K>(api: Api<K>) -> Arc<Self>
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
    {
        let arrivals = Arc::new(Self::default());
        let noted = Arc::clone(&arrivals);
        tokio::spawn(async move {
            let mut objects = pin!(watcher(api, watcher::Config::default()).default_backoff().applied_objects());
            while let Some(object) = objects.next().await {
                let Ok(object) = object else { continue };
                let (now, name) = (Instant::now(), object.name_any());
                let name = name.rsplit('.').next().unwrap_or_default().to_owned();
                noted.seen.lock().unwrap().entry(name).or_insert(now);
                noted.changed.notify_waiters();
            }
        });
        arrivals
    }

    /// Waits until this object was seen, and returns when it was.
    pub(crate) async fn when(&self, name: &str) -> Instant {
        tokio::time::timeout(PATIENCE, self.seen(name)).await.unwrap()
    }

    async fn seen(&self, name: &str) -> Instant {
        loop {
            let mut changed = pin!(self.changed.notified());
            changed.as_mut().enable();
            if let Some(seen) = self.seen.lock().unwrap().get(name) {
                return *seen;
            }
            changed.await;
        }
    }

    /// Waits until all these objects were seen, and returns when the last one was.
    pub(crate) async fn last(&self, names: &[String]) -> Instant {
        let mut last = None;
        for name in names {
            last = last.max(Some(self.when(name).await));
        }
        last.unwrap_or_else(Instant::now)
    }
}
