//! The manifests of a fleet's control plane in a Kubernetes cluster.

#![expect(clippy::unwrap_used, reason = "a test's functions fail by panicking")]

use std::collections::BTreeMap;

use keelway_api::{
    Documents,
    jiff::{SignedDuration, Timestamp},
};
use keelway_fleet_hosting::{
    ApiEndpoint, ApiService, FleetDocumentsError, FleetRecord, FleetRecordError, HostingOptions, ServiceType,
    fleet_documents, manifests, service_manifests,
};
use keelway_reconciler::{PkiMinter, mint_hosted_fleet};
use rand::{SeedableRng, rngs::StdRng};
use serde_json::{Value, json};

const ID: &str = "0123456789abcdef";

fn options(replicas: u32) -> HostingOptions {
    HostingOptions {
        namespace: "keelway-fleet".to_owned(),
        endpoint: "fleet.example.com".parse().unwrap(),
        replicas,
        service_type: ServiceType::LoadBalancer,
        version: None,
        registry: None,
        storage_class: None,
        storage_size: "8Gi".to_owned(),
    }
}

fn start() -> Timestamp {
    "2026-01-01T00:00:00Z".parse().unwrap()
}

fn after_days(days: i64) -> Timestamp {
    start() + SignedDuration::from_hours(24 * days)
}

/// The command, with the record of an earlier run.
fn rendered(options: &HostingOptions, existing: Option<&[Value]>, now: Timestamp) -> Vec<Value> {
    rendered_as(ID, options, existing, now)
}

fn rendered_as(id: &str, options: &HostingOptions, existing: Option<&[Value]>, now: Timestamp) -> Vec<Value> {
    let record = existing.map(|objects| FleetRecord::read(&secrets(objects)).unwrap());
    let mut documents = fleet_documents(options, record, || id.to_owned()).unwrap();
    let mut minter = PkiMinter::new(StdRng::seed_from_u64(now.as_second().unsigned_abs() + u64::from(id != ID)));
    let fleet = mint_hosted_fleet(&mut documents, &options.hosting(), &mut minter, now).unwrap();
    manifests(&fleet, &documents, &id.parse().unwrap(), options)
}

/// What `kubectl get secrets -o json` prints.
fn secrets(objects: &[Value]) -> String {
    let secrets: Vec<&Value> = objects.iter().filter(|object| object["kind"] == "Secret").collect();
    json!({ "apiVersion": "v1", "kind": "List", "items": secrets }).to_string()
}

fn of<'a>(objects: &'a [Value], kind: &str, name: &str) -> &'a Value {
    objects.iter().find(|object| object["kind"] == kind && object["metadata"]["name"] == name).unwrap()
}

fn data(objects: &[Value], secret: &str, key: &str) -> String {
    of(objects, "Secret", secret)["data"][key].as_str().unwrap().to_owned()
}

/// Values of Secrets are left out: they are keys, and they differ each time.
fn redacted(objects: &[Value]) -> String {
    let text = |object: &Value| {
        let mut object = object.clone();
        if let Some(digest) = object.pointer_mut("/spec/template/metadata/annotations/fleet.keelway.dev~1digest") {
            *digest = json!("(redacted)");
        }
        if let Some(data) = object.get_mut("data").and_then(Value::as_object_mut) {
            for value in data.values_mut() {
                *value = json!("(redacted)");
            }
        }
        serde_saphyr::to_string(&object).unwrap()
    };
    objects.iter().map(text).collect::<Vec<_>>().join("---\n")
}

#[test]
fn three_replicas() {
    insta::assert_snapshot!(redacted(&rendered(&options(3), None, start())));
}

#[test]
fn the_api_service_alone() {
    let service = ApiService { service_type: ServiceType::LoadBalancer, endpoint_port: None };
    let objects = service_manifests("keelway-fleet", service);
    let all = rendered(&options(1), None, start());
    assert_eq!(objects[..], all[..2], "the Service stays when everything else is applied");
}

#[test]
fn the_same_command_again_changes_nothing() {
    let first = rendered(&options(3), None, start());
    let again = rendered(&options(3), Some(&first), after_days(30));
    assert_eq!(again, first);
}

#[test]
fn certificates_are_renewed_under_the_same_authorities_and_restart_nothing() {
    let first = rendered(&options(3), None, start());
    let later = rendered(&options(3), Some(&first), after_days(300));
    let secret = format!("kube-apiserver-{ID}");
    for kept in ["ca.crt", "etcd-ca.crt", "service-account.key", "encryption.json"] {
        assert_eq!(data(&later, &secret, kept), data(&first, &secret, kept), "{kept}");
    }
    for renewed in ["server.crt", "server.key", "etcd-client.crt"] {
        assert_ne!(data(&later, &secret, renewed), data(&first, &secret, renewed), "{renewed}");
    }
    let rest = |objects: &[Value]| -> Vec<Value> {
        objects.iter().filter(|object| object["kind"] != "Secret").cloned().collect()
    };
    assert_eq!(rest(&later), rest(&first));
}

/// Without the Secrets, the command cannot know the authorities. Then selectors differ, which an API server never changes, and Services stay.
#[test]
fn a_run_without_the_secrets_cannot_replace_a_fleet() {
    let first = rendered(&options(3), None, start());
    let other = rendered_as("fedcba9876543210", &options(3), None, after_days(1));
    for object in &first {
        let (kind, name) = (object["kind"].as_str().unwrap(), object["metadata"]["name"].as_str().unwrap());
        let same = other.iter().find(|other| other["kind"] == kind && other["metadata"]["name"] == name);
        match kind {
            "Secret" => assert!(same.is_none(), "{name} is not replaced"),
            "StatefulSet" | "Deployment" => {
                assert_ne!(same.unwrap()["spec"]["selector"], object["spec"]["selector"], "{name}");
            }
            _ => assert_eq!(same, Some(object), "{kind} {name}"),
        }
    }
}

