//! haproxy in front of the API servers.

use alloc::{
    format,
    string::{String, ToString},
    vec,
    vec::Vec,
};
use core::net::SocketAddr;

use keelway_api::{
    machine::{Check, OnChange},
    release,
    role::{API, Role, SECURE},
};

use super::{MissingKey, Parts, STARTUP_SECONDS, Site, at, text};
use crate::certificates::{self, API_SERVER_NAME};

impl Site<'_> {
    pub(super) fn ingress(&self) -> Result<Parts, MissingKey> {
        let authority = self.shared("ca.crt", certificates::KUBERNETES, "bundle.crt", OnChange::Restart)?;
        Ok(Parts {
            files: vec![authority, text("haproxy.cfg", self.haproxy(), OnChange::Restart)],
            data: vec![("run", "/run/haproxy")],
            image: release::haproxy_image(self.cluster.registry.as_deref()),
            // A master process that hears signals also as the first one of its container.
            command: ["haproxy", "-W", "-db", "-f", &at("haproxy.cfg")].map(ToString::to_string).to_vec(),
            check: Check::Socket {
                path: "run/admin.sock".to_string(),
                request: "show info".to_string(),
                answer: "Name: HAProxy".to_string(),
            },
            startup_seconds: Some(STARTUP_SECONDS),
        })
    }

    /// TCP all the way: clients and API servers verify each other, haproxy sees neither keys nor requests.
    ///
    /// A watch may be silent for hours, so a connection lives as long as both ends do: keepalive finds those that do not.
    fn haproxy(&self) -> String {
        let port = self.spec.port(API);
        let binds: Vec<String> = self
            .machine
            .public
            .iter()
            .map(|address| format!("    bind {}\n", SocketAddr::new(*address, port)))
            .collect();
        let servers: Vec<String> = self
            .siblings(Role::KubeApiserver)
            .filter_map(|(pod, spec, machine)| {
                let address = SocketAddr::new(*machine.private.first()?, spec.port(SECURE));
                Some(format!("    server {} {address}\n", pod.component))
            })
            .collect();
        format!(
            "\
global
    log stdout format raw local0 info
    stats socket /run/haproxy/admin.sock mode 600 level admin
    maxconn 8192
    hard-stop-after 25s
    ssl-default-server-options ssl-min-ver TLSv1.2

defaults
    mode tcp
    log global
    option dontlognull
    option redispatch 1
    option clitcpka
    option srvtcpka
    clitcpka-idle 30s
    clitcpka-intvl 10s
    clitcpka-cnt 3
    srvtcpka-idle 30s
    srvtcpka-intvl 10s
    srvtcpka-cnt 3
    retries 3
    timeout connect 2s
    timeout client 1h
    timeout server 1h
    timeout tunnel 24h
    timeout check 2s

frontend api
{binds}    default_backend kube-apiserver

backend kube-apiserver
    balance leastconn
    option httpchk
    http-check send meth GET uri /readyz ver HTTP/1.1 hdr Host {API_SERVER_NAME}
    http-check expect status 200
    default-server inter 1s fastinter 500ms downinter 500ms rise 1 fall 2 on-marked-down shutdown-sessions \
check check-ssl verify required ca-file {ca} verifyhost {API_SERVER_NAME} check-sni {API_SERVER_NAME}
{servers}",
            binds = binds.concat(),
            servers = servers.concat(),
            ca = at("ca.crt"),
        )
    }
}
