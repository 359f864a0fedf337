//! Ingresses: what users and those who watch over machines see of them.

use std::{
    io::{Read, Write},
    os::unix::{
        fs::{FileTypeExt, MetadataExt},
        net::UnixStream,
    },
};

use keelway_api::role::{API, Role};

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
        let socket = plane.directory(ingress, "run").join("metrics.sock");
        let found = socket.symlink_metadata().unwrap();
        assert!(found.file_type().is_socket());
        assert_eq!((found.uid(), found.mode() & 0o777), (ingress.spec.user, 0o600));
        let get = |path: &str| {
            let mut stream = UnixStream::connect(&socket).unwrap();
            write!(stream, "GET {path} HTTP/1.1\r\nHost: haproxy\r\nConnection: close\r\n\r\n").unwrap();
            let mut text = String::new();
            stream.read_to_string(&mut text).unwrap();
            text
        };
        let text = get("/metrics");
        for server in plane.of_role(Role::KubeApiserver) {
            let name = server.spec.name().unwrap();
            let up = format!("haproxy_server_status{{proxy=\"kube-apiserver\",server=\"{name}\",state=\"UP\"}} 1");
            assert!(text.contains(&up), "{up}\n{text}");
        }
        assert!(get("/").starts_with("HTTP/1.1 404"));
    }
}
