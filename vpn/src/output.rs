//! What the core wants done: datagrams to send, packets to deliver, and what happened.

use std::net::{IpAddr, SocketAddr};
use std::ops::Range;

use crate::key::PublicKey;

/// Room that a packet keeps free in front of it, for the header that a TUN device with offload wants there.
pub const HEADROOM: usize = 12;

/// Two addresses between which datagrams go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DatagramPath {
    /// The peer's side.
    pub remote: SocketAddr,
    /// Our side, where a machine has several: answers leave from the address that was asked.
    pub local: Option<IpAddr>,
}

impl DatagramPath {
    /// A path from whatever address the system picks.
    #[must_use]
    pub fn to(remote: SocketAddr) -> Self {
        Self { remote, local: None }
    }
}

/// Something that whoever runs the core may want to write down.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VpnEvent {
    /// Keys were agreed on with the peer.
    HandshakeCompleted(PublicKey),
    /// An authenticated packet came from another address than the last one.
    Roamed {
        /// Who moved.
        peer: PublicKey,
        /// To where.
        endpoint: SocketAddr,
    },
    /// Nobody answered for so long that keys were wiped and waiting packets dropped.
    Expired(PublicKey),
}

struct Datagram {
    path: DatagramPath,
    bytes: Range<usize>,
}

/// A run of datagrams to one place, back to back in one buffer: what UDP segmentation offload takes.
#[derive(Debug, PartialEq, Eq)]
pub struct DatagramRun<'a> {
    /// Where they go.
    pub path: DatagramPath,
    /// All of them; each but the last is `segment` bytes long.
    pub bytes: &'a [u8],
    /// The length of one.
    pub segment: usize,
}

/// Collects the core's output over any number of calls. Buffers are kept and used again.
#[derive(Default)]
pub struct CoreOutput {
    /// Space for datagrams, back to back. It only grows, so that it is not wiped for each of them.
    arena: Vec<u8>,
    used: usize,
    datagrams: Vec<Datagram>,
    packets: Vec<Vec<u8>>,
    spare: Vec<Vec<u8>>,
    packet_capacity: usize,
    /// What happened since the last [`Output::clear`].
    pub events: Vec<VpnEvent>,
}

/// Spare packet buffers that are kept; a burst's surplus is given back.
const SPARE_PACKETS: usize = 256;

impl CoreOutput {
    /// Nothing, yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Nothing, yet; packets have room to grow to `capacity` bytes, where they are coalesced.
    #[must_use]
    pub fn with_packet_capacity(capacity: usize) -> Self {
        Self { packet_capacity: capacity, ..Self::default() }
    }

    /// Forgets everything and keeps the memory.
    pub fn clear(&mut self) {
        self.used = 0;
        self.datagrams.clear();
        self.events.clear();
        // The first packet of a burst is the one that others are coalesced into. In this order it is the same buffer each time, and
        // the room of all others is never touched.
        self.spare.extend(self.packets.drain(..).rev());
        self.spare.truncate(SPARE_PACKETS);
    }

