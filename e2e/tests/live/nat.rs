//! A NAT between the agent of a private machine and that of the public one, which lets nothing back in but answers.

use std::{fs, net::IpAddr, path::Path, process::Command};

use keelway_e2e::{TestFleet, TestMachine, command::run, deadline};

use crate::behind::{PORT, private_of};

/// Its network.
const NAT: &str = "/run/keelway-e2e/nat";
/// Its addresses in the private network, one after the other.
const OUTSIDE: [u8; 2] = [250, 251];
/// The routing table of what goes through it.
const TABLE: &str = "77";

/// Puts it there before anything goes over the network.
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

/// What goes to the public machine's agent, and nothing else.
fn lead_through(machine: &TestMachine, to: IpAddr) {
    let network = machine.network();
    within(&network, "ip address add 192.168.77.2/24 dev nat");
    within(&network, &format!("ip route add default via 192.168.77.1 table {TABLE}"));
    within(&network, &format!("ip rule add to {to} ipproto tcp dport {PORT} lookup {TABLE}"));
    // Answers come by another way than packets to the same address on other ports.
    for interface in ["all", "nat"] {
        set(&network, &format!("conf/{interface}/rp_filter"), 0);
    }
}

/// Gives it another address, as a provider does over night; it knows no connection any more.
pub(crate) fn renumber(beside: IpAddr) {
    let nat = Path::new(NAT);
    within(nat, "ip address flush dev outside");
    within(nat, &format!("ip address add {} dev outside", outside(beside, OUTSIDE[1])));
    within(nat, "conntrack -F");
}

/// An address of the network that another one is in.
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
