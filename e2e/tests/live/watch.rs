//! Watches without events.

use std::{
    io::BufRead,
    net::TcpStream,
    sync::mpsc::{Receiver, RecvTimeoutError, channel},
    thread,
    time::{Duration, Instant},
};

use base64::{Engine, engine::general_purpose::STANDARD};
use keelway_e2e::{TestControlPlane, deadline, https::HttpsClient};
use serde_json::Value;

/// Longer than a minute, after which proxies commonly close idle connections.
const SILENCE: Duration = Duration::from_secs(70);

/// The objects that a watch has received.
pub(crate) struct Lines(Receiver<Value>);

/// Sends one request on one connection through the ingress, as the administrator of the kubeconfig.
pub(crate) fn lines(plane: &TestControlPlane<'_>, path: &str) -> Lines {
    let config = plane.kubectl.kubeconfig();
    let value =
        |list: &str, kind: &str, key: &str| STANDARD.decode(config[list][0][kind][key].as_str().unwrap()).unwrap();
    let certificate = value("users", "user", "client-certificate-data");
    let key = value("users", "user", "client-key-data");
    let authority = value("clusters", "cluster", "certificate-authority-data");
    let https = HttpsClient::new(&authority, "kubernetes", Some((&certificate, &key)));
    let reader = https.stream(TcpStream::connect(plane.ingress()).unwrap(), path).unwrap();
    let (sender, receiver) = channel();
    thread::spawn(move || {
        // Lines of the chunked transfer encoding are between the lines of the response.
        for line in reader.lines().map_while(Result::ok) {
            if let Ok(object) = serde_json::from_str::<Value>(&line)
                && object.is_object()
                && sender.send(object).is_err()
            {
                return;
            }
        }
    });
    Lines(receiver)
}

impl Lines {
    pub(crate) fn next(&self, what: &str) -> Value {
        let object = self.0.recv_timeout(deadline::KUBERNETES);
        object.unwrap_or_else(|error| panic!("{what}: {error}"))
    }
}

/// A watch that receives no events.
pub(crate) struct Silent {
    lines: Lines,
    since: Instant,
}

/// Opens a watch on objects that do not change.
pub(crate) fn open(plane: &TestControlPlane<'_>) -> Silent {
    let _ = plane.kubectl.run(&["create", "namespace", "watched"]).succeeded();
    plane.kubectl.wait("create", &["configmap/kube-root-ca.crt", "-n", "watched"]);
    let path = "/api/v1/namespaces/watched/configmaps";
    // A list that kubectl assembles itself has no resource version.
    let list = plane.kubectl.run(&["get", "--raw", path]).succeeded().json();
    let version = list["metadata"]["resourceVersion"].as_str().unwrap();
    let path = format!("{path}?watch=1&timeoutSeconds=3600&resourceVersion={version}");
    Silent { lines: lines(plane, &path), since: Instant::now() }
}

impl Silent {
    /// After a long silence, the watch still receives the first change.
    pub(crate) fn wakes(&self, plane: &TestControlPlane<'_>) {
        match self.lines.0.recv_timeout(SILENCE.saturating_sub(self.since.elapsed())) {
            Err(RecvTimeoutError::Timeout) => {}
            other => panic!("silent for {:?} only: {other:?}", self.since.elapsed()),
        }
        let silent = self.since.elapsed();
        let _ = plane.kubectl.run(&["create", "configmap", "news", "-n", "watched"]).succeeded();
        let changed = Instant::now();
        let event = self.lines.next("the change");
        assert_eq!((&event["type"], &event["object"]["metadata"]["name"]), (&"ADDED".into(), &"news".into()));
        println!(
            "{:>7} ms  until a watch that was silent for {} s saw a change",
            changed.elapsed().as_millis(),
            silent.as_secs()
        );
    }
}
