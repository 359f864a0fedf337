//! The other gateways of a cluster: their list changes while a gateway runs, and they forward packets to each other.

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
fn changes_of_other_gateways_need_no_restart() {
    on_host("others::changes_of_other_gateways_need_no_restart", || {
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
        assert!(!reaches(&worker, OF_OTHER), "it is no peer yet");
        gateway.daemon.write("gateways.json", &json!([entry(OTHER, 51820)]));
        wait_until("a gateway that came is reached through the first one", PATIENCE, || reaches(&worker, OF_OTHER));
        ping(&mut tunnel);

        // A list that cannot be used has no effect.
        gateway.daemon.write("gateways.json", &json!([{"name": "gateway-2"}]));
        let log = |gateway: &mut Gateway| gateway.daemon.process().log();
        wait_until("the fault is logged", PATIENCE, || log(&mut gateway).contains("keeping the previous list"));
        assert!(reaches(&worker, OF_OTHER));
        gateway.daemon.write("gateways.json", &json!([]));
        wait_until("a gateway that went is a peer no more", PATIENCE, || !reaches(&worker, OF_OTHER));
        ping(&mut tunnel);
    });
}

#[test]
fn workers_that_reach_different_gateways_reach_each_other() {
    on_host("others::workers_that_reach_different_gateways_reach_each_other", || {
        let (lan, keys) = (Lan::new(), Keys::new());
        let authority = keys.authority();
        let mut gateways = [GATEWAY, OTHER].map(|number| Gateway::new(&lan, number, &keys, &authority));
        for gateway in &mut gateways {
            gateway.config["gatewaysFile"] = json!(gateway.daemon.file("gateways.json"));
            gateway.daemon.write("gateways.json", &json!([]));
            gateway.keep(&[7, 8].map(object));
            gateway.start();
        }
        let workers = [(7, GATEWAY), (8, OTHER)].map(|(worker, gateway)| {
            let worker = Worker::new(&lan, worker, &[(gateway, public_key(gateway))], 1);
            worker.echo(10250);
            worker
        });
        let [first, second] = &workers;
        second.machine.ip(&["route", "add", "10.244.7.0/24", "dev", "kw0", "src", "100.80.0.8"]);
        assert!(!reaches(first, "100.80.0.8"), "gateways that do not know each other forward nothing");
        for gateway in &gateways {
            gateway.daemon.write("gateways.json", &json!([entry(GATEWAY + OTHER - gateway.number, 31000)]));
        }
        wait_until("one worker reaches the other one", PATIENCE, || reaches(first, "100.80.0.8"));
        wait_until("and back, also a pod", PATIENCE, || reaches(second, "100.80.0.7") && reaches(second, "10.244.7.1"));
        for gateway in &gateways {
            let metrics = gateway.daemon.metrics();
            assert!(metrics.contains("keelway_gateway_siblings 1\n"), "{metrics}");
            for name in ["sibling_sent_packets_total", "sibling_received_packets_total"] {
                let name = format!("keelway_gateway_{name} ");
                let value = metrics.lines().find_map(|line| line.strip_prefix(&name));
                assert!(value.unwrap().parse::<u64>().unwrap() > 5, "{metrics}");
            }
        }
        gateways[1].daemon.process().kill();
        wait_until("the other gateway is lost", PATIENCE, || {
            gateways[0].daemon.metrics().contains("keelway_gateway_siblings 0\n")
        });
    });
}

fn entry(number: u8, port: u16) -> Value {
    json!({
        "name": format!("gateway-{number}"),
        "publicKey": public_key(number).to_string(),
        "endpoint": format!("{}:{port}", address(number)),
        "addresses": [format!("100.80.255.{number}")],
    })
}

/// Returns whether an address responds to a worker that has a tunnel to one gateway only.
fn reaches(worker: &Worker, address: &str) -> bool {
    let to: SocketAddr = format!("{address}:10250").parse().unwrap();
    worker.machine.within(move || {
        let Ok(mut stream) = TcpStream::connect_timeout(&to, 3 * SECOND) else { return false };
        stream.set_read_timeout(Some(3 * SECOND)).unwrap();
        stream.write_all(b"question").is_ok() && stream.read_exact(&mut [0; 8]).is_ok()
    })
}
