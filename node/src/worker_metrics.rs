//! The metrics of a worker, from the same status as `node status`.

use std::fmt;

use jiff::Timestamp;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{MetricType, counter::ConstCounter, gauge::ConstGauge},
    registry::{Registry, Unit},
};

use crate::{
    direct_paths::DirectPathKind,
    status::{TunnelStatus, WorkerStatus},
    worker_problem,
};

/// The prefix of all names.
const PREFIX: &str = "keelway_worker";

/// Returns the metrics of a worker at this time.
pub(crate) fn registry(status: WorkerStatus, now: Timestamp) -> Registry {
    let mut registry = Registry::with_prefix(PREFIX);
    registry.register_collector(Box::new(WorkerCollector { status, now }));
    registry
}

#[derive(Debug)]
struct WorkerCollector {
    status: WorkerStatus,
    now: Timestamp,
}

/// A metric with at most one label, and its values.
struct WorkerMetric<'a> {
    name: &'a str,
    help: &'a str,
    unit: Option<Unit>,
    label: Option<&'a str>,
    values: Vec<(String, MetricValue)>,
}

#[derive(Clone, Copy)]
enum MetricValue {
    Gauge(f64),
    Counter(u64),
}

impl MetricValue {
    fn is(is: bool) -> Self {
        Self::Gauge(f64::from(u8::from(is)))
    }

    fn kind(self) -> MetricType {
        match self {
            Self::Gauge(_) => MetricType::Gauge,
            Self::Counter(_) => MetricType::Counter,
        }
    }
}

impl WorkerMetric<'_> {
    fn encode(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let Some((_, first)) = self.values.first() else { return Ok(()) };
        let mut family = encoder.encode_descriptor(self.name, self.help, self.unit.as_ref(), first.kind())?;
        let Some(label) = self.label else { return encode(*first, family) };
        for (value_of_label, value) in &self.values {
            encode(*value, family.encode_family(&[(label, value_of_label.as_str())])?)?;
        }
        Ok(())
    }
}

fn encode(value: MetricValue, encoder: prometheus_client::encoding::MetricEncoder<'_>) -> fmt::Result {
    match value {
        MetricValue::Gauge(value) => ConstGauge::new(value).encode(encoder),
        MetricValue::Counter(value) => ConstCounter::new(value).encode(encoder),
    }
}

impl Collector for WorkerCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let metrics = [self.tunnels(), self.direct_paths(), self.ingresses(), self.machine()];
        metrics.iter().flatten().try_for_each(|metric| metric.encode(&mut encoder))
    }
}

impl WorkerCollector {
    fn tunnels(&self) -> Vec<WorkerMetric<'_>> {
        let each = |name, help, unit, value: &dyn Fn(&TunnelStatus) -> Option<MetricValue>| WorkerMetric {
            name,
            help,
            unit,
            label: Some("gateway"),
            values: self
                .status
                .tunnels
                .iter()
                .filter_map(|tunnel| Some((tunnel.endpoint.to_string(), value(tunnel)?)))
                .collect(),
        };
        vec![
            each("tunnel_active", "1 if the tunnel to this gateway carries the worker's packets", None, &|tunnel| {
                Some(MetricValue::is(tunnel.active))
            }),
            each("tunnel_up", "1 if the gateway responded to the last check through its tunnel", None, &|tunnel| {
                tunnel.answers.map(MetricValue::is)
            }),
            each(
                "tunnel_last_handshake_timestamp",
                "Time of the last handshake, in seconds since the Unix epoch",
                Some(Unit::Seconds),
                &|tunnel| tunnel.last_handshake.map(seconds),
            ),
            each("tunnel_latency", "Duration of the last successful check", Some(Unit::Seconds), &|tunnel| {
                let micros = u32::try_from(tunnel.latency_microseconds?).unwrap_or(u32::MAX);
                Some(MetricValue::Gauge(f64::from(micros) / 1e6))
            }),
            each("tunnel_received", "Bytes received from the gateway", Some(Unit::Bytes), &|tunnel| {
                Some(MetricValue::Counter(tunnel.received_bytes))
            }),
            each("tunnel_sent", "Bytes sent to the gateway", Some(Unit::Bytes), &|tunnel| {
                Some(MetricValue::Counter(tunnel.sent_bytes))
            }),
        ]
    }

    fn direct_paths(&self) -> Vec<WorkerMetric<'_>> {
        let paths = &self.status.direct_paths;
        let of = |kind| paths.iter().filter(|path| path.state == kind).count();
        let values = DirectPathKind::ALL.map(|kind| (kind.to_string(), count(of(kind))));
        vec![WorkerMetric {
            name: "direct_paths",
            help: "Other workers, by the state of the path to them without a gateway",
            unit: None,
            label: Some("state"),
            values: values.to_vec(),
        }]
    }

    fn ingresses(&self) -> Vec<WorkerMetric<'_>> {
        let all = &self.status.ingresses;
        let up = all.iter().filter_map(|one| Some((one.address.to_string(), MetricValue::is(one.answers?))));
        let open = all.iter().map(|one| (one.address.to_string(), count(one.connections)));
        let metric = |name, help, values| WorkerMetric { name, help, unit: None, label: Some("ingress"), values };
        vec![
            metric("ingress_up", "1 if an API server responded through the ingress to the last check", up.collect()),
            metric("ingress_connections", "Connections through the ingress", open.collect()),
        ]
    }

    fn machine(&self) -> Vec<WorkerMetric<'_>> {
        let status = &self.status;
        let one = |name, help, value| WorkerMetric {
            name,
            help,
            unit: None,
            label: None,
            values: vec![(String::new(), value)],
        };
        let found = worker_problem::problems(status, self.now);
        let mut reasons: Vec<&str> = found.iter().map(|problem| problem.reason).collect();
        reasons.sort_unstable();
        reasons.dedup();
        let expiry = status.certificates.iter().map(|one| (one.name.clone(), gauge(one.not_after.as_second())));
        vec![
            one("kubelet_running", "1 while the kubelet runs", MetricValue::is(status.kubelet.pid.is_some())),
            one(
                "kubelet_restarts",
                "Restarts of the kubelet by this daemon",
                MetricValue::Counter(status.kubelet.restarts.into()),
            ),
            WorkerMetric {
                name: "certificate_expiration_timestamp",
                help: "Time at which the certificate expires, in seconds since the Unix epoch",
                unit: Some(Unit::Seconds),
                label: Some("certificate"),
                values: expiry.collect(),
            },
            one("problems", "Problems that node status names", count(found.len())),
            WorkerMetric {
                name: "problem",
                help: "1 for each reason for which node status names a problem",
                unit: None,
                label: Some("reason"),
                values: reasons.into_iter().map(|reason| (reason.to_owned(), MetricValue::is(true))).collect(),
            },
        ]
    }
}