#[test]
fn two_fleets_in_a_namespace_are_reported() {
    let mut both = rendered(&options(1), None, start());
    both.extend(rendered_as("fedcba9876543210", &options(1), None, start()));
    assert!(matches!(FleetRecord::read(&secrets(&both)), Err(FleetRecordError::Several(_))));
    assert!(matches!(FleetRecord::read("kind: List\nitems: []\n"), Err(FleetRecordError::Missing)));
}

#[test]
fn what_a_fleet_cannot_change_is_refused() {
    let first = rendered(&options(3), None, start());
    let change = |options: HostingOptions| {
        let record = FleetRecord::read(&secrets(&first)).unwrap();
        fleet_documents(&options, Some(record), || ID.to_owned()).err()
    };
    let replicas = change(options(5));
    assert!(matches!(replicas, Some(FleetDocumentsError::Replicas { recorded: 3, asked: 5 })), "{replicas:?}");
    let namespace = change(HostingOptions { namespace: "other".to_owned(), ..options(3) });
    assert!(matches!(namespace, Some(FleetDocumentsError::OtherNamespace { .. })), "{namespace:?}");
    let version = change(HostingOptions { version: Some("v1.34.4".to_owned()), ..options(3) });
    assert!(matches!(version, Some(FleetDocumentsError::Version { .. })), "{version:?}");
    let endpoint = change(HostingOptions { endpoint: "192.0.2.10:6443".parse().unwrap(), ..options(3) });
    assert!(endpoint.is_none(), "{endpoint:?}");
}

#[test]
fn a_lost_authority_is_not_replaced() {
    let options = options(1);
    let first = rendered(&options, None, start());
    let mut documents: Documents = FleetRecord::read(&secrets(&first)).unwrap().documents;
    documents.secrets.retain(|name, _| name.name != "etcd-ca");
    let mut minter = PkiMinter::new(StdRng::seed_from_u64(1));
    let lost = mint_hosted_fleet(&mut documents, &options.hosting(), &mut minter, start()).unwrap_err();
    assert!(lost.to_string().contains("etcd-ca"), "{lost}");
}

/// A twin of the rule that keys are in Secrets only: no line of a key occurs elsewhere.
#[test]
fn keys_are_in_secrets_only() {
    let objects = rendered(&options(3), None, start());
    let others: String = objects.iter().filter(|object| object["kind"] != "Secret").map(ToString::to_string).collect();
    let mut values = 0;
    for secret in objects.iter().filter(|object| object["kind"] == "Secret") {
        let data: BTreeMap<String, String> = serde_json::from_value(secret["data"].clone()).unwrap();
        for value in data.values().filter(|value| value.len() > 40) {
            values += 1;
            assert!(!others.contains(&value[..40]));
        }
    }
    assert!(values > 20 && !others.contains("PRIVATE KEY"), "{values}");
}

#[test]
fn one_pod_has_an_account_for_its_events() {
    let objects = rendered(&options(3), None, start());
    let workloads = objects.iter().filter(|object| object["spec"]["template"].is_object());
    for workload in workloads {
        let (name, pod) = (&workload["metadata"]["name"], &workload["spec"]["template"]["spec"]);
        if pod["automountServiceAccountToken"] != json!(false) {
            assert_eq!(
                (name, &pod["serviceAccountName"]),
                (&json!("keelway-fleet-host"), &json!("keelway-fleet-host"))
            );
        }
    }
    let rules = &of(&objects, "Role", "keelway-fleet-host")["rules"];
    let verbs: Vec<&Value> = rules.as_array().unwrap().iter().map(|rule| &rule["verbs"]).collect();
    assert_eq!(verbs, [&json!(["create"]), &json!(["patch"])]);
    assert_eq!(
        rules[1]["resourceNames"],
        json!(["FleetAPIServerReady", "FleetControlPlaneReady", "FleetCertificatesDue"])
    );
}

#[test]
fn the_port_of_each_service_type() {
    let ports = |service_type, endpoint: &str| {
        let options = HostingOptions { service_type, endpoint: endpoint.parse().unwrap(), ..options(1) };
        let objects = rendered(&options, None, start());
        let service = of(&objects, "Service", "kube-apiserver")["spec"]["ports"][0].clone();
        (service["port"].clone(), service["nodePort"].clone())
    };
    assert_eq!(ports(ServiceType::LoadBalancer, "192.0.2.1:6443"), (json!(6443), Value::Null));
    assert_eq!(ports(ServiceType::NodePort, "192.0.2.1:30443"), (json!(443), json!(30443)));
    assert_eq!(ports(ServiceType::ClusterIp, "fleet.example.com:8443"), (json!(443), Value::Null));
}

#[test]
fn endpoints() {
    for (text, read) in [
        ("fleet.example.com", "fleet.example.com:443"),
        ("fleet.example.com:6443", "fleet.example.com:6443"),
        ("192.0.2.1", "192.0.2.1:443"),
        ("2001:db8::1", "[2001:db8::1]:443"),
        ("[2001:db8::1]:8443", "[2001:db8::1]:8443"),
    ] {
        assert_eq!(text.parse::<ApiEndpoint>().unwrap().to_string(), read);
    }
    for text in ["", ":443", "a_b", "fleet.example.com:0", "192.0.2.1.5", "https://fleet.example.com"] {
        assert!(text.parse::<ApiEndpoint>().is_err(), "{text}");
    }
}
