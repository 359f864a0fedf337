//! If another program removes what a worker made on its machine, the worker makes it again.

use std::process::Command;

use serde_json::Value;

use crate::{wait, world::World};

/// The worker's address in the VPN.
const OWN: &str = "100.80.0.17";

pub(crate) async fn all(world: &World) {
    let machine = &world.machine;
    // The NAT is a neighbour in the worker's own network, and can send any packet there.
    assert!(
        Command::new("ip").args(["-n", "nat", "route", "add", OWN, "via", "192.168.0.2"]).status().unwrap().success()
    );
    wait::until("a neighbour does not reach the kubelet", async || !is_reached()).await;
    // Without the table it does. The daemon may create the table again before this is observed, so that the test deletes it repeatedly.
    wait::until("a neighbour reaches the kubelet where there is no table", async || {
        // Deletes the worker's own table only. The command fails if the daemon is just creating the table.
        machine.run("nft", &["delete", "table", "ip", "keelway-node"]);
        is_reached()
    })
    .await;
    wait::until("a neighbour does not reach the kubelet", async || !is_reached()).await;

    machine.output_of("ip", &["addr", "del", &format!("{OWN}/32"), "dev", "lo"]);
    machine.output_of("ip", &["link", "del", "keelway0"]);
    machine.output_of("sh", &["-c", "echo 0 > /proc/sys/net/ipv4/ip_forward"]);
    wait::until("address, tunnel and setting are there again", async || {
        let addresses = machine.output_of("ip", &["-o", "addr", "show", "dev", "lo"]);
        let forwards = machine.output_of("cat", &["/proc/sys/net/ipv4/ip_forward"]);
        addresses.contains(OWN)
            && machine.run("ip", &["link", "show", "keelway0"]).status.success()
            && forwards.trim() == "1"
    })
    .await;
    wait::until("the gateway answers in the new tunnel", async || {
        let status: Value = serde_json::from_str(&machine.node_well(&["status", "-o", "json"], "").await).unwrap();
        status["tunnels"][0]["answers"] == true && status["tunnels"][0]["lastHandshake"].is_u64()
    })
    .await;
}

/// Returns whether the kubelet answers the neighbour.
fn is_reached() -> bool {
    let connect = format!("exec 3<>/dev/tcp/{OWN}/10250");
    let asked = ["netns", "exec", "nat", "timeout", "2", "bash", "-c", &connect];
    Command::new("ip").args(asked).output().unwrap().status.success()
}
