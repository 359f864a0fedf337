//! The link below the stack: it receives packets from a queue and sends packets through the core.

use std::collections::VecDeque;

use smoltcp::phy::{Checksum, ChecksumCapabilities, Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::time::Instant;

use crate::clock_reading::ClockReading;
use crate::core::Core;
use crate::output::{CoreOutput, HEADROOM};

/// The link of the stack during one call. The core sends the packets.
pub(super) struct Wire<'a> {
    pub(super) received: &'a mut VecDeque<Vec<u8>>,
    pub(super) sink: Option<(&'a mut Core, ClockReading, &'a mut CoreOutput)>,
    pub(super) mtu: usize,
}

impl Device for Wire<'_> {
    type RxToken<'b>
        = ReceivedPacket
    where
        Self: 'b;
    type TxToken<'b>
        = TransmitToken<'b>
    where
        Self: 'b;

    fn receive(&mut self, _: Instant) -> Option<(ReceivedPacket, TransmitToken<'_>)> {
        let packet = self.received.pop_front()?;
        Some((ReceivedPacket(packet), self.sending()?))
    }

    fn transmit(&mut self, _: Instant) -> Option<TransmitToken<'_>> {
        self.sending()
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ip;
        capabilities.max_transmission_unit = self.mtu;
        // Received packets were authenticated, so they are what the sender sent. Their checksums need no check.
        let mut checksum = ChecksumCapabilities::default();
        checksum.ipv4 = Checksum::Tx;
        checksum.tcp = Checksum::Tx;
        capabilities.checksum = checksum;
        capabilities
    }
}

impl Wire<'_> {
    fn sending(&mut self) -> Option<TransmitToken<'_>> {
        let (core, now, out) = self.sink.as_mut()?;
        Some(TransmitToken { core, now: *now, out })
    }
}

pub(super) struct ReceivedPacket(Vec<u8>);

impl RxToken for ReceivedPacket {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, take: F) -> R {
        take(&self.0[HEADROOM..])
    }
}

pub(super) struct TransmitToken<'a> {
    core: &'a mut Core,
    now: ClockReading,
    out: &'a mut CoreOutput,
}

impl TxToken for TransmitToken<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, length: usize, write: F) -> R {
        let mut buffer = self.out.take_buffer(length);
        let result = write(&mut buffer[HEADROOM..]);
        self.core.handle_packet_from_tunnel(&buffer[HEADROOM..], self.now, self.out);
        self.out.recycle(buffer);
        result
    }
}
