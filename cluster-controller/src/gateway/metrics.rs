//! The metrics of a gateway.

use std::fmt;
use std::sync::{Arc, Weak};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use super::vpn::Vpn;

/// Registers all metrics.
pub(super) fn registry(vpn: &Arc<Vpn>) -> Registry {
    let mut registry = Registry::with_prefix("keelway_gateway");
    vpn.connects.register(&mut registry);
    registry.register_collector(Box::new(PeerCollector(Arc::downgrade(vpn))));
    registry
}

/// Metrics of peers, computed when they are collected.
struct PeerCollector(Weak<Vpn>);

impl fmt::Debug for PeerCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Peers")
    }
}

impl Collector for PeerCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Some(vpn) = self.0.upgrade() else { return Ok(()) };
        let members = vpn.members();
        gauge(&mut encoder, "peers", "Workers that are peers", members.by_key.len())?;
        gauge(&mut encoder, "tunnels", "Open tunnels", vpn.tunnels.len())?;
        gauge(&mut encoder, "streams", "TLS streams that carry the tunnels of workers", vpn.streams.met())?;
        let help = "Buffers of all tunnels";
        gauge(&mut encoder, "stream_buffer_bytes", help, vpn.relay.stream_buffer_bytes())?;
        let buffers = vpn.relay.kernel_buffers();
        let help = "The kernel's receive buffer of the WireGuard port; less than 4 MiB if net.core.rmem_max is lower";
        gauge(&mut encoder, "receive_buffer_bytes", help, buffers.receive)?;
        let help = "The kernel's send buffer of the WireGuard port; less than 4 MiB if net.core.wmem_max is lower";
        gauge(&mut encoder, "send_buffer_bytes", help, buffers.send)?;
        let siblings = vpn.relay.sibling_stats();
        let help = "Other gateways that report which workers they hear";
        gauge(&mut encoder, "siblings", help, siblings.reporting)?;
        let help = "Packets sent to another gateway, because it hears the worker that this one does not hear";
        counter(&mut encoder, "sibling_sent_packets", help, siblings.packets_to)?;
        let help = "Packets of workers received from other gateways";
        counter(&mut encoder, "sibling_received_packets", help, siblings.packets_from)?;
        let stats = vpn.relay.stats();
        let known =
            || stats.iter().filter_map(|peer| Some((members.by_key.get(&peer.public_key)?.name.as_str(), peer)));
        let kind = ConstGauge::new(0.0).metric_type();
        let help = "Time of the last handshake with the peer, in seconds since the Unix epoch; 0 if there was none";
        let name = "peer_last_handshake_timestamp_seconds";
        let mut family = encoder.encode_descriptor(name, help, None, kind)?;
        for (node, peer) in known() {
            let at = peer.last_handshake.unwrap_or_default().as_secs_f64();
            ConstGauge::new(at).encode(family.encode_family(&[("node", node)])?)?;
        }
        let kind = ConstCounter::new(0_u64).metric_type();
        let help = "Bytes of authenticated messages received from the peer";
        let mut family = encoder.encode_descriptor("peer_received_bytes", help, None, kind)?;
        for (node, peer) in known() {
            ConstCounter::new(peer.received_bytes).encode(family.encode_family(&[("node", node)])?)?;
        }
        let help = "Bytes of messages sent to the peer";
        let mut family = encoder.encode_descriptor("peer_sent_bytes", help, None, kind)?;
        for (node, peer) in known() {
            ConstCounter::new(peer.sent_bytes).encode(family.encode_family(&[("node", node)])?)?;
        }
        Ok(())
    }
}

fn gauge(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: usize) -> fmt::Result {
    let gauge = ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX));
    gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)
}

fn counter(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: u64) -> fmt::Result {
    let counter = ConstCounter::new(value);
    counter.encode(encoder.encode_descriptor(name, help, None, counter.metric_type())?)
}