    /// Whether there is nothing to send or deliver.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.datagrams.is_empty() && self.packets.is_empty()
    }

    /// How many bytes of datagrams wait here.
    #[must_use]
    pub fn pending_bytes(&self) -> usize {
        self.used
    }

    /// How many bytes of datagrams and packets wait here.
    pub(crate) fn size(&self) -> usize {
        self.used + self.packets.iter().map(Vec::len).sum::<usize>()
    }

    /// Datagrams one by one, in order.
    pub fn datagrams(&self) -> impl Iterator<Item = (DatagramPath, &[u8])> {
        self.datagrams.iter().map(|datagram| (datagram.path, &self.arena[datagram.bytes.clone()]))
    }

    /// Datagrams in runs of one path and length (the last one of a run may be shorter), at most `most` in each.
    pub fn runs(&self, most: usize) -> impl Iterator<Item = DatagramRun<'_>> {
        /// The largest UDP payload that one IPv4 packet holds, less room for the headers of the outer path.
        const LARGEST_RUN: usize = 65_000;
        let mut next = 0;
        std::iter::from_fn(move || {
            let first = self.datagrams.get(next)?;
            let segment = first.bytes.len();
            let start = first.bytes.start;
            let mut end = first.bytes.end;
            next += 1;
            let mut count = 1;
            while let Some(datagram) = self.datagrams.get(next) {
                let fits = count < most
                    && datagram.path == first.path
                    && datagram.bytes.len() <= segment
                    && datagram.bytes.end - start <= LARGEST_RUN;
                if !fits {
                    break;
                }
                end = datagram.bytes.end;
                next += 1;
                count += 1;
                if datagram.bytes.len() < segment {
                    break;
                }
            }
            Some(DatagramRun { path: first.path, bytes: &self.arena[start..end], segment })
        })
    }

    /// Packets for this end, each after [`HEADROOM`] bytes. Whoever takes them may change them at will.
    pub fn packets(&mut self) -> &mut Vec<Vec<u8>> {
        &mut self.packets
    }

    /// Writes one datagram of at most `most` bytes by `write`, which returns how many it wrote, if any.
    pub(crate) fn write_datagram(
        &mut self,
        path: DatagramPath,
        most: usize,
        write: impl FnOnce(&mut [u8]) -> Option<usize>,
    ) -> Option<&[u8]> {
        let start = self.used;
        let end = start + most;
        if self.arena.len() < end {
            self.arena.resize(end, 0);
        }
        let written = write(&mut self.arena[start..end])?;
        let bytes = start..start + written;
        self.used = bytes.end;
        self.datagrams.push(Datagram { path, bytes: bytes.clone() });
        Some(&self.arena[bytes])
    }

    /// Takes back the datagram that was written last.
    pub(crate) fn retract_datagram(&mut self) {
        if let Some(datagram) = self.datagrams.pop() {
            self.used = datagram.bytes.start;
        }
    }

    /// A buffer with `length` bytes behind its headroom.
    pub(crate) fn take_buffer(&mut self, length: usize) -> Vec<u8> {
        let capacity = self.packet_capacity;
        let mut buffer = self.spare.pop().unwrap_or_else(|| Vec::with_capacity(capacity));
        buffer.resize(HEADROOM + length, 0);
        buffer
    }

    /// An empty buffer.
    pub(crate) fn take_scratch(&mut self) -> Vec<u8> {
        let mut buffer = self.spare.pop().unwrap_or_default();
        buffer.clear();
        buffer
    }

    pub(crate) fn recycle(&mut self, buffer: Vec<u8>) {
        if self.spare.len() < SPARE_PACKETS {
            self.spare.push(buffer);
        }
    }

    pub(crate) fn deliver(&mut self, packet: Vec<u8>) {
        self.packets.push(packet);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(port: u16) -> DatagramPath {
        DatagramPath::to(SocketAddr::from(([192, 0, 2, 1], port)))
    }

    fn write(output: &mut CoreOutput, path: DatagramPath, length: usize) {
        output.write_datagram(path, length + 50, |space| {
            space[..length].fill(1);
            Some(length)
        });
    }

    #[test]
    fn a_run_ends_at_another_path_a_longer_and_after_a_shorter_datagram() {
        let mut output = CoreOutput::new();
        for (port, length) in [(1, 100), (1, 100), (1, 40), (1, 100), (2, 100), (2, 120)] {
            write(&mut output, path(port), length);
        }
        let runs: Vec<_> = output.runs(64).map(|run| (run.path.remote.port(), run.segment, run.bytes.len())).collect();
        assert_eq!(runs, [(1, 100, 240), (1, 100, 100), (2, 100, 100), (2, 120, 120)]);
        assert_eq!(output.runs(1).count(), 6);
    }

    #[test]
    fn a_run_never_exceeds_what_one_packet_holds() {
        let mut output = CoreOutput::new();
        for _ in 0..20 {
            write(&mut output, path(1), 9000);
        }
        assert!(output.runs(64).all(|run| run.bytes.len() <= 65_000));
        assert_eq!(output.runs(64).map(|run| run.bytes.len()).sum::<usize>(), 180_000);
    }

    #[test]
    fn nothing_written_is_no_datagram() {
        let mut output = CoreOutput::new();
        assert_eq!(output.write_datagram(path(1), 10, |_| None), None);
        assert!(output.is_empty());
        assert_eq!(output.pending_bytes(), 0);
    }
}
