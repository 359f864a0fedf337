//! What a test binary takes of the machine while it runs.

/// Hundredths of a core, and what failures mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Demand {
    pub(crate) load: u32,
    /// It runs real programs on real time. A test of it that fails is run once more, with nothing beside it.
    pub(crate) live: bool,
}

/// Those that take long, the longest first: what is left for the end is short. The load is about what `target/test-times.tsv` says, with
/// room for the moments in which a live suite takes more.
const MEASURED: [(&str, Demand); 17] = [
    ("e2e live", live(70)),
    ("e2e highly_available", live(80)),
    ("e2e interrupted_on_fake", live(100)),
    ("e2e worker_outages", live(60)),
    ("e2e simulation", computing()),
    ("e2e workers", live(70)),
    ("vpn live", live(40)),
    ("node live", live(60)),
    ("cluster-controller gateway", live(50)),
    ("cluster-controller live", live(50)),
    ("hypervisor-agent network", live(70)),
    ("manager kubernetes", live(70)),
    ("e2e store_equivalence", live(80)),
    ("e2e leaders", live(80)),
    ("e2e contracts", live(60)),
    ("local-hypervisor live", live(60)),
    ("manager store", live(60)),
];

const fn live(load: u32) -> Demand {
    Demand { load, live: true }
}

const fn computing() -> Demand {
    Demand { load: 100, live: false }
}

/// What a binary takes, and its place in the order of beginning.
pub(crate) fn demand(name: &str) -> (usize, Demand) {
    let measured = MEASURED.iter().enumerate().find(|(_, (of, _))| *of == name);
    measured.map_or((MEASURED.len(), computing()), |(place, (_, demand))| (place, *demand))
}
