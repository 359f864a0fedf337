use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use keelway_api::{machine::hex, release::MINORS};
use keelway_pki::{Authority, CertificateFacts, Validity};
use rand::{SeedableRng as _, rngs::ChaCha8Rng};
use serde_json::{Value, json};

use super::{
    super::{ControllerConfiguration, ROLE, object_reconciler::has_place, registry::ALLOCATION},
    PublishedFiles, definitions, wanted,
};
use keelway_component::configuration::ValidateConfiguration;

fn configuration(change: impl FnOnce(&mut Value)) -> ControllerConfiguration {
    let mut file = json!({
        "kubeconfig": "kubeconfig",
        "version": "1.37.0",
        "vpnCIDRs": ["100.80.0.0/16"],
        "podCIDRs": ["10.244.0.0/16"],
        "serviceCIDRs": ["10.96.0.0/16"],
        "dnsDomain": "cluster.local",
        "endpoints": [{ "address": "203.0.113.1:20000" }],
        "authorities": "ca.crt",
    });
    change(&mut file);
    serde_json::from_value(file).unwrap()
}

fn names(configuration: &ControllerConfiguration) -> BTreeSet<String> {
    let objects = wanted(configuration, &PublishedFiles::default()).unwrap();
    objects
        .iter()
        .map(|object| format!("{} {}", object.types.as_ref().unwrap().kind, object.metadata.name.as_ref().unwrap()))
        .collect()
}

#[test]
fn every_object_is_in_a_watched_kind() {
    let objects = wanted(&configuration(|_| {}), &PublishedFiles::default()).unwrap();
    for object in objects.iter().chain(&definitions().unwrap()) {
        assert!(has_place(object), "{:?} {:?}", object.types, object.metadata.name);
    }
}

#[test]
fn no_placeholder_is_left() {
    for row in &MINORS {
        let objects =
            wanted(&configuration(|file| file["version"] = json!(row.tested)), &PublishedFiles::default()).unwrap();
        let text = serde_json::to_string(&objects).unwrap();
        assert!(!text.contains("${"), "{text}");
        assert!(text.contains(&format!("kube-proxy:v{}", row.tested)));
        assert!(text.contains(&format!("coredns:{}", row.coredns)));
    }
}

#[test]
fn a_registry_replaces_every_image() {
    let objects = wanted(
        &configuration(|file| file["registry"] = json!("registry.example.com/mirror/")),
        &PublishedFiles::default(),
    )
    .unwrap();
    let text = serde_json::to_string(&objects).unwrap();
    assert_eq!(text.matches("\"image\":\"registry.example.com/mirror/").count(), 3);
    assert!(!text.contains("registry.k8s.io"));
}

#[test]
fn an_image_of_an_add_on_is_overridden_by_digest() {
    let image = format!("registry.example.com/kube-proxy:v1.37.0@sha256:{}", "0".repeat(64));
    let objects =
        wanted(&configuration(|file| file["imageOverrides"] = json!([image])), &PublishedFiles::default()).unwrap();
    let text = serde_json::to_string(&objects).unwrap();
    assert_eq!(text.matches(&format!("\"image\":\"{image}\"")).count(), 1);
    assert_eq!(text.matches("\"image\":\"registry.k8s.io/").count(), 2);
}