fn count(count: usize) -> MetricValue {
    MetricValue::Gauge(f64::from(u32::try_from(count).unwrap_or(u32::MAX)))
}

fn seconds(since_epoch: u64) -> MetricValue {
    gauge(i64::try_from(since_epoch).unwrap_or(i64::MAX))
}

#[expect(clippy::cast_precision_loss, reason = "a time in seconds has fewer than 53 bits")]
fn gauge(value: i64) -> MetricValue {
    MetricValue::Gauge(value as f64)
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs};

    use prometheus_client::encoding::text::encode;

    use super::*;
    use crate::samples::worker_status;

    fn text(status: WorkerStatus) -> String {
        let mut text = String::new();
        encode(&mut text, &registry(status, Timestamp::UNIX_EPOCH)).unwrap();
        text
    }

    #[test]
    fn each_tunnel_ingress_and_certificate_has_its_values() {
        let text = text(worker_status());
        for line in [
            "keelway_worker_tunnel_active{gateway=\"203.0.113.1:20000\"} 1.0",
            "keelway_worker_tunnel_active{gateway=\"203.0.113.2:20000\"} 0.0",
            "keelway_worker_tunnel_up{gateway=\"203.0.113.1:20000\"} 1.0",
            "keelway_worker_tunnel_last_handshake_timestamp_seconds{gateway=\"203.0.113.1:20000\"} 1900000000.0",
            "keelway_worker_tunnel_latency_seconds{gateway=\"203.0.113.1:20000\"} 0.0015",
            "keelway_worker_tunnel_received_bytes_total{gateway=\"203.0.113.1:20000\"} 7",
            "keelway_worker_tunnel_sent_bytes_total{gateway=\"203.0.113.1:20000\"} 8",
            "keelway_worker_direct_paths{state=\"direct\"} 1.0",
            "keelway_worker_direct_paths{state=\"probing\"} 0.0",
            "keelway_worker_ingress_up{ingress=\"203.0.113.1:6443\"} 0.0",
            "keelway_worker_ingress_connections{ingress=\"203.0.113.1:6443\"} 3.0",
            "keelway_worker_kubelet_running 0.0",
            "keelway_worker_kubelet_restarts_total 2",
            "keelway_worker_certificate_expiration_timestamp_seconds{certificate=\"client\"} 1896048000.0",
            "keelway_worker_problems 2.0",
            "keelway_worker_problem{reason=\"KubeletNotRunning\"} 1.0",
            "keelway_worker_problem{reason=\"NoIngressResponds\"} 1.0",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
        assert!(!text.contains("tunnel_up{gateway=\"203.0.113.2"), "a gateway that was not checked has no value");
    }

    #[test]
    fn a_metric_without_values_is_left_out() {
        let none = WorkerStatus { tunnels: vec![], ingresses: vec![], certificates: vec![], ..worker_status() };
        let text = text(none);
        assert!(!text.contains("tunnel_") && !text.contains("certificate_"), "{text}");
        assert!(text.ends_with("# EOF\n"), "{text}");
    }

    /// Returns the names after which samples are listed, such as `keelway_worker_tunnel_received_bytes_total`.
    fn names(text: &str) -> BTreeSet<String> {
        let samples = text.lines().filter(|line| !line.starts_with('#'));
        samples.map(|line| line.split(['{', ' ']).next().unwrap().to_owned()).collect()
    }

    #[test]
    fn the_page_lists_each_metric_and_no_other() {
        let page = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/monitoring.md")).unwrap();
        let first_cells = page.lines().filter_map(|line| line.strip_prefix("| ")?.split(" |").next());
        let listed = first_cells.flat_map(|cell| cell.split('`')).filter(|name| name.starts_with("keelway_worker_"));
        let listed: BTreeSet<String> = listed.map(str::to_owned).collect();
        assert_eq!(listed, names(&text(worker_status())));
    }
}
