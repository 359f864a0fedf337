//! Observes the kernel.

use std::fs;

use crate::{checks::KernelFacts, firewall, firewall::IpFamily};

/// Observes what matters only for some clusters.
pub(crate) fn kernel() -> KernelFacts {
    let disabled = fs::read_to_string("/proc/sys/net/ipv6/conf/all/disable_ipv6");
    KernelFacts {
        release: rustix::system::uname().release().to_string_lossy().into_owned(),
        has_fib_v4: firewall::can_look_up_routes(IpFamily::V4),
        has_fib_v6: firewall::can_look_up_routes(IpFamily::V6),
        has_ipv6: disabled.is_ok_and(|value| value.trim() == "0"),
    }
}
