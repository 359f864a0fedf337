//! The public and the private network: no route leads into the private one.

use crate::{
    host::on_own_host,
    owned_fleet::{OwnedFleet, named},
    reach::{Place, private, public, serve},
};

#[test]
fn two_fleets_can_exist_at_the_same_time() {
    on_own_host("networks::two_fleets_can_exist_at_the_same_time", async || {
        let (one, other) = (OwnedFleet::new("one"), OwnedFleet::new("other"));
        let (ones, others) = tokio::join!(one.create(1, 1), other.create(1, 1));
        ones.iter().chain(&others).for_each(serve);
        let host = Place::Host;
        for (fleet, stranger) in [(&ones, &others), (&others, &ones)] {
            let (public_1, private_1) = (named(fleet, "public-1"), named(fleet, "private-1"));
            assert!(host.reaches(public(public_1)));
            assert!(!host.reaches(private(public_1)));
            assert!(!host.reaches(private(private_1)));

            assert!(Place::Machine(public_1).reaches(private(private_1)));
            assert!(Place::Machine(private_1).reaches(private(public_1)));
            assert!(!Place::Machine(private_1).reaches(public(public_1)));

            for machine in stranger {
                assert!(!Place::Machine(public_1).reaches(private(machine)));
                assert!(!Place::Machine(private_1).reaches(private(machine)));
            }
            assert!(!Place::Machine(public_1).reaches(public(named(stranger, "public-1"))));
        }
    });
}

/// The private network is unreachable, whatever routes a client sets. At the end the test removes each guard, to show that it is the cause.
#[test]
fn no_route_leads_into_the_private_network() {
    on_own_host("networks::no_route_leads_into_the_private_network", async || {
        let owned = OwnedFleet::new("route");
        let machines = owned.create(1, 1).await;
        machines.iter().for_each(serve);
        let (public_1, private_1) = (named(&machines, "public-1"), named(&machines, "private-1"));
        let (host, gate) = (Place::Host, Place::Machine(public_1));
        for machine in &machines {
            host.shell(&format!("ip route add {}/32 via {}", private(machine), public(public_1)));
        }
        // The route back.
        Place::Machine(private_1).shell(&format!("ip route add 198.18.0.0/16 via {}", private(public_1)));
        assert!(!host.reaches(private(public_1)));
        assert!(!host.reaches(private(private_1)));

        gate.shell("ip rule delete preference 10");
        assert!(host.reaches(private(public_1)));
        assert!(!host.reaches(private(private_1)));

        gate.shell("echo 1 > /proc/sys/net/ipv4/ip_forward");
        assert!(host.reaches(private(private_1)));
    });
}

/// Machines do not forward packets, also if their host does.
#[test]
fn forwarding_is_not_inherited() {
    on_own_host("networks::forwarding_is_not_inherited", async || {
        let owned = OwnedFleet::new("fwd");
        Place::Host.shell("echo 1 > /proc/sys/net/ipv4/ip_forward");
        let machines = owned.create(1, 0).await;
        Place::Machine(&machines[0]).shell("test $(cat /proc/sys/net/ipv4/ip_forward) = 0");
    });
}

#[test]
fn a_range_in_use_is_left_alone() {
    on_own_host("networks::a_range_in_use_is_left_alone", async || {
        let owned = OwnedFleet::new("range");
        Place::Host.shell("ip route add unreachable 198.19.0.0/25; ip route add unreachable 198.18.1.7/32");
        let machines = owned.create(1, 0).await;
        assert_eq!(public(&machines[0]), "198.18.2.11");
        assert_eq!(private(&machines[0]), "198.19.2.11");
    });
}
