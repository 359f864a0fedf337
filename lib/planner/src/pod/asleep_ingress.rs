//! haproxy of a cluster that sleeps: it answers every request with 503, so that clients learn why.

use alloc::{
    format,
    string::{String, ToString},
    vec::Vec,
};
use core::net::SocketAddr;

use keelway_api::{
    machine::{OnChange, PodFile},
    role::API,
};
use serde_json::json;

use super::{
    MissingKey, PodInputs, at,
    ingress::{bind, descriptors, source_limits},
};
use crate::probe::ASLEEP_PATH;

/// A client of Kubernetes repeats each request ten times after this pause, so one that is waiting continues soon after the cluster woke.
const RETRY_AFTER_SECONDS: u32 = 1;
/// How much more memory a connection needs whose TLS ends here.
const TLS_SHARE: u64 = 4;

impl PodInputs<'_> {
    /// The serving certificate with its key. haproxy reads them only when it starts.
    pub(super) fn asleep_files(&self) -> Result<[PodFile; 2], MissingKey> {
        let [certificate, key] = self.certificate("server")?;
        Ok([certificate, key].map(|file| PodFile { on_change: OnChange::Restart, ..file }))
    }

    /// The response to kubectl has no `Retry-After`: kubectl would retry for about a minute before it shows the response.
    ///
    /// Clients verify the server as ever. No client is asked for a certificate, and nothing of a request is read but its path. Connections of
    /// tunnels are not forwarded, because the gateway does not run.
    pub(super) fn asleep_haproxy(&self) -> String {
        let port = self.spec.port(API);
        let tls = format!(" ssl crt {} ssl-min-ver TLSv1.2 alpn h2,http/1.1\n", at("server.crt"));
        let binds = self.machine.bind.iter().map(|address| bind(SocketAddr::new(*address, port)).replace('\n', &tls));
        let binds: Vec<String> = binds.collect();
        format!(
            "\
global
    log stdout format raw local0 notice
    log stdout format raw sample 1:100 local0 info
    stats socket /run/haproxy/admin.sock mode 600 level admin
    fd-hard-limit {descriptors}
    hard-stop-after 25s
    ssl-load-extra-del-ext

defaults
    mode http
    log global
    option dontlognull
    option dontlog-normal
    timeout client 10s
    timeout http-request 10s
    timeout http-keep-alive 10s

frontend api
{binds}{limits}    http-request return status 200 if {{ path {ASLEEP_PATH} }}
    http-request return status 503 content-type application/json string '{status}' if {{ req.hdr(user-agent) -m beg kubectl/ }}
    http-request return status 503 content-type application/json hdr Retry-After {RETRY_AFTER_SECONDS} string '{status}'

frontend metrics
    bind unix@/run/haproxy/metrics.sock mode 600
    http-request use-service prometheus-exporter if {{ path /metrics }}
    http-request return status 404
",
            binds = binds.concat(),
            limits = source_limits(),
            status = status(),
            descriptors =
                descriptors(self.cluster.bounds.resources(self.spec.role).memory_limit_bytes) / TLS_SHARE,
        )
    }
}

/// A `Status`, as API servers answer. It contains no quote of haproxy's, and names no cluster: clients that may not read anything receive it.
fn status() -> String {
    json!({
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": "the cluster is asleep: its administrator wakes it with `keelway cluster wake`",
        "reason": "ServiceUnavailable",
        "details": { "retryAfterSeconds": RETRY_AFTER_SECONDS },
        "code": 503,
    })
    .to_string()
}
