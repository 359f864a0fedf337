//! The resources that a test binary needs.

/// The load in hundredths of a core, and how failures are treated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Demand {
    pub(crate) load: u32,
    /// The binary runs real programs in real time. A test of it that fails runs once more, with no other job beside it.
    pub(crate) live: bool,
}

/// The long test binaries, the longest first, so that only short ones remain for the end of the run. The load is about the value in
/// `target/test-times.tsv`, with a reserve for moments in which a live suite needs more.
const MEASURED: [(&str, Demand); 30] = [
    // Suites that measure how long requests take have a load that does not fit beside another large one.
    ("e2e live", live(100)),
    ("e2e hostile_hosts", live(100)),
    ("e2e fleet", live(130)),
    ("e2e changes", live(120)),
    ("e2e interrupted_on_fake", live(120)),
    ("e2e scaled", live(120)),
    ("e2e highly_available", live(120)),
    ("e2e stores", live(80)),
    ("e2e worker_outages", live(110)),
    ("e2e lost_quorum", live(80)),
    ("e2e simulation", computing()),
    ("e2e workers", live(80)),
    ("vpn live", live(40)),
    ("node live", live(60)),
    ("cluster-controller gateway", live(50)),
    ("cluster-controller live", live(50)),
    ("fleet-controller fleet", live(50)),
    ("hypervisor-agent network", live(50)),
    ("manager kubernetes", live(70)),
    ("e2e store_equivalence", live(80)),
    ("e2e restored", live(70)),
    ("e2e leaders", live(80)),
    ("e2e contracts", live(60)),
    ("local-hypervisor live", live(60)),
    ("manager store", live(40)),
    ("fleet-agent fleet_live", live(50)),
    ("fleet api_server", live(40)),
    ("etcd-client real_etcd", live(40)),
    ("reconciler store_orders", live(50)),
    ("snapshot real_s3", live(40)),
];

const fn live(load: u32) -> Demand {
    Demand { load, live: true }
}

const fn computing() -> Demand {
    Demand { load: 80, live: false }
}

/// Returns the position of a binary in the order of starting, and its demand.
pub(crate) fn demand(name: &str) -> (usize, Demand) {
    let measured = MEASURED.iter().enumerate().find(|(_, (of, _))| *of == name);
    measured.map_or((MEASURED.len(), computing()), |(place, (_, demand))| (place, *demand))
}
