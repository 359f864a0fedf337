//! The list of a cluster's other gateways changes while a gateway runs.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use serde_json::{Value, json};

use crate::client::{connect_soon, ping};
use crate::daemon::{Egress, Gateway, Keys};
use crate::lan::{Lan, address};
use crate::support::{public_key, wait_until};
use crate::worker::{Worker, object};
use crate::{PATIENCE, SECOND, on_host};

const GATEWAY: u8 = 1;
const OTHER: u8 = 2;
const API_SERVER: u8 = 10;

/// The other gateway's own address in the VPN.
const OF_OTHER: &str = "100.80.255.2";

#[test]
fn other_gateways_are_taken_up_without_a_restart() {
    on_host("others::other_gateways_are_taken_up_without_a_restart", || {
        let (lan, keys) = (Lan::new(), Keys::new());
        let authority = keys.authority();
        let mut gateway = Gateway::new(&lan, GATEWAY, &keys, &authority);
        gateway.config["gatewaysFile"] = json!(gateway.daemon.file("gateways.json"));
        gateway.daemon.write("gateways.json", &json!([]));
        gateway.keep(&[object(7)]);
        gateway.start();
        let worker = Worker::new(&lan, 7, &[(GATEWAY, gateway.key())], 1);
        worker.echo(10250);
        let mut egress = Egress::new(&lan, API_SERVER, &keys, &authority, &[GATEWAY]);
        egress.start();
        let mut tunnel = connect_soon(&egress.cluster(), "100.80.0.7:10250");
        ping(&mut tunnel);

        // A device with the key and the address of the other gateway stands in for it.
        let other = Worker::new(&lan, OTHER, &[(GATEWAY, gateway.key())], 1);
        other.add_address(&format!("{OF_OTHER}/32"));
        other.echo(10250);
        assert!(!reaches(&worker), "it is no peer yet");
        gateway.daemon.write("gateways.json", &entry("gateway-2"));
        wait_until("a gateway that came is reached through the first one", PATIENCE, || reaches(&worker));
        ping(&mut tunnel);

        // A list that cannot be used has no effect.
        gateway.daemon.write("gateways.json", &json!([{"name": "gateway-2"}]));
        let log = |gateway: &mut Gateway| gateway.daemon.process().log();
        wait_until("the fault is logged", PATIENCE, || log(&mut gateway).contains("keeping the previous list"));
        assert!(reaches(&worker));
        gateway.daemon.write("gateways.json", &json!([]));
        wait_until("a gateway that went is a peer no more", PATIENCE, || !reaches(&worker));
        ping(&mut tunnel);
    });
}

fn entry(name: &str) -> Value {
    json!([{
        "name": name,
        "publicKey": public_key(OTHER).to_string(),
        "endpoint": format!("{}:51820", address(OTHER)),
        "addresses": [OF_OTHER],
    }])
}

/// Returns whether the other gateway's own address responds to a worker that has a tunnel to the first gateway only.
fn reaches(worker: &Worker) -> bool {
    worker.machine.within(|| {
        let to: SocketAddr = format!("{OF_OTHER}:10250").parse().unwrap();
        let Ok(mut stream) = TcpStream::connect_timeout(&to, 3 * SECOND) else { return false };
        stream.set_read_timeout(Some(3 * SECOND)).unwrap();
        stream.write_all(b"question").is_ok() && stream.read_exact(&mut [0; 8]).is_ok()
    })
}
