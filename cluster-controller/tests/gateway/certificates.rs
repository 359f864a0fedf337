//! Certificates and authorities that are replaced while they are in use.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::client::{connect, connect_soon, ping};
use crate::daemon::{EGRESS_NAME, Egress, GATEWAY_NAME, Gateway, Keys};
use crate::lan::Lan;
use crate::on_host;
use crate::support::wait_until;
use crate::worker::{Worker, object};

const GATEWAY: u8 = 1;
const API_SERVER: u8 = 10;

#[test]
fn an_authority_is_replaced_without_a_failed_connect() {
    on_host("certificates::an_authority_is_replaced_without_a_failed_connect", || {
        let (lan, keys) = (Lan::new(), Keys::new());
        let (old, new) = (keys.authority(), keys.authority());
        let mut gateway = Gateway::new(&lan, GATEWAY, &keys, &old);
        gateway.keep(&[object(7)]);
        gateway.start();
        let worker = Worker::new(&lan, 7, &[(GATEWAY, gateway.key())], 1);
        worker.echo(10250);
        let mut egress = Egress::new(&lan, API_SERVER, &keys, &old, &[GATEWAY]);
        egress.start();
        let socket = egress.cluster();
        let mut kept = connect_soon(&socket, "100.80.0.7:10250");
        let (done, count) = (AtomicBool::new(false), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    while !done.load(Ordering::Acquire) {
                        ping(&mut connect(&socket, "100.80.0.7:10250").tunnel());
                        count.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            let _stop = Stop(&done);
            let replace = |signed_by, trusts: &[_]| {
                for (daemon, name) in [(&gateway.daemon, GATEWAY_NAME), (&egress.daemon, EGRESS_NAME)] {
                    keys.write(&daemon.folder, signed_by, name, trusts);
                }
                let before = count.load(Ordering::Relaxed);
                wait_until("connections under the new files", crate::PATIENCE, || {
                    count.load(Ordering::Relaxed) > before + 20
                });
            };
            replace(&old, &[&old, &new]);
            replace(&new, &[&old, &new]);
            replace(&new, &[&new]);
        });
        println!("{} tunnels opened while the authority was replaced", count.load(Ordering::Relaxed));
        ping(&mut kept);

        // A certificate of the old authority is not accepted any more.
        keys.write(&egress.daemon.folder, &old, EGRESS_NAME, &[&new]);
        assert_eq!(connect(&socket, "100.80.0.7:10250").status, 502);
        keys.write(&egress.daemon.folder, &new, EGRESS_NAME, &[&new]);
        ping(&mut connect(&socket, "100.80.0.7:10250").tunnel());
    });
}

/// Stops the load when it is dropped, also if the test fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}
