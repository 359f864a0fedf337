//! A cluster with a pod network of its own: an overlay between the addresses of workers in the VPN.

use std::net::{Ipv4Addr, UdpSocket};

use keelway_e2e::{
    deadline,
    worker_fleet::{TestCluster, TestWorker, WorkerFleet, serves},
};
use rustix::{
    io::Errno,
    net::sockopt::{Ipv4PathMtuDiscovery, set_ip_mtu_discover},
};

use crate::{controller, pods::GET};

/// The largest packet in a tunnel (`docs/workers.md`).
const VPN: usize = 1280;
/// VXLAN uses 50 bytes of each packet: Ethernet 14, its own header 8, UDP 8, IPv4 20 (RFC 7348, section 5).
const OVERLAY: usize = VPN - 50;
/// The size of the headers of IPv4 and UDP.
const HEADERS: usize = 28;

/// A worker in the overlay.
struct Place<'a> {
    name: &'a str,
    worker: TestWorker<'a>,
    /// The address in the VPN.
    outer: Ipv4Addr,
    /// The third byte of its own address and of its pods' addresses in the overlay.
    part: usize,
}

impl Place<'_> {
    fn inner(&self) -> Ipv4Addr {
        format!("10.244.{}.1", self.part).parse().unwrap()
    }
}

/// The cluster must have two workers.
pub(crate) fn on_the_vpn(worker_fleet: &WorkerFleet, cluster: &TestCluster) {
    let places: Vec<Place<'_>> =
        cluster.workers.iter().zip([201, 202]).map(|(name, part)| place(worker_fleet, cluster, name, part)).collect();
    // A pod whose network was removed cannot be stopped cleanly, so the pods are deleted first.
    let _ = cluster.kubectl.run(&["delete", "pods", "--all"]).succeeded();
    let controllers = controller::containers(worker_fleet, cluster);
    worker_fleet.change(cluster, |spec| spec.addons.cni.enabled = false);
    assert_eq!(controller::containers(worker_fleet, cluster), controllers, "a cluster-controller was restarted");
    for place in &places {
        let none = || place.worker.shell("test ! -e /etc/cni/net.d/10-keelway.conflist").code() == 0;
        deadline::until(&format!("{} has no network of pods", place.name), deadline::KUBERNETES, none);
        cluster.kubectl.wait("condition=Ready=false", &[&format!("node/{}", place.name)]);
    }
    for (place, other) in [(&places[0], &places[1]), (&places[1], &places[0])] {
        bring_up(place, other);
    }
    cluster.are_ready();
    for (place, other) in [(&places[0], &places[1]), (&places[1], &places[0])] {
        carries(place, (place.outer, other.outer), other, VPN);
        carries(place, (place.inner(), other.inner()), other, OVERLAY);
    }
    pods_meet(cluster, &places);
}

fn place<'a>(worker_fleet: &'a WorkerFleet, cluster: &TestCluster, name: &'a str, part: usize) -> Place<'a> {
    let outer = cluster.value(&format!("wireguardpeer/{name}"), "{.status.addresses[0]}").parse().unwrap();
    Place { name, worker: worker_fleet.worker(name), outer, part }
}

/// Creates a bridge for pods and a VXLAN tunnel to the other worker, without fragmentation.
fn bring_up(place: &Place<'_>, other: &Place<'_>) {
    let (own, remote, inner, part) = (place.outer, other.outer, place.inner(), place.part);
    let _ = place
        .worker
        .shell(&format!(
            "
ip link add overlay type bridge
ip link add overlay-vxlan type vxlan id 7 local {own} remote {remote} dstport 4789 df set
ip link set overlay-vxlan mtu {OVERLAY} master overlay up
ip link set overlay mtu {OVERLAY} up
ip address add {inner}/16 dev overlay
mkdir -p /etc/cni/net.d
cat > /etc/cni/net.d/10-overlay.conflist <<END
{{ \"cniVersion\": \"1.0.0\", \"name\": \"overlay\", \"plugins\": [ {{
  \"type\": \"bridge\", \"bridge\": \"overlay\", \"isDefaultGateway\": true, \"hairpinMode\": true, \"mtu\": {OVERLAY},
  \"ipam\": {{ \"type\": \"host-local\", \"ranges\": [[{{
    \"subnet\": \"10.244.0.0/16\", \"rangeStart\": \"10.244.{part}.2\", \"rangeEnd\": \"10.244.{part}.99\", \"gateway\": \"{inner}\"
  }}]] }}
}} ] }}
END
"
        ))
        .succeeded();
}

/// A packet of exactly this size arrives, and the kernel refuses to send a larger one.
fn carries(place: &Place<'_>, (from, to): (Ipv4Addr, Ipv4Addr), other: &Place<'_>, size: usize) {
    let receiver = other.worker.within(|| UdpSocket::bind((to, 0)).unwrap());
    receiver.set_read_timeout(Some(deadline::ANSWER)).unwrap();
    let sender = place.worker.within(|| UdpSocket::bind((from, 0)).unwrap());
    set_ip_mtu_discover(&sender, Ipv4PathMtuDiscovery::DO).unwrap();
    sender.connect(receiver.local_addr().unwrap()).unwrap();
    let payload = vec![b'x'; size - HEADERS];
    let mut buffer = vec![0; 2 * VPN];
    // The first packets can be lost until the neighbours are resolved.
    deadline::until(&format!("{size} bytes from {from} to {to}"), deadline::KUBERNETES, || {
        sender.send(&payload).is_ok() && receiver.recv(&mut buffer.clone()).is_ok_and(|length| length == payload.len())
    });
    buffer.truncate(payload.len() + 1);
    let larger = sender.send(&buffer).unwrap_err();
    assert_eq!(larger.raw_os_error(), Some(Errno::MSGSIZE.raw_os_error()), "{larger}");
}

/// Pods reach each other by address and by the address of a Service.
fn pods_meet(cluster: &TestCluster, places: &[Place<'_>]) {
    let service = "
apiVersion: v1
kind: Service
metadata: {name: over}
spec: {selector: {app: over}, ports: [{port: 80, targetPort: 8080}]}
";
    let pod = |place: &Place<'_>| serves(&format!("over-{}", place.name), "over", place.name);
    cluster.kubectl.apply(service);
    cluster.start("app=over", &places.iter().map(pod).collect::<Vec<_>>());
    let service = cluster.value("service/over", "{.spec.clusterIP}");
    for from in places {
        for to in places {
            let address = cluster.value(&format!("pod/over-{}", to.name), "{.status.podIP}");
            assert!(address.starts_with(&format!("10.244.{}.", to.part)), "{address}");
            let finished =
                cluster.shell(&format!("over-{}", from.name), &format!("{GET} get {address} 8080 /hostname"));
            assert_eq!(
                finished.text(),
                format!("over-{}", to.name),
                "over-{} asks {address}: {}",
                from.name,
                finished.stderr
            );
        }
        deadline::until(&format!("over-{} is answered by all of {service}", from.name), deadline::KUBERNETES, || {
            let asks = format!("{GET} for i in 1 2 3 4 5 6 7 8 9 10; do get {service} 80 /hostname; echo; done");
            let finished = cluster.shell(&format!("over-{}", from.name), &asks).succeeded();
            places.iter().all(|place| finished.text().lines().any(|line| line == format!("over-{}", place.name)))
        });
    }
}
