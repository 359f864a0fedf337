//! Ingresses that stop responding, and gateways that die.

use std::{
    cell::RefCell,
    collections::BTreeSet,
    io::{self, Read},
    net::{SocketAddr, TcpStream},
    process::Command,
    sync::Arc,
    time::Instant,
};

use keelway_tls::{component::client_from_pem, https};
use serde_json::Value;

use crate::{
    life::status,
    wait,
    world::{PUBLIC, World},
};

/// The address at which the worker serves the API.
const API: &str = "100.80.0.1:6443";
/// Enough connections that each ingress has some of them, whatever the kubelet does meanwhile.
const CONNECTIONS: usize = 8;

/// Packets to one ingress are dropped. The connections through it are reset, and the worker still reaches the API through the other one.
pub(crate) async fn silent_ingress(world: &World) {
    let [lost, _] = PUBLIC;
    let connections: Vec<TcpStream> = (0..CONNECTIONS).map(|_| connected(world)).collect();
    wait::until("both ingresses have connections", async || {
        let now = status(world).await;
        now["ingresses"].as_array().unwrap().iter().all(|ingress| ingress["connections"].as_u64() >= Some(2))
    })
    .await;
    let (address, port) = lost.rsplit_once(':').unwrap();
    nft("add table ip lost; add chain ip lost input { type filter hook input priority 0; }");
    nft(&format!("add rule ip lost input ip daddr {address} tcp dport {port} drop"));
    let began = Instant::now();
    let reset = RefCell::default();
    wait::until("a connection is reset", async || note_resets(&connections, &reset) > 0).await;
    println!("{:>7} ms  from silence to the first reset", began.elapsed().as_millis());
    wait::until("it has no connections any more", async || {
        let now = status(world).await;
        let ingress = of(&now["ingresses"], "address", lost);
        ingress["answers"] == false && ingress["connections"] == 0
    })
    .await;
    println!("{:>7} ms  from silence to the last reset", began.elapsed().as_millis());
    let reset = note_resets(&connections, &reset);
    assert!((1..CONNECTIONS).contains(&reset), "{reset} of {CONNECTIONS} connections were reset");
    for _ in 0..4 {
        ready(world).await;
    }
    nft("delete table ip lost");
    wait::until("it answers again", async || of(&status(world).await["ingresses"], "address", lost)["answers"] == true)
        .await;
}

/// The active gateway is killed. The other one carries all traffic, with the worker's own address as the source.
pub(crate) async fn dead_gateway(world: &World) {
    let before = status(world).await;
    let active = of(&before["tunnels"], "active", true)["endpoint"].clone();
    let at = PUBLIC.iter().position(|public| active == *public).unwrap();
    world.kill_gateway(at);
    let other = PUBLIC[1 - at];
    wait::until("the other gateway carries all", async || {
        let now = status(world).await;
        let tunnel = of(&now["tunnels"], "endpoint", other);
        tunnel["active"] == true && tunnel["answers"] == true
    })
    .await;
    let now = status(world).await;
    let interface = of(&now["tunnels"], "endpoint", other)["interface"].as_str().unwrap().to_owned();
    for destination in ["100.80.0.99", "10.244.200.1"] {
        let route = world.machine.output_of("ip", &["route", "get", destination]);
        assert!(route.contains(&format!("dev {interface} src 100.80.0.17")), "{route}");
    }
    assert_eq!(before["kubelet"]["pid"], now["kubelet"]["pid"]);
}

/// Returns the entry of a list whose `key` has this value.
fn of<'a>(list: &'a Value, key: &str, value: impl Into<Value>) -> &'a Value {
    let value = value.into();
    list.as_array().unwrap().iter().find(|entry| entry[key] == value).unwrap()
}

fn connected(world: &World) -> TcpStream {
    let stream = world.machine.within(|| TcpStream::connect(API).unwrap());
    stream.set_nonblocking(true).unwrap();
    stream
}

/// Returns how many connections have been reset so far. A connection reports its reset only once, so that `known` records it.
fn note_resets(connections: &[TcpStream], known: &RefCell<BTreeSet<usize>>) -> usize {
    let mut known = known.borrow_mut();
    for (at, mut connection) in connections.iter().enumerate() {
        // No data is sent on the connection, so that there is nothing to read.
        if matches!(connection.read(&mut [0]), Err(error) if error.kind() == io::ErrorKind::ConnectionReset) {
            known.insert(at);
        }
    }
    known.len()
}

/// Fails unless the API responds on the worker.
async fn ready(world: &World) {
    let address: SocketAddr = API.parse().unwrap();
    let config = Arc::new(client_from_pem(world.plane.authority().as_bytes(), None).unwrap());
    let stream = tokio::net::TcpStream::from_std(connected(world)).unwrap();
    assert!(https::get(config, "kubernetes", stream, address, "/readyz").await.unwrap().is_success());
}

/// Runs nft on the public machine.
fn nft(commands: &str) {
    assert!(Command::new("nft").arg(commands).status().unwrap().success(), "{commands}");
}
