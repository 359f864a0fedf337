//! If the environment names a collector, the manager sends spans to it.

use std::process::Command;

use crate::{collector::Collector, manager::Manager};

#[test]
fn passes_are_spans() {
    let collector = Collector::start();
    let authority = collector.authority.display().to_string();
    let mut manager = Manager::start_with(&[
        ("OTEL_EXPORTER_OTLP_ENDPOINT", &collector.endpoint),
        ("OTEL_EXPORTER_OTLP_CERTIFICATE", &authority),
        ("OTEL_BSP_SCHEDULE_DELAY", "100"),
    ]);
    manager.says(|line| line["span"]["cluster"] == "c1");
    let span = collector.takes(|span| span.name == "pass" && span.has("cluster", "c1"));
    assert_eq!(span.service, "keelway-manager");
    assert!(!span.events.is_empty(), "what is told of a pass is told with its span: {span:?}");
    collector.takes(|span| span.has("hypervisor", "hv-1"));
    for step in ["observe", "plan", "save"] {
        collector.takes(|span| span.name == step);
    }
}

#[test]
fn an_untrusted_collector_receives_nothing() {
    let (collector, another) = (Collector::start(), Collector::start());
    let authority = another.authority.display().to_string();
    let mut manager = Manager::start_with(&[
        ("OTEL_EXPORTER_OTLP_ENDPOINT", &collector.endpoint),
        ("OTEL_EXPORTER_OTLP_CERTIFICATE", &authority),
        ("OTEL_BSP_SCHEDULE_DELAY", "100"),
    ]);
    manager.says(|line| line["target"].as_str().is_some_and(|target| target.starts_with("opentelemetry")));
    assert!(collector.has_nothing());
}

#[test]
fn a_remote_collector_without_tls_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_keelway-manager"));
    command.arg("run").arg(format!("--store=dir:{}", folder.path().join("store").display()));
    command.env_clear().env("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector.monitoring:4317");
    let output = command.output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        !output.status.success() && said.contains("OTEL_EXPORTER_OTLP_ENDPOINT: ") && said.contains("use https://"),
        "{said}"
    );
    assert!(!folder.path().join("store").exists(), "nothing has begun");
}
