//! A stream between two peers through Keelway's relay, or through wireguard-go and the kernel.

use std::time::Duration;

use crate::report::{Report, Row};
use crate::streams::stream;
use crate::support::{ConfigFile, End, Namespace, Process, chain, probe, theirs, v4, wait_until};
use crate::{Plan, ours, program};

/// The number of the relay among the ends.
pub(crate) const RELAY: u8 = 9;

/// Returns an end whose only peer is the relay.
pub(crate) fn towards_relay(number: u8, relay: &str) -> End {
    let endpoint = format!("Endpoint = {relay}:51820\nPersistentKeepalive = 1");
    End::new(number).peer(RELAY, "10.232.0.0/24", &endpoint)
}

/// Returns the end in the middle, with both others as peers.
pub(crate) fn middle() -> End {
    End::new(RELAY).peer(1, "10.232.0.1/32", "").peer(2, "10.232.0.2/32", "")
}

pub(crate) fn relay(namespace: &Namespace, config: &ConfigFile) -> Process {
    namespace.spawn(program(), &["relay", "relay", "--config", config.path()], &[])
}

/// Returns the speed of a stream between two of Keelway's devices, one on each side.
pub(crate) fn across([a, _, b]: &[Namespace; 3], plan: &Plan) -> f64 {
    let _near = ours(a, &towards_relay(1, "10.231.0.2"));
    let _far = ours(b, &towards_relay(2, "10.231.1.1"));
    wait_until("a way through", Duration::from_secs(30), || probe(a, b, v4(2), Duration::from_millis(300)).is_some());
    stream(a, b, v4(2), plan.seconds)
}

fn round(plan: &Plan, start_middle: impl FnOnce(&Namespace) -> Process) -> f64 {
    let namespaces = chain(1500);
    let _middle = start_middle(&namespaces[1]);
    across(&namespaces, plan)
}

pub(crate) fn measure(plan: &Plan, report: &mut Report) {
    let (mut mine, mut go) = (Vec::new(), Vec::new());
    let config = ConfigFile::new(&middle().quick_config());
    for _ in 0..plan.rounds {
        mine.push(round(plan, |m| relay(m, &config)));
        go.push(round(plan, |m| {
            m.within(|| std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap());
            theirs(m, &middle()).process
        }));
    }
    let what = "relay between two peers, beside wireguard-go and the kernel";
    report.add(Row::ratio(what, "Gbit/s", &mine, &go, 1.5));
}
