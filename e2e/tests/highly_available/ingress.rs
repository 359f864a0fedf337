//! Ingresses: what users and those who watch over machines see of them.

use std::{
    io::{self, Read, Write},
    os::unix::{
        fs::{FileTypeExt, MetadataExt},
        net::UnixStream,
    },
    path::PathBuf,
};

use keelway_api::{
    Component,
    role::{API, Role},
};

use crate::plane::Plane;

/// One context for each ingress, the first one current; each of them works.
pub(crate) fn contexts(plane: &Plane<'_>) {
    let config = plane.kubectl.kubeconfig();
    assert_eq!(config["current-context"], "c1");
    let names: Vec<_> = config["contexts"].as_array().unwrap().iter().map(|context| context["name"].clone()).collect();
    assert_eq!(names, ["c1", "c1-ingress-1"]);
    let ports: Vec<u16> = plane.of_role(Role::Ingress).iter().map(|ingress| ingress.spec.port(API)).collect();
    assert_eq!(ports[0], ports[1], "one number on all machines");
    for name in names {
        let ready = plane.kubectl.run(&["--context", name.as_str().unwrap(), "get", "--raw", "/readyz"]);
        assert_eq!(ready.succeeded().text(), "ok");
    }
}

/// haproxy's own metrics, for those who may open its user's files.
pub(crate) fn metrics(plane: &Plane<'_>) {
    for ingress in plane.of_role(Role::Ingress) {
        let found = socket(plane, ingress).symlink_metadata().unwrap();
        assert!(found.file_type().is_socket());
        assert_eq!((found.uid(), found.mode() & 0o777), (ingress.spec.user, 0o600));
        let text = get(plane, ingress, "/metrics").unwrap();
        assert!(sees_all(plane, &text), "{text}");
        assert!(get(plane, ingress, "/").unwrap().starts_with("HTTP/1.1 404"));
    }
}

/// Whether every ingress passes connections on to every API server.
pub(crate) fn are_whole(plane: &Plane<'_>) -> bool {
    let metrics = |ingress| get(plane, ingress, "/metrics").unwrap_or_default();
    plane.of_role(Role::Ingress).into_iter().all(|ingress| sees_all(plane, &metrics(ingress)))
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

fn get(plane: &Plane<'_>, ingress: &Component, path: &str) -> io::Result<String> {
    let mut stream = UnixStream::connect(socket(plane, ingress))?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: haproxy\r\nConnection: close\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}
