//! Lists objects of a managed cluster, page by page.

use k8s_openapi::serde::de::DeserializeOwned;
use keelway_base::error_chain::root_cause;
use kube::{Api, api::ListParams};

use crate::managed_cluster::REQUEST;

/// The number of objects in one response.
const PAGE: u32 = 250;

/// Returns all objects that `selected` selects. The error is text for users.
pub(crate) async fn list_all<K>(api: &Api<K>, selected: ListParams) -> Result<Vec<K>, String>
where
    K: Clone + std::fmt::Debug + DeserializeOwned,
{
    let (mut objects, mut page) = (Vec::new(), selected.limit(PAGE));
    loop {
        let listed = match tokio::time::timeout(REQUEST, api.list(&page)).await {
            Ok(Ok(listed)) => listed,
            Ok(Err(error)) => return Err(root_cause(&error)),
            Err(_) => return Err("no response in time".to_owned()),
        };
        objects.extend(listed.items);
        match listed.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => page.continue_token = Some(token),
            None => return Ok(objects),
        }
    }
}
