//! What a worker has made on its machine and somebody takes away is there again.

use std::process::Command;

use serde_json::Value;

use crate::{wait, world::World};

/// The worker's address in the VPN.
const OWN: &str = "100.80.0.17";

pub(crate) async fn all(world: &World) {
    let machine = &world.machine;
    // The NAT is a neighbour in the worker's own network, and sends what it likes there.
    assert!(
        Command::new("ip").args(["-n", "nat", "route", "add", OWN, "via", "192.168.0.2"]).status().unwrap().success()
    );
    wait::until("a neighbour does not reach the kubelet", async || !is_reached()).await;
    // Without the table it does; as often as the daemon makes it anew before that is seen.
    wait::until("a neighbour reaches the kubelet where there is no table", async || {
        // What others have there stays: the worker's own table alone, which may be being made anew.
        machine.run("nft", &["delete", "table", "ip", "keelway-node"]);
        is_reached()
    })
    .await;
    wait::until("a neighbour does not reach the kubelet", async || !is_reached()).await;

    machine.said("ip", &["addr", "del", &format!("{OWN}/32"), "dev", "lo"]);
    machine.said("ip", &["link", "del", "keelway0"]);
    machine.said("sh", &["-c", "echo 0 > /proc/sys/net/ipv4/ip_forward"]);
    wait::until("address, tunnel and setting are there again", async || {
        let addresses = machine.said("ip", &["-o", "addr", "show", "dev", "lo"]);
        let forwards = machine.said("cat", &["/proc/sys/net/ipv4/ip_forward"]);
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

/// Whether the neighbour's packets for the kubelet are answered.
fn is_reached() -> bool {
    let connect = format!("exec 3<>/dev/tcp/{OWN}/10250");
    let asked = ["netns", "exec", "nat", "timeout", "2", "bash", "-c", &connect];
    Command::new("ip").args(asked).output().unwrap().status.success()
}
