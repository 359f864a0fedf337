//! What a machine is, as far as a worker changes it: the same before joining and after leaving.

use crate::machine::Machine;

/// Each with what was seen of it.
pub(crate) fn look(machine: &Machine) -> Vec<(&'static str, String)> {
    let looks = [
        ("addresses", "ip -o addr show | sed -E 's/ +valid_lft.*//' | sort"),
        ("links", "ip -o link show | cut -d: -f2 | sort"),
        ("routes", "ip route show table all | sort; ip -6 route show | sort"),
        ("firewall", "nft list ruleset"),
        ("mounts", "cut -d' ' -f2 /proc/mounts | grep -v containerd | sort"),
        (
            "files",
            "find /run /var/lib /var/log /usr/libexec -xdev -not -path '*/containerd/*' -not -path '/run/netns*' | sort",
        ),
        ("settings", "cat /proc/sys/net/ipv4/ip_forward /proc/sys/net/ipv6/conf/all/forwarding"),
        ("cgroups", "ls -d /sys/fs/cgroup/*/keelway-node-test* /sys/fs/cgroup/keelway-node-test* 2>/dev/null || true"),
        ("processes", "for p in keelway kubelet; do pgrep -x $p || true; done"),
    ];
    looks.map(|(what, look)| (what, machine.said("sh", &["-c", look]))).to_vec()
}
