//! The state of a machine that a worker changes. It is the same before joining and after leaving.

use keelway_cri::testing::cache;

use crate::machine::{Machine, group};

/// Lists the processes in the machine's network namespace, except the programs of this script.
const PROCESSES: &str = "
own=$(readlink /proc/self/ns/net)
for process in /proc/[0-9]*; do
  [ \"$(readlink $process/ns/net)\" = \"$own\" ] || continue
  name=$(cat $process/comm)
  case $name in sh|readlink|cat|sort) ;; *) echo $name ;; esac
done 2>/dev/null | sort";

/// Returns each part of the state with its name.
pub(crate) fn look(machine: &Machine) -> Vec<(&'static str, String)> {
    let looks = [
        ("addresses", "ip -o addr show | sed -E 's/ +valid_lft.*//' | sort"),
        ("links", "ip -o link show | cut -d: -f2 | sort"),
        ("routes", "ip route show table all | sort; ip -6 route show | sort; ip rule; ip -6 rule"),
        ("firewall", "nft list ruleset"),
        ("mounts", "cut -d' ' -f2 /proc/mounts | grep -v containerd | sort"),
        ("files", "find /run /var/lib /var/log /usr/libexec -xdev -not -path '*/containerd/*' | sort"),
        (
            "settings",
            "grep -rs . /proc/sys/net/ipv4/conf /proc/sys/net/ipv6/conf /proc/sys/net/ipv4/ip_forward /proc/sys/net/bridge \
             /proc/sys/net/netfilter/nf_conntrack_tcp_* | sort",
        ),
        ("cgroups", "ls -d /sys/fs/cgroup/*/$1 /sys/fs/cgroup/$1 2>/dev/null || true"),
        ("processes", PROCESSES),
    ];
    let look = |look| machine.output_of("sh", &["-c", look, "sh", group()]);
    let mut seen: Vec<_> = looks.map(|(what, words)| (what, look(words))).to_vec();
    let ctr = cache().unwrap().join("bin/ctr").display().to_string();
    for what in ["containers", "tasks", "leases", "sandboxes", "images"] {
        let quiet: &[&str] = if what == "sandboxes" { &[] } else { &["-q"] };
        seen.push((what, machine.output_of(&ctr, &[&["-n", "k8s.io", what, "list"], quiet].concat())));
    }
    let snapshots = machine.output_of(&ctr, &["-n", "k8s.io", "snapshots", "list"]);
    seen.push(("snapshots", snapshots.lines().filter(|line| !line.contains("Committed")).collect()));
    seen
}

/// Fails unless the machine is in the state `before`.
pub(crate) fn same(before: &[(&'static str, String)], machine: &Machine) {
    for (before, after) in before.iter().zip(look(machine)) {
        let new: Vec<&str> = after.1.lines().filter(|line| !before.1.lines().any(|old| old == *line)).collect();
        let gone: Vec<&str> = before.1.lines().filter(|line| !after.1.lines().any(|new| new == *line)).collect();
        assert!(before.1 == after.1, "{}: new {new:#?}, gone {gone:#?}", before.0);
    }
}
