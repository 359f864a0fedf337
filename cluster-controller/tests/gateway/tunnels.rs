//! Data through a tunnel.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use rustix::process::Signal;
use sha2::{Digest, Sha256};

use crate::client::{connect_soon, ping};
use crate::daemon::{Egress, Gateway, Keys};
use crate::lan::Lan;
use crate::support::{Noise, wait_until};
use crate::worker::{Worker, capabilities, object};
use crate::{PATIENCE, on_host};

const GATEWAY: u8 = 1;
const API_SERVER: u8 = 10;
const MEGABYTES: usize = 20;

#[test]
fn an_api_server_reaches_node_and_pod_through_programs_without_privilege() {
    on_host("tunnels::an_api_server_reaches_node_and_pod_through_programs_without_privilege", || {
        let (lan, keys) = (Lan::new(), Keys::new());
        let authority = keys.authority();
        let mut gateway = Gateway::new(&lan, GATEWAY, &keys, &authority);
        gateway.keep(&[object(7)]);
        gateway.start();
        let worker = Worker::new(&lan, 7, &[(GATEWAY, gateway.key())], 1);
        worker.echo(10250);
        let mut egress = Egress::new(&lan, API_SERVER, &keys, &authority, &[GATEWAY]);
        egress.start();
        wait_until("the egress is ready", PATIENCE, || egress.daemon.health("/readyz").0 == 200);
        let mut to_node = connect_soon(&egress.cluster(), "100.80.0.7:10250");
        ping(&mut to_node);
        carry(connect_soon(&egress.cluster(), "10.244.7.1:10250"), MEGABYTES * 1_000_000);
        for daemon in [&mut gateway.daemon, &mut egress.daemon] {
            assert_eq!(capabilities(daemon.process().id()), "0000000000000000");
            assert_eq!(daemon.health("/healthz").0, 200);
        }
        let metrics = gateway.daemon.metrics();
        for line in [
            "keelway_gateway_peers 1",
            "keelway_gateway_tunnels 1",
            "keelway_gateway_connects_total{outcome=\"opened\"}",
        ] {
            assert!(metrics.contains(line), "{line}: {metrics}");
        }
        let received = metrics
            .lines()
            .find_map(|line| line.strip_prefix("keelway_gateway_peer_received_bytes_total{node=\"w7\"} "));
        assert!(received.unwrap().parse::<usize>().unwrap() > MEGABYTES * 1_000_000, "{metrics}");
        let metrics = egress.daemon.metrics();
        for line in
            ["keelway_egress_tunnels{selection=\"cluster\"} 1", "keelway_egress_gateway_up{gateway=\"gateway-1\"} 1"]
        {
            assert!(metrics.contains(line), "{line}: {metrics}");
        }
        // A tunnel in use goes on while the gateway drains. An idle one is ended.
        let pings = AtomicUsize::new(0);
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                let started = Instant::now();
                while !is_over.load(Ordering::Relaxed) && started.elapsed() < PATIENCE * 3 {
                    ping(&mut to_node);
                    pings.fetch_add(1, Ordering::Relaxed);
                }
            });
            gateway.daemon.process().signal(Signal::TERM);
            wait_until("it is draining", PATIENCE, || gateway.daemon.process().log().contains("draining"));
            let before = pings.load(Ordering::Relaxed);
            wait_until("the tunnel goes on", PATIENCE, || pings.load(Ordering::Relaxed) > before + 1);
            is_over.store(true, Ordering::Relaxed);
        });
        for daemon in [&mut egress.daemon, &mut gateway.daemon] {
            daemon.process().stop();
            let log = daemon.process().log();
            assert!(log.contains("\"message\":\"down\""), "{log}");
            assert!(!log.contains("PRIVATE KEY") && !log.contains("\"level\":\"ERROR\""), "{log}");
        }
    });
}

/// Sends noise to an echo server and reads it back. It closes its own side first.
fn carry(stream: std::os::unix::net::UnixStream, bytes: usize) {
    let mut writer = stream.try_clone().unwrap();
    let writing = thread::spawn(move || {
        let (mut noise, mut digest) = (Noise::new(3), Sha256::new());
        let mut chunk = vec![0; 64 * 1024];
        for _ in 0..=bytes / chunk.len() {
            noise.fill(&mut chunk);
            digest.update(&chunk);
            writer.write_all(&chunk).unwrap();
        }
        writer.shutdown(Shutdown::Write).unwrap();
        digest.finalize()
    });
    let (mut stream, mut digest) = (stream, Sha256::new());
    let mut chunk = vec![0; 64 * 1024];
    loop {
        match stream.read(&mut chunk).unwrap() {
            0 => break,
            length => digest.update(&chunk[..length]),
        }
    }
    assert_eq!(digest.finalize(), writing.join().unwrap());
}
