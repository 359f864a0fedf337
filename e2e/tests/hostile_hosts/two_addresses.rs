//! A public machine has two addresses, and one of them does not respond to a worker.

use std::{
    net::{IpAddr, Ipv4Addr},
    process::Command,
};

use keelway_api::Documents;
use keelway_e2e::{
    TestMachine, deadline,
    worker_fleet::{TestCluster, TestWorker, WorkerFleet},
};
use serde_json::Value;

/// The last octet of the second address. No machine of a fleet has it.
const SECOND: u8 = 239;

pub(crate) fn one_responds(worker_fleet: &WorkerFleet, cluster: &TestCluster, name: &str) {
    let worker = worker_fleet.worker(name);
    let machines = worker_fleet.fleet.machines();
    let public = machines.iter().find(|machine| machine.is_public()).unwrap();
    let first =
        *public.addresses().iter().find(|address| documented(worker_fleet, public.name()).contains(address)).unwrap();
    let second = second_of(first);
    change_address(public, "add", second);
    worker_fleet.edit(|documents| *addresses(documents, public.name()) = vec![second.to_string(), first.to_string()]);

    block(&worker, second);
    worker_fleet.join_one(cluster, name, &worker_fleet.token(cluster));
    uses(&worker, first, second);
    unblock(&worker);
    block(&worker, first);
    uses(&worker, second, first);
    unblock(&worker);

    worker_fleet.edit(|documents| *addresses(documents, public.name()) = vec![first.to_string()]);
    change_address(public, "del", second);
}

fn second_of(first: IpAddr) -> IpAddr {
    let IpAddr::V4(first) = first else { panic!("{first} is not an IPv4 address") };
    let [a, b, c, _] = first.octets();
    Ipv4Addr::from([a, b, c, SECOND]).into()
}

fn addresses<'a>(documents: &'a mut Documents, machine: &str) -> &'a mut Vec<String> {
    let mut all = documents.hypervisors.iter_mut();
    let (_, found) = all.find(|(name, _)| name.as_str() == machine).unwrap();
    &mut found.spec.addresses.public
}

fn documented(worker_fleet: &WorkerFleet, machine: &str) -> Vec<IpAddr> {
    addresses(&mut worker_fleet.documents(), machine).iter().map(|address| address.parse().unwrap()).collect()
}

fn change_address(machine: &TestMachine, change: &str, address: IpAddr) {
    let mut ip = Command::new("ip");
    let _ = machine.run(ip.args(["address", change, &format!("{address}/24"), "dev", "public"])).succeeded();
}

fn block(worker: &TestWorker<'_>, address: IpAddr) {
    let script = format!(
        "nft add table inet blocked
nft add chain inet blocked out '{{ type filter hook output priority 0; }}'
nft add rule inet blocked out ip daddr {address} drop"
    );
    let _ = worker.shell(&script).succeeded();
}

fn unblock(worker: &TestWorker<'_>) {
    let _ = worker.shell("nft delete table inet blocked").succeeded();
}

/// The worker has one tunnel to each gateway, all of them respond, and the one to the machine with two addresses uses this address.
fn uses(worker: &TestWorker<'_>, address: IpAddr, other: IpAddr) {
    let is_at = |endpoint: &Value, address: IpAddr| {
        endpoint.as_str().is_some_and(|endpoint| endpoint.starts_with(&format!("{address}:")))
    };
    let took = deadline::until("the tunnel uses the address that responds", deadline::KUBERNETES, || {
        let status = worker.status();
        let tunnels = status["tunnels"].as_array().unwrap();
        tunnels.len() == 2
            && tunnels.iter().all(|tunnel| tunnel["answers"] == true)
            && tunnels
                .iter()
                .any(|tunnel| is_at(&tunnel["endpoint"], address) && is_at(&tunnel["otherEndpoints"][0], other))
    });
    println!("{:>7} ms  until the tunnel uses {address}", took.as_millis());
}
