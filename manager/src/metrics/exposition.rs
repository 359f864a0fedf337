//! The text formats of metrics.

use std::{collections::BTreeSet, fmt};

use prometheus_client::{encoding::text::encode, registry::Registry};

/// A text format that Prometheus reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExpositionFormat {
    /// OpenMetrics, which Prometheus requests.
    OpenMetrics,
    /// The text format of Prometheus: for users, `promtool check metrics`, and clients that request no format.
    Text,
}

impl ExpositionFormat {
    /// Returns the format for the `Accept` header of a request.
    #[must_use]
    pub fn negotiate(accept: Option<&str>) -> Self {
        let takes = |accept: &str| accept.contains("application/openmetrics-text");
        if accept.is_some_and(takes) { Self::OpenMetrics } else { Self::Text }
    }

    /// Returns the `Content-Type` of the format.
    #[must_use]
    pub fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

pub(super) fn text(registry: &Registry, format: ExpositionFormat) -> Result<String, fmt::Error> {
    let mut text = String::new();
    encode(&mut text, registry)?;
    Ok(match format {
        ExpositionFormat::OpenMetrics => text,
        ExpositionFormat::Text => plain(&text),
    })
}

/// Converts OpenMetrics to the text format. OpenMetrics names a counter without the `_total` of its values, and ends with `# EOF`.
fn plain(text: &str) -> String {
    let kind = |line| str::strip_prefix(line, "# TYPE ")?.split_once(' ');
    let counters: BTreeSet<&str> =
        text.lines().filter_map(kind).filter(|(_, kind)| *kind == "counter").map(|(name, _)| name).collect();
    let mut plain = String::with_capacity(text.len());
    for line in text.lines().filter(|line| *line != "# EOF") {
        match parse_comment(line) {
            Some((before, name, rest)) if counters.contains(name) => {
                plain.extend([before, name, "_total ", rest]);
            }
            Some(_) | None => plain.push_str(line),
        }
        plain.push('\n');
    }
    plain
}

/// Splits a comment line into its keyword, the name of a metric, and the rest.
fn parse_comment(line: &str) -> Option<(&str, &str, &str)> {
    let before = ["# HELP ", "# TYPE "].into_iter().find(|before| line.starts_with(before))?;
    let (name, rest) = line.get(before.len()..)?.split_once(' ')?;
    Some((before, name, rest))
}

#[cfg(test)]
mod tests {
    use prometheus_client::metrics::{counter::Counter, gauge::Gauge};

    use super::*;

    #[test]
    fn counter_names_follow_the_requested_format() {
        let mut registry = Registry::with_prefix("keelway");
        registry.register("passes", "Passes", <Counter>::default());
        registry.register("queue_depth", "Clusters that wait", <Gauge>::default());
        let open = text(&registry, ExpositionFormat::OpenMetrics).unwrap();
        assert!(open.contains("# TYPE keelway_passes counter\n") && open.ends_with("# EOF\n"), "{open}");
        let expected = "# HELP keelway_passes_total Passes.\n# TYPE keelway_passes_total counter\nkeelway_passes_total 0\n\
                        # HELP keelway_queue_depth Clusters that wait.\n# TYPE keelway_queue_depth gauge\nkeelway_queue_depth 0\n";
        assert_eq!(text(&registry, ExpositionFormat::Text).unwrap(), expected);
    }

    #[test]
    fn the_default_format_is_text() {
        assert_eq!(ExpositionFormat::negotiate(None), ExpositionFormat::Text);
        assert_eq!(ExpositionFormat::negotiate(Some("*/*")), ExpositionFormat::Text);
        let prometheus = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        assert_eq!(ExpositionFormat::negotiate(Some(prometheus)), ExpositionFormat::OpenMetrics);
    }
}
