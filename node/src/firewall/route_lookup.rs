//! Finds out whether rules can look up routes. There is no list of the kernel's expressions, so a rule with one is added.

use super::{
    commit,
    encode::{Batch, IpFamily},
};

/// The name of a table that is added and deleted in one batch, so that no packet meets it.
const PROBE: &str = "keelway-node-probe";

/// Whether the kernel has the expression `fib` for a family. The kernel loads its module if there is one.
pub(crate) fn can_look_up_routes(family: IpFamily) -> bool {
    let mut batch = Batch::new(family);
    batch.add_table(PROBE);
    batch.add_unused_chain(PROBE, PROBE);
    batch.add_route_lookup_rule(PROBE, PROBE);
    batch.delete_table(PROBE);
    match commit("look up routes in nftables", batch) {
        Ok(()) => true,
        Err(error) => {
            tracing::debug!(?family, ?error, "the kernel has no fib expression");
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::thread::UnshareFlags;

    use super::*;
    use crate::isolated::{run, within};

    #[test]
    fn the_probe_leaves_no_table() {
        within(UnshareFlags::NEWNET, || {
            for (family, name) in [(IpFamily::V4, "ip"), (IpFamily::V6, "ip6")] {
                let rule = format!("table {name} t {{ chain c {{ fib daddr type local accept; }}; }}");
                let has = std::process::Command::new("nft").args(["--check", &rule]).status().unwrap().success();
                assert_eq!(can_look_up_routes(family), has, "{name}");
            }
            assert_eq!(run("nft", &["list", "ruleset"]), "");
        });
    }
}
