//! Kubernetes' own conformance tests against a cluster whose two workers are behind NATs. `make conformance` runs them and writes
//! `docs/conformance.md`.
//!
//! It needs what the tests of `workers` need, and the programs and images of `cargo xtask images --conformance`.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test's functions fail by panicking, and print their timings"
)]

mod omitted;
mod page;
mod report;
mod suite;

use std::{env, fs, path::Path};

use keelway_api::release;
use keelway_e2e::{ReachMode, host::on_own_host, worker_fleet::WorkerFleet};
use page::ConformancePage;
use report::ConformanceReport;
use suite::Suite;

/// Machines for workers, each with the NAT that it is behind.
const WORKERS: [(&str, &str); 2] = [("w1", "nat-1"), ("w2", "nat-2")];
/// The page to write.
const PAGE: &str = "KEELWAY_CONFORMANCE_PAGE";

#[test]
#[ignore = "long: the conformance tests of Kubernetes"]
fn conformance() {
    on_own_host("conformance", || scenario("e2econf"));
}

fn scenario(tag: &str) {
    let suite = Suite::of_environment();
    let worker_fleet = WorkerFleet::reached(ReachMode::Network, tag, "2", &WORKERS);
    for (worker, _) in WORKERS {
        suite.import_images(&worker_fleet, worker);
    }
    worker_fleet.inject("c1", &[]);
    worker_fleet.reconcile();
    let cluster = worker_fleet.cluster("c1", &["w1", "w2"]);
    worker_fleet.join(&[&cluster]);
    cluster.kubectl.wait("condition=Available", &["--namespace", "kube-system", "deployment/coredns"]);

    let run = ConformanceReport::read(&suite.run(&cluster.kubectl));
    let (failed, passed) = (run.failed.len(), run.passed.len());
    let earlier = suite.earlier_report();
    let is_complete = suite.is_whole() || earlier.is_some();
    let report = match earlier {
        Some(earlier) => {
            let mut report = ConformanceReport::read(&earlier);
            report.complete(run);
            report
        }
        None => run,
    };
    let page = ConformancePage { version: release::newest_version(), report: &report }.to_string();
    println!("{page}");
    match env::var_os(PAGE) {
        Some(path) if is_complete => fs::write(Path::new(&path), page).unwrap(),
        Some(_) | None => {}
    }
    assert!(failed == 0, "{failed} conformance tests failed; see {}", suite.log().display());
    assert!(passed > 0, "no conformance test ran; see {}", suite.log().display());
}
