//! Checks whether pods can have host ports.

use std::path::PathBuf;

use super::CheckFault;

/// The programs with which the CNI plugin `portmap` writes its rules. It needs one of them.
pub(crate) const RULE_PROGRAMS: [&str; 2] = ["nft", "iptables"];

/// Returns a fault if the machine has none of these programs. `found` contains the paths of those that it has.
pub(crate) fn host_ports(found: &[PathBuf]) -> Option<CheckFault> {
    found.is_empty().then(|| {
        CheckFault::new(
            format!(
                "neither {} is installed, so that pods with a hostPort would not start",
                RULE_PROGRAMS.join(" nor ")
            ),
            "install the package nftables of your distribution",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_needs_one_of_the_programs() {
        assert_eq!(host_ports(&[PathBuf::from("/usr/sbin/iptables")]), None);
        let fault = host_ports(&[]).unwrap();
        assert!(fault.problem.starts_with("neither nft nor iptables is installed"), "{fault}");
    }
}
