//! Gateways and workers that are lost.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Instant;

use rustix::process::Signal;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use crate::client::{connect, connect_soon, cut_off, ping};
use crate::daemon::{Egress, Gateway, Keys};
use crate::lan::{Lan, address};
use crate::worker::{Worker, object};
use crate::{PATIENCE, SECOND, on_host};

const GATEWAY: u8 = 1;
const SECOND_GATEWAY: u8 = 2;
const API_SERVER: u8 = 10;

#[test]
fn a_restarted_gateway_reaches_workers_that_send_nothing() {
    on_host("losses::a_restarted_gateway_reaches_workers_that_send_nothing", || {
        let (lan, keys) = (Lan::new(), Keys::new());
        let authority = keys.authority();
        let mut gateway = Gateway::new(&lan, GATEWAY, &keys, &authority);
        gateway.keep(&[7, 8].map(object));
        gateway.start();
        let workers = [7, 8].map(|number| Worker::new(&lan, number, &[(GATEWAY, gateway.key())], 0));
        let mut egress = Egress::new(&lan, API_SERVER, &keys, &authority, &[GATEWAY]);
        egress.start();
        for worker in &workers {
            worker.echo(10250);
            // The workers send nothing later. From here on, the gateway knows their endpoints.
            worker.speak(GATEWAY);
            ping(&mut connect_soon(&egress.cluster(), &format!("100.80.0.{}:10250", worker.number)));
        }
        let file = gateway.daemon.file("peers.json");
        gateway.keeps_places(&[7, 8]);
        let text = std::fs::read_to_string(&file).unwrap();
        assert!(
            !text.contains(&crate::support::private_text(7)) && !text.contains(&crate::support::private_text(GATEWAY))
        );
        for worker in &workers {
            let mut tunnel = connect_soon(&egress.cluster(), &format!("100.80.0.{}:10250", worker.number));
            let killed = Instant::now();
            gateway.daemon.process().kill();
            let reset = cut_off(&mut tunnel, PATIENCE);
            gateway.daemon.spawn();
            ping(&mut connect_soon(&egress.cluster(), &format!("100.80.0.{}:10250", worker.number)));
            println!("gateway killed: tunnel reset after {reset:?}, a new one through after {:?}", killed.elapsed());
        }
    });
}

#[test]
fn another_gateway_is_used_if_one_does_not_respond() {
    on_host("losses::another_gateway_is_used_if_one_does_not_respond", || {
        let (lan, keys) = (Lan::new(), Keys::new());
        let authority = keys.authority();
        let silent = Gateway::new(&lan, GATEWAY, &keys, &authority);
        take_handshakes_and_say_nothing(&silent);
        let mut egress = Egress::new(&lan, API_SERVER, &keys, &authority, &[GATEWAY]);
        egress.start();
        let answer = connect(&egress.cluster(), "100.80.0.7:10250");
        assert_eq!(answer.status, 504, "{}", answer.why);
        println!("a gateway that says nothing: answered after {:?}", answer.took);

        // The list of gateways changes while the egress runs.
        let mut second = Gateway::new(&lan, SECOND_GATEWAY, &keys, &authority);
        second.keep(&[object(7)]);
        second.start();
        let worker = Worker::new(&lan, 7, &[(SECOND_GATEWAY, second.key())], 1);
        worker.echo(10250);
        let both = [GATEWAY, SECOND_GATEWAY].map(crate::daemon::gateway_entry);
        egress.config["cluster"]["gateways"] = both.into_iter().collect();
        egress.daemon.write("config.json", &egress.config);
        ping(&mut connect_soon(&egress.cluster(), "100.80.0.7:10250"));
        for _ in 0..20 {
            let answer = connect(&egress.cluster(), "100.80.0.7:10250");
            ping(&mut answer.tunnel());
        }

        // If a gateway hangs, its tunnels are reset, although the kernel of its machine still acknowledges packets.
        let mut tunnel = connect_soon(&egress.cluster(), "100.80.0.7:10250");
        ping(&mut tunnel);
        second.daemon.process().signal(Signal::STOP);
        let took = cut_off(&mut tunnel, PATIENCE);
        println!("a gateway that hangs: its tunnels were reset after {took:?}");
        let answer = connect(&egress.cluster(), "100.80.0.7:10250");
        assert_eq!(answer.status, 504, "{}", answer.why);
        assert_eq!(egress.daemon.health("/readyz").0, 503);
        second.daemon.process().signal(Signal::CONT);
        ping(&mut connect_soon(&egress.cluster(), "100.80.0.7:10250"));
    });
}

/// Serves in place of a gateway: it completes TLS handshakes and then sends nothing.
fn take_handshakes_and_say_nothing(gateway: &Gateway) {
    let certificate = CertificateDer::from_pem_file(gateway.daemon.file("tls.crt")).unwrap();
    let key = PrivateKeyDer::from_pem_file(gateway.daemon.file("tls.key")).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = Arc::new(builder.with_no_client_auth().with_single_cert(vec![certificate], key).unwrap());
    let listener = gateway.daemon.machine.within(|| TcpListener::bind((address(GATEWAY), 20010)).unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let config = Arc::clone(&config);
            std::thread::spawn(move || read_for_ever(stream.unwrap(), config));
        }
    });
}

fn read_for_ever(stream: TcpStream, config: Arc<ServerConfig>) {
    let mut stream = StreamOwned::new(ServerConnection::new(config).unwrap(), stream);
    while let Ok(1..) = stream.read(&mut [0; 512]) {}
}

#[test]
fn tunnels_to_a_worker_that_is_dead_are_reset() {
    on_host("losses::tunnels_to_a_worker_that_is_dead_are_reset", || {
        let (lan, keys) = (Lan::new(), Keys::new());
        let authority = keys.authority();
        let mut gateway = Gateway::new(&lan, GATEWAY, &keys, &authority);
        gateway.keep(&[7, 8].map(object));
        gateway.start();
        let [dying, other] = [7, 8].map(|number| Worker::new(&lan, number, &[(GATEWAY, gateway.key())], 0));
        let mut egress = Egress::new(&lan, API_SERVER, &keys, &authority, &[GATEWAY]);
        egress.start();
        for worker in [&dying, &other] {
            worker.echo(10250);
            worker.speak(GATEWAY);
        }
        let tunnel = |number| connect_soon(&egress.cluster(), &format!("100.80.0.{number}:10250"));
        // No data is sent through the idle tunnels.
        let (mut idle, mut busy, mut living) = (tunnel(7), tunnel(7), tunnel(8));
        ping(&mut busy);
        dying.unplug();
        let unplugged = Instant::now();
        let writing = std::thread::spawn(move || {
            // A client that keeps a connection pings as often as this.
            busy.set_read_timeout(Some(SECOND)).unwrap();
            while unplugged.elapsed() < PATIENCE {
                let sent = busy.write_all(b"question");
                match busy.read(&mut [0; 8]) {
                    Err(error) if sent.is_ok() && error.kind() == ErrorKind::WouldBlock => {}
                    _ => return unplugged.elapsed(),
                }
            }
            panic!("still open");
        });
        // The status depends on which gives up first: the gateway without a response, or the relay whose peer is gone.
        let status = connect(&egress.cluster(), "100.80.0.7:10250").status;
        assert!(matches!(status, 502 | 504), "{status}");
        cut_off(&mut idle, PATIENCE);
        let (idle, busy) = (unplugged.elapsed(), writing.join().unwrap());
        println!("dead worker: an idle tunnel was reset after {idle:?}, one in use after {busy:?}");
        ping(&mut living);
    });
}
