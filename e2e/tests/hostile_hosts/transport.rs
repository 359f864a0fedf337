//! The transport of a worker's tunnels: UDP, or TLS while its network lets no UDP through.

use std::time::Duration;

use keelway_e2e::{deadline, worker_fleet::TestWorker};

/// A chain that drops everything from the worker but TCP to one port, as a firewall between it and the gateways would.
const BLOCK: &str = "nft add table inet blocked
nft add chain inet blocked out '{ type filter hook output priority 0; }'
nft add rule inet blocked out oifname uplink tcp dport PORT accept
nft add rule inet blocked out oifname uplink drop";
const UNBLOCK: &str = "nft delete table inet blocked";

/// Three times the time until a tunnel uses TLS: three checks of one second.
const TO_TLS: Duration = Duration::from_secs(15);
/// Three times the interval at which a tunnel that uses TLS checks UDP.
const TO_UDP: Duration = Duration::from_secs(90);

/// Drops everything that a worker sends but TCP to the port of the ingresses.
pub(crate) fn block_all_but(port: u16, worker: &TestWorker<'_>) {
    let _ = worker.shell(&BLOCK.replace("PORT", &port.to_string())).succeeded();
}

/// Ends what [`block_all_but`] began.
pub(crate) fn unblock(worker: &TestWorker<'_>) {
    let _ = worker.shell(UNBLOCK).succeeded();
}

/// Waits until both tunnels respond and use TLS, and returns how long that took.
pub(crate) fn uses_tls(worker: &TestWorker<'_>) -> Duration {
    uses(worker, "tls", TO_TLS)
}

/// Waits until both tunnels respond and use UDP, and returns how long that took.
pub(crate) fn uses_udp(worker: &TestWorker<'_>) -> Duration {
    uses(worker, "udp", TO_UDP)
}

fn uses(worker: &TestWorker<'_>, transport: &str, limit: Duration) -> Duration {
    let took = deadline::until(&format!("the tunnels use {transport}"), limit, || {
        let status = worker.status();
        let tunnels = status["tunnels"].as_array().unwrap();
        tunnels.len() == 2
            && tunnels.iter().all(|tunnel| tunnel["answers"] == true && tunnel["transport"] == *transport)
    });
    println!("{:>7} ms  until the tunnels use {transport}", took.as_millis());
    took
}
