//! The store needs every right that the manifest grants, and no other.

use std::{collections::BTreeSet, fs, path::Path};

use keelway_stores::kubernetes::MANAGER;
use kube::Client;
use serde_json::Value;

use crate::{
    kubectl::Kubectl,
    plane::{AUDIT_LOG, Plane, path},
};

const MANIFEST: &str = "../manifests/keelway-manager.yaml";
const NAMESPACE: &str = "keelway-system";
/// Resources that the store does not use: the Lease of the leader election, and Events.
const OF_OTHERS: [&str; 2] = ["leases", "events"];

/// Group, resource and verb.
type Right = [String; 3];

/// Returns a client with the service account of the manifest.
pub(crate) async fn client(plane: &Plane, kubectl: &Kubectl) -> Client {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join(MANIFEST);
    kubectl.says(&["apply", "--server-side", "-f", manifest.to_str().unwrap()]);
    let token = kubectl.says(&["create", "token", MANAGER, "--namespace", NAMESPACE]);
    plane.bearer(token.trim()).await
}

/// Fails unless the API server granted every request of the account, and the requests used every right that the role grants.
pub(crate) fn is_what_was_used() {
    let account = format!("system:serviceaccount:{NAMESPACE}:{MANAGER}");
    let log = fs::read_to_string(path(AUDIT_LOG)).unwrap();
    let requests = log.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let requests: Vec<Value> = requests.filter(|request| request["user"]["username"] == account.as_str()).collect();
    let refused: Vec<&Value> = requests.iter().filter(|request| request["responseStatus"]["code"] == 403).collect();
    assert!(refused.is_empty(), "{refused:?}");
    let used = requests.iter().flat_map(rights_of).filter(|[_, resource, _]| !OF_OTHERS.contains(&resource.as_str()));
    let used: BTreeSet<Right> = used.collect();
    assert_eq!(used, granted());
    println!("        {} requests used {} rights", requests.len(), used.len());
}

/// Returns the rights that a request needs. A patch that creates the object also needs `create`. A watch also needs `list`, because it begins with
/// all objects. If the API server does not support that, the store sends list requests instead.
fn rights_of(request: &Value) -> Vec<Right> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let object = &request["objectRef"];
    let resource = match object["subresource"].as_str() {
        Some(part) => format!("{}/{part}", text(&object["resource"])),
        None => text(&object["resource"]),
    };
    let verb = text(&request["verb"]);
    let more = match (verb.as_str(), request["responseStatus"]["code"].as_u64()) {
        ("patch", Some(201)) => Some("create"),
        ("watch", _) => Some("list"),
        _ => None,
    };
    let verbs = [verb.clone()].into_iter().chain(more.map(str::to_owned));
    verbs.map(|verb| [text(&object["apiGroup"]), resource.clone(), verb]).collect()
}

fn granted() -> BTreeSet<Right> {
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(MANIFEST)).unwrap();
    let objects: Vec<Value> = serde_saphyr::from_multiple(&text).unwrap();
    let is_managers = |object: &Value| object["kind"] == "ClusterRole" && object["metadata"]["name"] == MANAGER;
    let role = objects.into_iter().find(is_managers).unwrap();
    let words = |rule: &Value, field: &str| -> Vec<String> {
        rule[field].as_array().unwrap().iter().map(|word| word.as_str().unwrap().to_owned()).collect()
    };
    let mut rights = BTreeSet::new();
    for rule in role["rules"].as_array().unwrap() {
        for group in words(rule, "apiGroups") {
            for resource in words(rule, "resources").into_iter().filter(|name| !OF_OTHERS.contains(&name.as_str())) {
                rights.extend(words(rule, "verbs").into_iter().map(|verb| [group.clone(), resource.clone(), verb]));
            }
        }
    }
    rights
}
