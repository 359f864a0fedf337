//! Checks whether the kernel has what a cluster's add-ons and ranges need.

use super::CheckFault;

/// The oldest kernel for kube-proxy in nftables mode (`NFTablesKubeProxyKernelVersion` of Kubernetes).
const OLDEST_FOR_KUBE_PROXY: (u32, u32) = (5, 13);

/// The facts of the kernel that matter only for some clusters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelFacts {
    /// The release, such as `6.1.0-28-amd64`.
    pub release: String,
    /// Whether rules of nftables for IPv4 can look up routes (`nft_fib_ipv4`).
    pub has_fib_v4: bool,
    /// The same for IPv6 (`nft_fib_ipv6`).
    pub has_fib_v6: bool,
    /// Whether IPv6 is enabled.
    pub has_ipv6: bool,
}

/// What a cluster needs of the kernels of its workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KernelNeeds {
    /// Whether kube-proxy runs on workers.
    pub kube_proxy: bool,
    /// Whether the cluster has ranges of IPv6.
    pub ipv6: bool,
}

/// Returns what the kernel lacks.
#[must_use]
pub fn kernel_faults(facts: &KernelFacts, needs: KernelNeeds) -> Vec<CheckFault> {
    let mut faults = Vec::new();
    if needs.ipv6 && !facts.has_ipv6 {
        faults.push(CheckFault::new(
            "the cluster has ranges of IPv6, and IPv6 is disabled on this machine",
            "enable it with `sysctl net.ipv6.conf.all.disable_ipv6=0` and in /etc/sysctl.d, and boot the kernel without ipv6.disable=1",
        ));
    }
    if needs.kube_proxy {
        faults.extend(kube_proxy(facts, needs.ipv6));
    }
    faults
}

fn kube_proxy(facts: &KernelFacts, has_ipv6: bool) -> Vec<CheckFault> {
    const REPLACE: &str = "set spec.addons.kubeProxy.enabled of the cluster to false and install a replacement";
    let mut faults = Vec::new();
    let (major, minor) = OLDEST_FOR_KUBE_PROXY;
    // A release that cannot be parsed is none of an old kernel.
    if version(&facts.release).is_some_and(|found| found < OLDEST_FOR_KUBE_PROXY) {
        faults.push(CheckFault::new(
            format!("this machine runs Linux {}, and kube-proxy requires {major}.{minor} or newer", facts.release),
            format!("upgrade the kernel, or {REPLACE}"),
        ));
    }
    let families = [("nft_fib_ipv4", facts.has_fib_v4, true), ("nft_fib_ipv6", facts.has_fib_v6, has_ipv6)];
    for (module, _, _) in families.iter().filter(|(_, has, is_needed)| *is_needed && !has) {
        faults.push(CheckFault::new(
            format!("the kernel cannot look up routes in nftables ({module}), which kube-proxy requires"),
            format!(
                "load it with `modprobe {module}`, or install the package with the remaining modules of this kernel; otherwise {REPLACE}"
            ),
        ));
    }
    faults
}

/// Parses major and minor of a release such as `5.10.0-30-amd64`.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: KernelNeeds = KernelNeeds { kube_proxy: true, ipv6: true };

    fn good() -> KernelFacts {
        KernelFacts { release: "6.1.0-28-amd64".to_owned(), has_fib_v4: true, has_fib_v6: true, has_ipv6: true }
    }

    #[test]
    fn each_cluster_requires_only_what_it_uses() {
        let bad = KernelFacts { release: "5.10.0".to_owned(), has_fib_v4: false, has_fib_v6: false, has_ipv6: false };
        let count = |kube_proxy, ipv6| kernel_faults(&bad, KernelNeeds { kube_proxy, ipv6 }).len();
        assert_eq!([count(true, true), count(true, false), count(false, true), count(false, false)], [4, 2, 1, 0]);
        assert_eq!(kernel_faults(&good(), ALL), []);
    }

    /// The releases of Debian 11, Ubuntu 20.04, RHEL 9, Raspberry Pi OS 12 and Fedora 44.
    #[test]
    fn only_old_kernels_are_refused() {
        let is_refused = |release: &str| {
            let facts = KernelFacts { release: release.to_owned(), ..good() };
            !kernel_faults(&facts, ALL).is_empty()
        };
        assert!(["5.10.0-30-amd64", "5.4.0-216-generic", "5.12.19"].iter().all(|release| is_refused(release)));
        let new =
            ["5.13.0", "5.14.0-427.el9.x86_64", "6.6.31+rpt-rpi-v8", "7.0.4-200.fc44.x86_64", "6.18-rc1", "unknown"];
        assert!(!new.iter().any(|release| is_refused(release)));
    }

    #[test]
    fn each_fault_of_the_kernel_names_a_remedy() {
        let table: [(KernelFacts, &str, &str); 4] = [
            (KernelFacts { release: "5.10.0".to_owned(), ..good() }, "requires 5.13", "upgrade the kernel"),
            (KernelFacts { has_fib_v4: false, ..good() }, "nft_fib_ipv4", "modprobe nft_fib_ipv4"),
            (KernelFacts { has_fib_v6: false, ..good() }, "nft_fib_ipv6", "modprobe nft_fib_ipv6"),
            (KernelFacts { has_ipv6: false, ..good() }, "IPv6 is disabled", "disable_ipv6=0"),
        ];
        for (facts, problem, help) in table {
            let found = kernel_faults(&facts, ALL);
            let [fault] = found.as_slice() else { panic!("{problem}: {found:?}") };
            assert!(fault.problem.contains(problem) && fault.help.contains(help), "{fault}");
        }
    }
}
