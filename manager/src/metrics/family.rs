//! A gauge that is computed on request.

use std::fmt;

use keelway_api::jiff::Timestamp;
use prometheus_client::{
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::gauge::ConstGauge,
};

/// All values of one metric.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct MetricFamily {
    pub(super) name: &'static str,
    help: &'static str,
    pub(super) samples: Vec<Sample>,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Sample {
    pub(super) labels: Vec<MetricLabel>,
    pub(super) value: f64,
}

/// The name and value of a label.
pub(super) type MetricLabel = (&'static str, String);

impl MetricFamily {
    pub(super) fn new(name: &'static str, help: &'static str) -> Self {
        Self { name, help, samples: Vec::new() }
    }

    pub(super) fn add(&mut self, labels: impl IntoIterator<Item = MetricLabel>, value: f64) {
        self.samples.push(Sample { labels: labels.into_iter().collect(), value });
    }

    /// Adds a value, if it is known.
    pub(super) fn add_known(&mut self, labels: impl IntoIterator<Item = MetricLabel>, value: Option<f64>) {
        if let Some(value) = value {
            self.add(labels, value);
        }
    }

    pub(super) fn encode(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let kind = ConstGauge::new(0.0).metric_type();
        let mut family = encoder.encode_descriptor(self.name, self.help, None, kind)?;
        for Sample { labels, value } in &self.samples {
            let gauge = ConstGauge::new(*value);
            if labels.is_empty() {
                gauge.encode(family)?;
                return Ok(());
            }
            gauge.encode(family.encode_family(labels)?)?;
        }
        Ok(())
    }
}

/// Converts a count to the number type of Prometheus.
#[expect(clippy::cast_precision_loss, reason = "no count reaches 2^53")]
pub(super) fn count(number: usize) -> f64 {
    number as f64
}

/// Converts an amount to the number type of Prometheus.
#[expect(clippy::cast_precision_loss, reason = "bytes of a machine, which are far below 2^53")]
pub(super) fn amount(number: u64) -> f64 {
    number as f64
}

/// Converts a time to seconds since the epoch, as Prometheus represents it.
pub(super) fn seconds(at: Timestamp) -> f64 {
    at.as_duration().as_secs_f64()
}

#[cfg(test)]
impl MetricFamily {
    /// Returns each value with its labels as a line: `role=etcd state=Ready 3`.
    pub(super) fn lines(&self) -> Vec<String> {
        let line = |sample: &Sample| {
            let labels = sample.labels.iter().map(|(name, value)| format!("{name}={value} "));
            labels.collect::<String>() + &sample.value.to_string()
        };
        self.samples.iter().map(line).collect()
    }
}
