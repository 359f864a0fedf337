//! Clients that request data and do not read it, as `kubectl logs -f` does in a terminal that is stopped.

use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::thread;
use std::time::Instant;

use keelway_api::role::Role;

use crate::client::{connect_soon, ping};
use crate::daemon::{Egress, Gateway, Keys};
use crate::lan::Lan;
use crate::support::{Namespace, wait_until};
use crate::worker::{Worker, object};
use crate::{PATIENCE, SECOND, on_host};

const GATEWAY: u8 = 1;
const API_SERVER: u8 = 10;
const CLIENTS: usize = 500;
/// More than all buffers between a client and the worker have room for.
const LOG: usize = 16_000_000;

#[test]
fn a_gateway_with_500_stalled_clients_stays_below_its_memory_limit() {
    on_host("stalled::a_gateway_with_500_stalled_clients_stays_below_its_memory_limit", || {
        let (lan, keys) = (Lan::new(), Keys::new());
        let authority = keys.authority();
        let mut gateway = Gateway::new(&lan, GATEWAY, &keys, &authority);
        gateway.keep(&[object(7)]);
        gateway.start();
        let worker = Worker::new(&lan, 7, &[(GATEWAY, gateway.key())], 1);
        worker.echo(10250);
        serve_logs(&worker, 8080);
        let mut egress = Egress::new(&lan, API_SERVER, &keys, &authority, &[GATEWAY]);
        egress.start();
        ping(&mut connect_soon(&egress.cluster(), "100.80.0.7:10250"));
        let before = memory(&mut gateway);
        let clients: Vec<UnixStream> =
            (0..CLIENTS).map(|_| connect_soon(&egress.cluster(), "100.80.0.7:8080")).collect();

        let (mut last, mut since) = (before, Instant::now());
        wait_until("the buffers are full", PATIENCE * 2, || {
            let now = memory(&mut gateway);
            if now > last {
                (last, since) = (now, Instant::now());
            }
            since.elapsed() > SECOND * 2
        });
        let limit = usize::try_from(Role::Gateway.row().resources.memory_limit_bytes).unwrap();
        let sockets = of_sockets(&gateway.daemon.machine) / 1024;
        let (before_kib, last_kib) = (before / 1024, last / 1024);
        println!(
            "{before_kib:>7} KiB before, {last_kib:>7} KiB with {CLIENTS} stalled clients, {sockets} of them of sockets"
        );
        assert!(last > before + CLIENTS * 32 * 1024, "the clients do not stall");
        assert!(last < limit, "{last} of {limit} bytes");
        // Others are served meanwhile.
        ping(&mut connect_soon(&egress.cluster(), "100.80.0.7:10250"));
        drop(clients);
    });
}

/// Sends a long log over each connection to a port of the worker.
fn serve_logs(worker: &Worker, port: u16) {
    let listener = worker.machine.within(move || TcpListener::bind(SocketAddr::from(([0, 0, 0, 0], port))).unwrap());
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            thread::spawn(move || {
                let line = [b'x'; 16_000];
                let _ = (0..LOG / line.len()).try_for_each(|_| stream.write_all(&line));
            });
        }
    });
}

/// Returns what counts as memory of the gateway: its own, and that of its sockets in the kernel.
fn memory(gateway: &mut Gateway) -> usize {
    let own = usize::try_from(gateway.daemon.process().memory()).unwrap();
    own + of_sockets(&gateway.daemon.machine)
}

/// Sums the bytes that are allocated for TCP sockets, from `skmem:(rALLOCATED,rbLIMIT,tALLOCATED,..,wQUEUED,..)`.
fn of_sockets(machine: &Namespace) -> usize {
    let listed = machine.within(|| Command::new("ss").args(["-Htmn"]).output().unwrap().stdout);
    let listed = String::from_utf8(listed).unwrap();
    let fields = listed.split("skmem:(").skip(1).flat_map(|rest| rest.split(')').next().unwrap().split(','));
    let allocated = fields.filter_map(|field| {
        let (name, number) = field.split_at(field.find(|letter: char| letter.is_ascii_digit())?);
        ["r", "w"].contains(&name).then(|| number.parse::<usize>().unwrap())
    });
    allocated.sum()
}
