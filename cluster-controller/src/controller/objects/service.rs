//! The endpoints of the Service `kubernetes`.
//!
//! API servers publish no endpoints (`--endpoint-reconciler-type=none`), because these would name private machines. The reserved address is
//! served by each worker's own balancer.

use std::net::IpAddr;

use serde_json::{Value, json};

use super::super::configuration::API_PORT;

pub(super) fn objects(addresses: &[IpAddr]) -> Vec<Value> {
    let mut objects: Vec<Value> = addresses.iter().map(slice).collect();
    objects.push(endpoints(addresses));
    objects
}

fn slice(address: &IpAddr) -> Value {
    let (name, family) = match address {
        IpAddr::V4(_) => ("kubernetes", "IPv4"),
        IpAddr::V6(_) => ("kubernetes-ipv6", "IPv6"),
    };
    json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": name,
            "namespace": "default",
            "labels": { "kubernetes.io/service-name": "kubernetes" },
        },
        "addressType": family,
        "endpoints": [{ "addresses": [address], "conditions": { "ready": true } }],
        "ports": [{ "name": "https", "port": API_PORT, "protocol": "TCP" }],
    })
}

/// Builds Endpoints for clients that do not read EndpointSlices. The conformance tests require them, too.
fn endpoints(addresses: &[IpAddr]) -> Value {
    let addresses: Vec<Value> = addresses.iter().take(1).map(|address| json!({ "ip": address })).collect();
    json!({
        "apiVersion": "v1",
        "kind": "Endpoints",
        "metadata": {
            "name": "kubernetes",
            "namespace": "default",
            "labels": { "endpointslice.kubernetes.io/skip-mirror": "true" },
        },
        "subsets": [{
            "addresses": addresses,
            "ports": [{ "name": "https", "port": API_PORT, "protocol": "TCP" }],
        }],
    })
}
