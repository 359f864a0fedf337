//! Keeps the objects applied, with the authority that Kubernetes publishes to pods.

use std::{pin::pin, sync::Arc, time::Duration};

use futures::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use keelway_component::watching::watch_backoff;
use kube::{
    Api,
    core::DynamicObject,
    runtime::{WatchStreamExt, watcher},
};
use tokio::{select, sync::watch, time::timeout};

use super::{
    ControllerContext,
    object_reconciler::ObjectReconciler,
    objects::{PublishedAuthority, annotate_pods, has_pods},
    registry::WatchFailureLog,
    settings::ControllerSettings,
};

/// The ConfigMap in which kube-controller-manager publishes the authorities to pods (`pkg/controller/certificates/rootcacertpublisher`).
const ROOT_AUTHORITIES: (&str, &str) = ("kube-system", "kube-root-ca.crt");
/// How long the first read may delay all objects.
const FIRST_READ: Duration = Duration::from_secs(1);

/// Keeps the objects applied. While the published authority is not known, add-ons stay as they are: without their annotation, their pods would restart.
pub(super) async fn keep_objects(context: &Arc<ControllerContext>, settings: &ControllerSettings) {
    let published = watch::Sender::new(None);
    select! {
        () = follow(context, &settings.authorities, &published) => {}
        () = apply(context, settings, published.subscribe()) => {}
    }
}

/// Follows the ConfigMap. After it was read once, its absence changes nothing: kube-controller-manager writes it again.
async fn follow(context: &ControllerContext, own: &str, published: &watch::Sender<Option<PublishedAuthority>>) {
    let (namespace, name) = ROOT_AUTHORITIES;
    let maps = Api::<ConfigMap>::namespaced(context.client.clone(), namespace);
    let mut events = pin!(watcher::watch_object(maps, name).backoff(watch_backoff()));
    let mut log = WatchFailureLog::new("the authorities of pods");
    while let Some(event) = events.next().await {
        let Some(map) = log.passed(event) else { continue };
        let is_known = published.borrow().is_some();
        if map.is_none() && is_known {
            continue;
        }
        let Some(authority) = PublishedAuthority::of(map.as_ref(), own) else {
            tracing::warn!(namespace, name, "the ConfigMap has no authorities yet; add-ons stay as they are");
            continue;
        };
        published.send_if_modified(|before| before.replace(authority.clone()) != Some(authority));
    }
}

/// Applies the objects again after each change of the authority.
async fn apply(
    context: &Arc<ControllerContext>,
    settings: &ControllerSettings,
    mut published: watch::Receiver<Option<PublishedAuthority>>,
) {
    let first = timeout(FIRST_READ, published.wait_for(Option::is_some)).await.map(drop);
    if first.is_err() {
        tracing::warn!("cannot read the authorities of pods yet; add-ons stay as they are");
    }
    loop {
        let authority = published.borrow_and_update().clone();
        let objects = settings.definitions.iter().chain(&settings.wanted).cloned().collect();
        let reconciler = reconciler(context, objects, authority.as_ref());
        select! {
            () = reconciler.run() => return,
            changed = published.changed() => if changed.is_err() {
                return;
            },
        }
        tracing::info!("the authority of pods changed; applying the add-ons again");
    }
}

fn reconciler(
    context: &Arc<ControllerContext>,
    mut objects: Vec<DynamicObject>,
    authority: Option<&PublishedAuthority>,
) -> ObjectReconciler {
    match authority {
        Some(authority) => {
            annotate_pods(&mut objects, authority);
            ObjectReconciler::new(Arc::clone(context), objects)
        }
        None => ObjectReconciler::new(Arc::clone(context), objects).hold(has_pods),
    }
}
