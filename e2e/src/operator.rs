//! The network of an operator, which is connected to the networks of a fleet and is not on any of its machines.

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

/// The last octet of the operator's addresses. No machine uses it.
const ADDRESS: u8 = 250;
/// The prefix length of the networks of a local fleet.
const PREFIX: u8 = 24;

/// Creates a network namespace with an interface in each network of a fleet, and returns its path. It disappears with the test's host.
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

/// Connects the namespace to one network. `known` is an address of that network.
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
