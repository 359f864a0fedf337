//! The part of a relay that the packet thread drives, and the state that it shares with streams.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::stack::Stack;
use crate::clock_reading::ClockReading;
use crate::device::{DeviceInner, TunnelInterior};
use crate::output::CoreOutput;

/// The state that the packet thread, streams and listeners share.
pub(crate) struct SharedStack {
    stack: Mutex<Stack>,
    shared: Arc<DeviceInner>,
}

impl SharedStack {
    pub(super) fn new(shared: Arc<DeviceInner>, addresses: &[IpAddr], mtu: usize, now: ClockReading) -> Arc<Self> {
        let stack = Mutex::new(Stack::new(addresses, mtu, now));
        Arc::new(Self { stack, shared })
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Stack> {
        self.stack.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the packet thread send what was written.
    pub(super) fn wake(&self) {
        self.shared.wake();
    }

    /// Ends all connections, after the packet thread has stopped.
    pub(super) fn close(&self) {
        self.lock().close();
    }
}

/// The relay's own end, for the packet thread.
pub(super) struct StackEnd {
    stack: Arc<SharedStack>,
    waiting: VecDeque<Vec<u8>>,
}

impl StackEnd {
    pub(super) fn new(stack: Arc<SharedStack>) -> Self {
        Self { stack, waiting: VecDeque::new() }
    }
}

impl TunnelInterior for StackEnd {
    fn handle(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn read(&mut self, shared: &DeviceInner, now: ClockReading, out: &mut CoreOutput) -> bool {
        let mut stack = self.stack.lock();
        stack.exchange(&mut self.waiting, &mut shared.core(), now, out);
        false
    }

    fn write(&mut self, packets: &mut Vec<Vec<u8>>) {
        self.waiting.extend(packets.drain(..));
    }

    fn deadline(&mut self, now: ClockReading) -> Option<Duration> {
        self.stack.lock().deadline(now)
    }
}
