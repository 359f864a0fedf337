//! Where whoever drives a fleet is: in the networks of its machines, and on none of them.

use std::{
    fs::File,
    net::Ipv4Addr,
    path::{Path, PathBuf},
    process::Command,
};

use crate::{
    TestMachine,
    command::{FinishedCommand, run},
    deadline, host,
};

/// The last part of its addresses, which nobody else has.
const ADDRESS: u8 = 250;
/// Of a local fleet's networks.
const PREFIX: u8 = 24;

/// Makes a network namespace with a leg in each of a fleet's networks, and returns where it is. It is gone with the test's host.
pub(crate) fn place(fleet: &str, machines: &[TestMachine]) -> PathBuf {
    let namespace = host::directory("operator").join("net");
    File::create(&namespace).unwrap();
    let pin = format!("--net={}", namespace.display());
    succeeds("unshare", &[&pin, "ip", "link", "set", "lo", "up"]);
    let bridges = Path::new("/run/keelway-local").join(fleet).join("net");
    let addresses = machines.iter().map(|machine| &machine.document.spec.addresses);
    let (private, public): (Vec<_>, Vec<_>) =
        addresses.map(|addresses| (addresses.private.first(), addresses.public.first())).unzip();
    for (bridge, addresses) in [("private", private), ("public", public)] {
        let known = addresses.into_iter().flatten().next();
        attach(&namespace, &bridges, bridge, known.unwrap().parse().unwrap());
    }
    namespace
}

/// A leg to one network, in which this address is somebody's.
fn attach(namespace: &Path, bridges: &Path, bridge: &str, known: Ipv4Addr) {
    let [inside, outside] = [namespace, bridges].map(|network| format!("--net={}", network.display()));
    let port = format!("to-{bridge}");
    let [a, b, c, _] = known.octets();
    let address = format!("{}/{PREFIX}", Ipv4Addr::from([a, b, c, ADDRESS]));
    let place = namespace.display().to_string();
    succeeds(
        "nsenter",
        &[&outside, "ip", "link", "add", &port, "type", "veth", "peer", "name", bridge, "netns", &place],
    );
    succeeds("nsenter", &[&outside, "ip", "link", "set", &port, "master", bridge, "up"]);
    succeeds("nsenter", &[&inside, "ip", "address", "add", &address, "dev", bridge]);
    succeeds("nsenter", &[&inside, "ip", "link", "set", bridge, "up"]);
}

fn succeeds(program: &str, arguments: &[&str]) {
    let _: FinishedCommand = run(Command::new(program).args(arguments), &[], deadline::READ).succeeded();
}
