//! Workers and their clients while what they rely on is lost or moves: public machines, each with an ingress and a gateway, and
//! gateways while the API is down.
//!
//! Needs what the tests of `workers` need.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test's functions fail by panicking, and tell their timings"
)]

mod clients;
mod gateways;
mod idle;
mod logs;
mod moves;
mod public;
mod watch;

use keelway_e2e::{host::on_own_host, setting::Setting};

/// Machines for workers, and the NAT that each is behind.
const WORKERS: [(&str, &str); 2] = [("w1", "nat-a"), ("w2", "nat-b")];

#[test]
fn losses() {
    on_own_host("losses", || {
        let setting = Setting::new("e2eloss", "3", &WORKERS);
        setting.inject("c1", &[]);
        setting.reconcile();
        let cluster = setting.cluster("c1", &["w1", "w2"]);
        setting.join(&[&cluster]);
        cluster.start_peers();
        let clients = clients::Clients::start(&setting, &cluster);
        let machines = public::all(&setting, &cluster);
        // Whichever one a client goes through, it is lost once.
        for (lost, other) in [(&machines[0], &machines[1]), (&machines[1], &machines[0])] {
            public::is_lost_and_comes_back(&setting, &cluster.by(&other.context), &clients, lost, other).assert_good();
        }
        let (cluster, gaps) = moves::each_ingress(&setting, &cluster, &clients);
        for gaps in gaps {
            gaps.assert_under(public::BACK);
        }
        watch::missed_nothing(&cluster, &clients.load);
        let probers = clients.end(&cluster);
        assert!(gateways::come_back_from_disk(&setting, &cluster, &probers) < public::BACK);
    });
}
