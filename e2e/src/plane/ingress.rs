//! The ingresses, as users and monitoring see them.

use std::path::PathBuf;

use keelway_api::{
    Component,
    role::{API, Role},
};

use super::Plane;
use crate::metrics;

/// The kubeconfig has one context for each ingress, of which the first is current. Each context works.
pub fn contexts(plane: &Plane<'_>) {
    let config = plane.kubectl.kubeconfig();
    assert_eq!(config["current-context"], "c1");
    let names: Vec<_> = config["contexts"].as_array().unwrap().iter().map(|context| context["name"].clone()).collect();
    assert_eq!(names, ["c1", "c1:ingress-1"]);
    let ports: Vec<u16> = plane.of_role(Role::Ingress).iter().map(|ingress| ingress.spec.port(API)).collect();
    assert_eq!(ports[0], ports[1], "one number on all machines");
    for name in names {
        let ready = plane.kubectl.run(&["--context", name.as_str().unwrap(), "get", "--raw", "/readyz"]);
        assert_eq!(ready.succeeded().text(), "ok");
    }
}

/// haproxy serves its own metrics to processes that can open the files of its user.
pub fn serve_metrics(plane: &Plane<'_>) {
    for ingress in plane.of_role(Role::Ingress) {
        let text = metrics::read(&socket(plane, ingress), ingress.spec.user);
        assert!(sees_all(plane, &text), "{text}");
        assert!(metrics::get(&socket(plane, ingress), "/").unwrap().starts_with("HTTP/1.1 404"));
    }
}

/// Returns whether every ingress forwards connections to every API server.
pub fn are_whole(plane: &Plane<'_>) -> bool {
    let metrics_of = |ingress| metrics::get(&socket(plane, ingress), "/metrics").unwrap_or_default();
    plane.of_role(Role::Ingress).into_iter().all(|ingress| sees_all(plane, &metrics_of(ingress)))
}

fn sees_all(plane: &Plane<'_>, metrics: &str) -> bool {
    plane.of_role(Role::KubeApiserver).iter().all(|server| {
        let name = server.spec.name().unwrap();
        metrics.contains(&format!("haproxy_server_status{{proxy=\"kube-apiserver\",server=\"{name}\",state=\"UP\"}} 1"))
    })
}

fn socket(plane: &Plane<'_>, ingress: &Component) -> PathBuf {
    plane.directory(ingress, "run").join("metrics.sock")
}
