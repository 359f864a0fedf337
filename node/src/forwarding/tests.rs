//! The tests run in a network of their own with a router on the link `eth0`, whose advertisements the kernel itself reads.

use std::{
    net::{Ipv6Addr, SocketAddrV6},
    time::{Duration, Instant},
};

use rustix::{net::netdevice::name_to_index, thread::UnshareFlags};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use super::*;
use crate::isolated::{run, within};

const ROUTER: &str = "fe80::1";
/// Both ends of the link are in one namespace, so the machine must accept its own advertisements.
const LINK: &str = "
ip link set lo up
ip link add eth0 type veth peer name router
for name in eth0 router; do echo 0 > /proc/sys/net/ipv6/conf/$name/accept_dad; done
echo 1 > /proc/sys/net/ipv6/conf/eth0/accept_ra_from_local
ip link set router addrgenmode none
ip link set router up
ip link set eth0 up
ip addr add fe80::1/64 dev router nodad";

/// Runs a test on a machine whose default route was advertised.
fn on_machine(test: impl FnOnce(&Layout) + Send) {
    within(UnshareFlags::NEWNET, || {
        run("sh", &["-ec", LINK]);
        learn_route();
        let state = tempfile::tempdir().unwrap();
        test(&Layout::new(state.path()));
    });
}

/// Advertises the router until the machine has its route.
fn learn_route() {
    let end = Instant::now() + Duration::from_secs(60);
    while !has_route() {
        assert!(Instant::now() < end, "the machine learns no route: {}", run("ip", &["-6", "route"]));
        advertise();
    }
}

/// Sends a router advertisement (RFC 4861, section 4.2) with a lifetime of 1800 s.
fn advertise() {
    let socket = Socket::new(Domain::IPV6, Type::RAW, Some(Protocol::ICMPV6)).unwrap();
    let index = name_to_index(&socket, "router").unwrap();
    socket.set_multicast_if_v6(index).unwrap();
    socket.set_multicast_hops_v6(255).unwrap();
    let at =
        |address: &str, scope| SockAddr::from(SocketAddrV6::new(address.parse::<Ipv6Addr>().unwrap(), 0, 0, scope));
    socket.bind(&at(ROUTER, index)).unwrap();
    let mut message = [0; 16];
    (message[0], message[4], message[6], message[7]) = (134, 64, 0x07, 0x08);
    socket.send_to(&message, &at("ff02::1", index)).unwrap();
}

fn has_route() -> bool {
    DefaultRoute::list().unwrap().iter().any(|route| route.is_advertised && route.interface().unwrap() == "eth0")
}

fn values() -> [Option<String>; 2] {
    [IPV6_FORWARDING, "net/ipv6/conf/eth0/accept_ra"].map(sysctl::read)
}

fn are(forwarding: &str, accept_ra: &str) -> [Option<String>; 2] {
    [forwarding, accept_ra].map(|value| Some(value.to_owned()))
}

#[test]
fn an_advertised_route_survives_forwarding() {
    on_machine(|layout| {
        assert_eq!(values(), are("0", "1"));
        enable_ipv6(layout).unwrap();
        assert_eq!(values(), are("1", "2"));
        assert!(has_route());
        // After a reboot the setting is gone, and the router is not heard yet.
        sysctl::write(IPV6_FORWARDING, "0").unwrap();
        sysctl::write("net/ipv6/conf/eth0/accept_ra", "1").unwrap();
        run("ip", &["-6", "route", "del", "default"]);
        enable_ipv6(layout).unwrap();
        assert_eq!(values(), are("1", "2"));
        assert!(!has_route());
        learn_route();

        sysctl::restore(&Changes::read(layout).unwrap(), false).unwrap();
        assert_eq!(values(), are("0", "1"));
        assert!(has_route());
    });
}

/// What happens without the guard.
#[test]
fn the_kernel_removes_an_advertised_route() {
    on_machine(|_| {
        sysctl::write(IPV6_FORWARDING, "1").unwrap();
        assert!(!has_route());
    });
}

#[test]
fn forwarding_is_disabled_again_if_a_route_is_lost() {
    on_machine(|layout| {
        // The route was advertised before another program took over.
        sysctl::write("net/ipv6/conf/eth0/accept_ra", "0").unwrap();
        let error = enable_ipv6(layout).unwrap_err();
        assert!(error.to_string().contains("eth0 via fe80::1"), "{error}");
        assert_eq!(values(), are("0", "0"));
        assert!(has_route(), "the route was not restored");
    });
}

#[test]
fn a_cluster_without_ipv6_leaves_the_settings_of_ipv6() {
    on_machine(|layout| {
        sysctl::set(layout, false).unwrap();
        assert_eq!(values(), are("0", "1"));
        assert!(has_route());
        assert!(!sysctl::missing_settings(false).iter().any(|name| name.contains("ipv6")));
    });
}
