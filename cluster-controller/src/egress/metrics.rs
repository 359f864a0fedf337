//! The metrics of an egress.

use std::fmt;
use std::sync::{Arc, Weak};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use super::gateways::Gateways;
use crate::connect::TunnelRegistry;
use crate::connects::Connects;

/// Registers all metrics.
pub(super) fn registry(
    gateways: &Arc<Gateways>,
    others: &Arc<TunnelRegistry<()>>,
    [cluster, control_plane]: [&Connects; 2],
) -> Registry {
    let mut registry = Registry::with_prefix("keelway_egress");
    cluster.register(registry.sub_registry_with_label(("selection".into(), "cluster".into())));
    control_plane.register(registry.sub_registry_with_label(("selection".into(), "controlplane".into())));
    registry.register_collector(Box::new(Now { gateways: Arc::downgrade(gateways), others: Arc::downgrade(others) }));
    registry
}

/// Metrics that are computed when they are collected.
struct Now {
    gateways: Weak<Gateways>,
    others: Weak<TunnelRegistry<()>>,
}

impl fmt::Debug for Now {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Now")
    }
}

impl Collector for Now {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let (Some(gateways), Some(others)) = (self.gateways.upgrade(), self.others.upgrade()) else { return Ok(()) };
        let kind = ConstGauge::new(0_i64).metric_type();
        let mut family = encoder.encode_descriptor("tunnels", "Open tunnels", None, kind)?;
        for (selection, count) in [("cluster", gateways.tunnels.len()), ("controlplane", others.len())] {
            let count = ConstGauge::new(i64::try_from(count).unwrap_or(i64::MAX));
            count.encode(family.encode_family(&[("selection", selection)])?)?;
        }
        let help = "Whether the gateway responded to the last health check";
        let mut family = encoder.encode_descriptor("gateway_up", help, None, kind)?;
        for gateway in gateways.all() {
            let up = ConstGauge::new(i64::from(gateway.answers()));
            up.encode(family.encode_family(&[("gateway", gateway.name.as_str())])?)?;
        }
        Ok(())
    }
}