#[test]
fn node_ports_are_served_at_the_addresses_of_the_cluster() {
    let settings = |change: fn(&mut Value)| {
        let objects = wanted(&configuration(change), &PublishedFiles::default()).unwrap();
        let of_kube_proxy = |kind: &str| {
            let mut named = objects.iter().filter(|object| object.metadata.name.as_deref() == Some("kube-proxy"));
            named.find(|object| object.types.as_ref().unwrap().kind == kind).unwrap().data.clone()
        };
        let settings = of_kube_proxy("ConfigMap")["data"]["config.yaml"].as_str().unwrap().to_owned();
        (settings, of_kube_proxy("DaemonSet")["spec"]["template"]["metadata"]["annotations"].clone())
    };
    let (all, none) = settings(|_| {});
    assert!(all.contains(r#"nodePortAddresses: ["0.0.0.0/0","::/0"]"#) && none.is_null(), "{all}");
    let (own, annotations) =
        settings(|file| file["addons"] = json!({ "kubeProxy": { "nodePortAddresses": ["192.0.2.0/24", "::/0"] } }));
    assert!(own.contains(r#"nodePortAddresses: ["192.0.2.0/24","::/0"]"#), "{own}");
    assert_eq!(annotations, json!({ "keelway.dev/node-port-addresses": "192.0.2.0/24,::/0" }));
}

#[test]
fn each_add_on_can_be_turned_off() {
    let all = names(&configuration(|_| {}));
    for (name, gone) in [
        ("coreDNS", "Deployment coredns"),
        ("kubeProxy", "DaemonSet kube-proxy"),
        ("metricsServer", "APIService v1beta1.metrics.k8s.io"),
        ("cni", "ConfigMap keelway-cni"),
        ("cni", "ValidatingAdmissionPolicyBinding keelway-network-policies"),
    ] {
        let off = configuration(|file| file["addons"] = json!({ name: { "enabled": false } }));
        assert!(all.contains(gone) && !names(&off).contains(gone), "{name}");
    }
}

#[test]
fn every_family_has_its_slice() {
    let both = configuration(|file| file["vpnCIDRs"] = json!(["100.80.0.0/16", "fd00::/64"]));
    let objects = wanted(&both, &PublishedFiles::default()).unwrap();
    let slices = objects.iter().filter(|object| object.types.as_ref().unwrap().kind == "EndpointSlice");
    let addresses: Vec<&Value> = slices.map(|slice| &slice.data["endpoints"][0]["addresses"][0]).collect();
    assert_eq!(addresses, ["100.80.0.1", "fd00::1"]);
}

/// The role names each applied object, and no other.
#[test]
fn the_role_names_each_applied_object() {
    let rules = serde_saphyr::from_multiple::<Value>(ROLE).unwrap();
    let rules: Vec<&Value> = rules.iter().filter_map(|role| role["rules"].as_array()).flatten().collect();
    let mut named = BTreeSet::new();
    for rule in rules
        .iter()
        .filter(|rule| strings(&rule["verbs"]).contains("delete") || strings(&rule["verbs"]).contains("patch"))
    {
        for resource in strings(&rule["resources"]) {
            named.extend(strings(&rule["resourceNames"]).iter().map(|name| format!("{resource} {name}")));
        }
    }
    let both = configuration(|file| file["vpnCIDRs"] = json!(["100.80.0.0/16", "fd00::/64"]));
    let objects = wanted(&both, &PublishedFiles { registries: Some(Vec::new()), ..PublishedFiles::default() }).unwrap();
    let applied: BTreeSet<String> = objects
        .iter()
        .chain(&definitions().unwrap())
        .map(|object| {
            let kind = object.types.as_ref().unwrap().kind.as_str();
            let place = super::PLACES.iter().find(|place| place.kind == kind).unwrap();
            format!("{} {}", place.plural, object.metadata.name.as_ref().unwrap())
        })
        .chain([format!("configmaps {}", ALLOCATION.1)])
        .collect();
    assert_eq!(named, applied);
    // The only one is a name.
    assert_eq!(ROLE.matches('*').count(), 2, "one in a comment");
    assert!(ROLE.contains("resources: [configmaps], resourceNames: [\"*\"], verbs: [get]}"));
}

fn strings(list: &Value) -> BTreeSet<String> {
    list.as_array().into_iter().flatten().filter_map(|item| item.as_str().map(str::to_owned)).collect()
}

#[test]
fn an_invalid_configuration_is_refused() {
    assert!(configuration(|_| {}).check().is_ok());
    let faults: [(&str, Value); 8] = [
        ("version", json!("1.20.0")),
        ("vpnCIDRs", json!([])),
        ("vpnCIDRs", json!(["100.80.0.1/16"])),
        ("vpnCIDRs", json!(["100.80.0.0/28"])),
        ("podCIDRs", json!(["10.244.0.0/16", "10.245.0.0/16"])),
        ("endpoints", json!([])),
        ("dnsDomain", json!("Cluster.local")),
        ("issuer", json!("-----BEGIN CERTIFICATE-----")),
    ];
    for (field, value) in faults {
        let fault = configuration(|file| file[field] = value).check().unwrap_err();
        assert_eq!(fault.field, field, "{fault}");
        assert!(!fault.help.is_empty());
    }
}

#[test]
fn the_issuer_of_workers_is_published_by_its_key() {
    let validity = Validity::starting(Timestamp::now(), SignedDuration::from_hours(1)).unwrap();
    let authority = Authority::mint("kubernetes", validity, &mut ChaCha8Rng::seed_from_u64(1)).unwrap();
    let pem = authority.certificate().pem();
    let rotating = configuration(|file| file["issuer"] = json!(pem));
    rotating.check().unwrap();
    let key_id = CertificateFacts::from_pem(pem).unwrap().key_id.unwrap();
    assert_eq!(rotating.information().issuer, Some(hex(&key_id)));
    assert_eq!(configuration(|_| {}).information().issuer, None);
}

#[test]
fn an_unknown_field_is_refused() {
    let file = json!({ "kubeconfig": "a", "surprise": true });
    assert!(serde_json::from_value::<ControllerConfiguration>(file).is_err());
}

/// Splits rules into single rights: verb, group, resource, and the name if the rule has one.
fn rights(role: &Value) -> BTreeSet<[String; 4]> {
    let mut rights = BTreeSet::new();
    for rule in role["rules"].as_array().into_iter().flatten() {
        let mut names = strings(&rule["resourceNames"]);
        if names.is_empty() {
            names.insert(String::new());
        }
        for verb in strings(&rule["verbs"]) {
            for group in strings(&rule["apiGroups"]) {
                for resource in strings(&rule["resources"]) {
                    rights
                        .extend(names.iter().map(|name| [verb.clone(), group.clone(), resource.clone(), name.clone()]));
                }
            }
        }
    }
    rights
}

/// A component that could grant more than its own rights would be an administrator.
#[test]
fn the_role_has_every_right_that_it_grants() {
    let own = serde_saphyr::from_multiple::<Value>(ROLE).unwrap();
    let held_in = |namespace: &Value| -> BTreeSet<[String; 4]> {
        let counts =
            |role: &&Value| role["metadata"]["namespace"].is_null() || role["metadata"]["namespace"] == *namespace;
        own.iter().filter(counts).flat_map(rights).collect()
    };
    assert!(own.iter().flat_map(rights).all(|[verb, ..]| verb != "escalate"));
    for object in wanted(&configuration(|_| {}), &PublishedFiles::default()).unwrap() {
        let object = serde_json::to_value(object).unwrap();
        let held = held_in(&object["metadata"]["namespace"]);
        for [verb, group, resource, name] in rights(&object) {
            let has = |name: &str| held.contains(&[verb.clone(), group.clone(), resource.clone(), name.to_owned()]);
            assert!(has("") || has(&name), "{}: {verb} {group}/{resource} {name}", object["metadata"]["name"]);
        }
        let bound = object["roleRef"]["name"].as_str().unwrap_or_default();
        let is_own = bound.is_empty() || bound.starts_with("keelway:");
        let may_bind = held.iter().any(|[verb, .., name]| verb == "bind" && name == bound);
        assert!(
            is_own != may_bind,
            "{bound}: a role that it writes is bound by what it holds, another one by its name"
        );
    }
}
