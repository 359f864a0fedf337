//! A NAT between the agent of a private machine and that of the public one. It accepts only replies from outside.

use std::{fs, net::IpAddr, path::Path, process::Command};

use keelway_e2e::{TestFleet, TestMachine, command::run, deadline};

use crate::behind::{PORT, private_of};

/// The network namespace of the NAT.
const NAT: &str = "/run/keelway-e2e/nat";
/// The addresses of the NAT in the private network, used one after the other.
const OUTSIDE: [u8; 2] = [250, 251];
/// The routing table for packets through the NAT.
const TABLE: &str = "77";

/// Installs the NAT before agents are enrolled.
pub(crate) fn between(world: &TestFleet) {
    let machines = world.machines();
    let [public, private] = [true, false].map(|kind| machines.iter().find(|found| found.is_public() == kind).unwrap());
    let bridges = Path::new("/run/keelway-local").join(&world.fleet).join("net");
    fs::write(NAT, "").unwrap();
    shell(&format!("unshare --net={NAT} true"));
    link(&bridges, &private.network());
    masquerade(private_of(public));
    lead_through(private, private_of(public));
}

fn link(bridges: &Path, machine: &Path) {
    let nat = Path::new(NAT);
    within(nat, &format!("ip link add outside type veth peer name nat-out netns {}", bridges.display()));
    within(nat, &format!("ip link add inside type veth peer name nat netns {}", machine.display()));
    within(bridges, "ip link set nat-out master private up");
    within(machine, "ip link set nat up");
    for name in ["lo", "outside", "inside"] {
        within(nat, &format!("ip link set {name} up"));
    }
}

fn masquerade(beside: IpAddr) {
    let nat = Path::new(NAT);
    within(nat, "ip address add 192.168.77.1/24 dev inside");
    within(nat, &format!("ip address add {} dev outside", outside(beside, OUTSIDE[0])));
    set(nat, "ip_forward", 1);
    let rules = [
        "add table ip nat",
        "add chain ip nat out '{ type nat hook postrouting priority srcnat; }'",
        "add rule ip nat out oifname outside masquerade",
        "add chain ip nat in '{ type filter hook forward priority filter; policy drop; }'",
        "add rule ip nat in iifname inside accept",
        "add rule ip nat in ct state established,related accept",
    ];
    for rule in rules {
        within(nat, &format!("nft {rule}"));
    }
}

/// Routes only packets to the public machine's agent through the NAT.
fn lead_through(machine: &TestMachine, to: IpAddr) {
    let network = machine.network();
    within(&network, "ip address add 192.168.77.2/24 dev nat");
    within(&network, &format!("ip route add default via 192.168.77.1 table {TABLE}"));
    within(&network, &format!("ip rule add to {to} ipproto tcp dport {PORT} lookup {TABLE}"));
    // Replies of that agent arrive on `nat`, but the main route to its address uses another interface. The reverse path filter would drop them.
    for interface in ["all", "nat"] {
        set(&network, &format!("conf/{interface}/rp_filter"), 0);
    }
}

/// Changes the address of the NAT and drops all its connections, as a provider does.
pub(crate) fn renumber(beside: IpAddr) {
    let nat = Path::new(NAT);
    within(nat, "ip address flush dev outside");
    within(nat, &format!("ip address add {} dev outside", outside(beside, OUTSIDE[1])));
    within(nat, "conntrack -F");
}

/// Returns an address in the same network as `beside`.
fn outside(beside: IpAddr, last: u8) -> String {
    let IpAddr::V4(beside) = beside else { panic!("{beside} is of another family") };
    let [a, b, c, _] = beside.octets();
    format!("{a}.{b}.{c}.{last}/24")
}

fn set(namespace: &Path, key: &str, value: u8) {
    within(namespace, &format!("sh -c 'echo {value} > /proc/sys/net/ipv4/{key}'"));
}

fn within(namespace: &Path, line: &str) {
    shell(&format!("nsenter --net={} {line}", namespace.display()));
}

fn shell(line: &str) {
    let _ = run(Command::new("sh").args(["-ec", line]), &[], deadline::READ).succeeded();
}
