//! The packet thread.
//!
//! One thread handles both directions. The ciphers are the main cost. One flow cannot be spread over threads without reordering, and a
//! second thread would contend for the core's lock. `docs/performance.md` has measurements of this design.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use keelway_base::error_chain::ErrorChain;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::shared::DeviceInner;
use crate::clock_reading::ClockReading;
use crate::core::Core;
use crate::io::{ReceiveBuffers, Socket, SystemClock, Tun};
use crate::output::{CoreOutput, HEADROOM};

/// The number of reads from the inside before the outside gets its turn, and vice versa.
const TURN: usize = 16;
/// The number of bytes after which output is flushed. Small datagrams, such as those of a flood, share system calls. A buffer of a stream
/// is flushed while it is still in the processor's cache.
const FLUSH: usize = 16 * 1024;
/// The interval at which the thread reads the interface's settings.
const INSPECTION: Duration = Duration::from_secs(1);

/// This end of the tunnel.
pub(crate) trait TunnelInterior: Send {
    /// A file descriptor that is readable when there are packets. `None` if only a wake signals packets.
    fn handle(&self) -> Option<BorrowedFd<'_>>;

    /// Reads packets into the core. Returns `false` if there are no more.
    fn read(&mut self, shared: &DeviceInner, now: ClockReading, out: &mut CoreOutput) -> bool;

    /// Writes packets that peers sent.
    fn write(&mut self, packets: &mut Vec<Vec<u8>>);

    /// The latest time at which this end needs to be called again.
    fn deadline(&mut self, _now: ClockReading) -> Option<Duration> {
        None
    }

    /// The capacity that a packet buffer needs if this end coalesces packets, in bytes.
    fn packet_capacity(&self) -> usize {
        0
    }

    /// The MTU, if the machine may have changed it.
    fn refresh_mtu(&mut self) -> Option<usize> {
        None
    }
}

impl TunnelInterior for Tun {
    fn handle(&self) -> Option<BorrowedFd<'_>> {
        Some(std::os::fd::AsFd::as_fd(self))
    }

    fn read(&mut self, shared: &DeviceInner, now: ClockReading, out: &mut CoreOutput) -> bool {
        let mut core: Option<std::sync::MutexGuard<'_, Core>> = None;
        let read = Tun::read(self, |packet| {
            core.get_or_insert_with(|| shared.core()).handle_packet_from_tunnel(packet, now, out);
        });
        read.unwrap_or_else(|error| {
            tracing::error!(error = %ErrorChain(&error), "the TUN device no longer exists");
            shared.stop();
            false
        })
    }

    fn write(&mut self, packets: &mut Vec<Vec<u8>>) {
        Tun::write(self, packets);
    }

    fn packet_capacity(&self) -> usize {
        HEADROOM + usize::from(u16::MAX)
    }

    fn refresh_mtu(&mut self) -> Option<usize> {
        Tun::refresh_mtu(self).ok()
    }
}

pub(super) struct Pump<I> {
    shared: Arc<DeviceInner>,
    inside: I,
    received: ReceiveBuffers,
    out: CoreOutput,
    next_inspection: Duration,
}

impl<I: TunnelInterior> Pump<I> {
    pub(super) fn new(shared: Arc<DeviceInner>, inside: I) -> Self {
        Self {
            shared,
            received: ReceiveBuffers::new(),
            out: CoreOutput::with_packet_capacity(inside.packet_capacity()),
            inside,
            next_inspection: Duration::ZERO,
        }
    }

    /// Moves packets until the data path is stopped.
    pub(super) fn run(mut self) {
        let mut timeout = Duration::ZERO;
        while !self.shared.is_stopping() {
            let sockets = self.shared.sockets();
            if let Err(error) = self.wait(&sockets, timeout) {
                tracing::error!(%error, "cannot wait for packets");
                return;
            }
            self.take_from_outside(&sockets.v4);
            if let Some(v6) = &sockets.v6 {
                self.take_from_outside(v6);
            }
            self.take_from_inside();
            timeout = self.let_time_pass();
        }
    }

    fn wait(&self, sockets: &crate::io::Sockets, timeout: Duration) -> rustix::io::Result<()> {
        let mut handles =
            vec![PollFd::new(self.shared.wake_handle(), PollFlags::IN), PollFd::new(&sockets.v4, PollFlags::IN)];
        handles.extend(sockets.v6.as_ref().map(|v6| PollFd::new(v6, PollFlags::IN)));
        let inside = self.inside.handle();
        handles.extend(inside.as_ref().map(|inside| PollFd::new(inside, PollFlags::IN)));
        let timeout = Timespec::try_from(timeout).ok();
        match poll(&mut handles, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error),
        }
        if handles[0].revents().contains(PollFlags::IN) {
            self.shared.clear_wake();
        }
        Ok(())
    }

    fn take_from_outside(&mut self, socket: &Socket) {
        for _ in 0..TURN {
            if let Err(error) = socket.receive(&mut self.received) {
                // Most likely an ICMP error for an earlier datagram.
                tracing::debug!(%error, "cannot receive");
                return;
            }
            let now = SystemClock.now();
            for (path, datagrams) in self.received.received() {
                let mut core = self.shared.core();
                for datagram in datagrams {
                    core.handle_datagram(path, datagram, now, &mut self.out);
                }
                drop(core);
                if self.out.size() >= FLUSH {
                    flush(&self.shared, &mut self.inside, &mut self.out);
                }
            }
            flush(&self.shared, &mut self.inside, &mut self.out);
            if !self.received.is_full() {
                return;
            }
        }
    }

    fn take_from_inside(&mut self) {
        for _ in 0..TURN {
            let now = SystemClock.now();
            let more = self.inside.read(&self.shared, now, &mut self.out);
            flush(&self.shared, &mut self.inside, &mut self.out);
            if !more {
                return;
            }
        }
    }

    /// Runs timers that are due, and returns how long the thread may wait for packets.
    fn let_time_pass(&mut self) -> Duration {
        let now = SystemClock.now();
        if now.elapsed >= self.next_inspection {
            self.next_inspection = now.elapsed + INSPECTION;
            if let Some(mtu) = self.inside.refresh_mtu() {
                self.shared.core().set_mtu(mtu);
            }
        }
        let next = self.shared.core().poll_timers(now, &mut self.out);
        flush(&self.shared, &mut self.inside, &mut self.out);
        let next = self.inside.deadline(now).map_or(next, |deadline| deadline.min(next));
        next.saturating_sub(now.elapsed)
    }
}

fn flush(shared: &DeviceInner, inside: &mut impl TunnelInterior, out: &mut CoreOutput) {
    if out.is_empty() && out.events.is_empty() {
        return;
    }
    if let Some(local) = shared.sockets().send(out, SystemClock.now()) {
        shared.core().forget_local_address(local);
    }
    inside.write(out.packets());
    if !out.events.is_empty() {
        shared.notify(out.events.drain(..));
    }
    out.clear();
}
