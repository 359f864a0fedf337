//! WireGuard over TLS: the part of an ingress that forwards such connections, and the part of the gateway beside it that accepts them.

use alloc::{
    format,
    string::{String, ToString},
};
use core::net::{Ipv4Addr, SocketAddr};

use keelway_api::worker::RENEWAL_PROTOCOL;
use serde_json::{Value, json};

use super::{MissingKey, PodInputs, at};

/// The name of the certificate, which workers verify with the cluster's authorities.
pub(crate) const TUNNEL_CERTIFICATE: &str = "tunnel";
/// The application protocol (ALPN) by which an ingress recognizes these connections. `keelway_vpn::datagram_stream` has the same value.
const PROTOCOL: &str = "keelway-wireguard/1";
/// The most connections of one client: an IPv4 address or a network of 64 bits. Many workers may be behind one NAT.
const MOST_OF_ONE: u32 = 128;

impl PodInputs<'_> {
    /// Whether the cluster's gateways accept WireGuard over TLS. Those of v0.1.0 do not.
    pub(super) fn has_streams(&self) -> bool {
        self.cluster.vpn_enabled && self.follows_v0_1_0()
    }

    /// The address at which a gateway accepts streams of the ingress beside it. The number is the cluster's on this machine, so nothing else uses it.
    fn stream_address(&self) -> Result<SocketAddr, MissingKey> {
        Ok(SocketAddr::from((Ipv4Addr::LOCALHOST, self.number()?)))
    }

    /// The section of a gateway's file.
    pub(super) fn stream_listener(&self) -> Result<Value, MissingKey> {
        Ok(json!({
            "listen": self.stream_address()?,
            "tls": {
                "certificateFile": at(&format!("{TUNNEL_CERTIFICATE}.crt")),
                "keyFile": at(&format!("{TUNNEL_CERTIFICATE}.key")),
                "authorityFile": at("ca.crt"),
            },
        }))
    }

    /// The rules of haproxy's frontend that select connections of tunnels. A client that sends no TLS is forwarded at once, so that an API server
    /// answers it.
    pub(super) fn stream_rules(&self) -> String {
        if !self.has_streams() {
            return String::new();
        }
        format!(
            "    tcp-request inspect-delay 5s
    tcp-request content accept if {{ req.ssl_hello_type 1 }}
    tcp-request content accept if {{ req.len gt 0 }} !{{ req.payload(0,1) -m bin 16 }}
    use_backend tunnels if {{ req.ssl_alpn -m str {PROTOCOL} {RENEWAL_PROTOCOL} }}
"
        )
    }

    /// haproxy's backend for tunnels. It has an address instead of a server, because agents remove servers that are not API servers.
    pub(super) fn stream_backend(&self) -> Result<String, MissingKey> {
        if !self.has_streams() {
            return Ok(String::new());
        }
        let address = self.stream_address()?.to_string();
        Ok(format!(
            "
backend tunnels
    timeout connect 2s
    timeout server 1h
    stick-table type ipv6 size 10k expire 10m store conn_cur
    tcp-request content track-sc1 src,ipmask(32,64)
    tcp-request content reject if {{ sc1_conn_cur gt {MOST_OF_ONE} }}
    dispatch {address}
"
        ))
    }
}
