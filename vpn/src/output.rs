//! The output of the core: datagrams to send, packets to deliver, and events.

use std::net::{IpAddr, SocketAddr};
use std::ops::Range;

use crate::key::PublicKey;

/// Bytes that are kept free in front of a packet, for the header that a TUN device with offload needs there.
pub const HEADROOM: usize = 12;

/// The two addresses of a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DatagramPath {
    /// The peer's address.
    pub remote: SocketAddr,
    /// This end's address, if a machine has several: a reply leaves from the address at which the request arrived.
    pub local: Option<IpAddr>,
}

impl DatagramPath {
    /// Returns a path whose local address the operating system chooses.
    #[must_use]
    pub fn to(remote: SocketAddr) -> Self {
        Self { remote, local: None }
    }
}

/// An event that the caller of the core may want to log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VpnEvent {
    /// A handshake with the peer completed.
    HandshakeCompleted(PublicKey),
    /// An authenticated packet came from another address than the previous one.
    Roamed {
        /// The peer whose address changed.
        peer: PublicKey,
        /// The new address of the peer.
        endpoint: SocketAddr,
    },
    /// The peer did not reply for so long that its keys were wiped and its waiting packets dropped.
    Expired(PublicKey),
}

struct Datagram {
    path: DatagramPath,
    bytes: Range<usize>,
}

/// A run of datagrams to one address, back to back in one buffer, as UDP segmentation offload needs them.
#[derive(Debug, PartialEq, Eq)]
pub struct DatagramRun<'a> {
    /// The path of all datagrams of the run.
    pub path: DatagramPath,
    /// All datagrams. Each of them but the last is `segment` bytes long.
    pub bytes: &'a [u8],
    /// The length of one datagram, in bytes.
    pub segment: usize,
}

/// Collects the core's output over any number of calls. Buffers are reused.
#[derive(Default)]
pub struct CoreOutput {
    /// Space for datagrams, back to back. It only grows, so that it is not zeroed for each of them.
    arena: Vec<u8>,
    used: usize,
    datagrams: Vec<Datagram>,
    packets: Vec<Vec<u8>>,
    spare: Vec<Vec<u8>>,
    packet_capacity: usize,
    /// Events since the last [`CoreOutput::clear`].
    pub events: Vec<VpnEvent>,
}

/// The number of spare packet buffers to keep. Further buffers, as after a burst, are freed.
const SPARE_PACKETS: usize = 256;

impl CoreOutput {
    /// Creates an empty output.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates an empty output whose packet buffers have a capacity of `capacity` bytes, so that packets can be coalesced into them.
    #[must_use]
    pub fn with_packet_capacity(capacity: usize) -> Self {
        Self { packet_capacity: capacity, ..Self::default() }
    }

    /// Removes all output and keeps the memory.
    pub fn clear(&mut self) {
        self.used = 0;
        self.datagrams.clear();
        self.events.clear();
        // Other packets are coalesced into the first packet of a burst. In this order it is the same buffer each time, and the capacity of
        // all others is never touched.
        self.spare.extend(self.packets.drain(..).rev());
        self.spare.truncate(SPARE_PACKETS);
    }

    /// Whether there is nothing to send or deliver.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.datagrams.is_empty() && self.packets.is_empty()
    }

    /// Returns the number of bytes of the datagrams to send.
    #[must_use]
    pub fn pending_bytes(&self) -> usize {
        self.used
    }

    /// Returns the number of bytes of the datagrams and packets.
    pub(crate) fn size(&self) -> usize {
        self.used + self.packets.iter().map(Vec::len).sum::<usize>()
    }

    /// Returns the datagrams one by one, in order.
    pub fn datagrams(&self) -> impl Iterator<Item = (DatagramPath, &[u8])> {
        self.datagrams.iter().map(|datagram| (datagram.path, &self.arena[datagram.bytes.clone()]))
    }

    /// Returns the datagrams in runs of one path and length, at most `most` in each. The last datagram of a run may be shorter.
    pub fn runs(&self, most: usize) -> impl Iterator<Item = DatagramRun<'_>> {
        /// The largest UDP payload of one IPv4 packet, minus room for the headers of the outer path.
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

    /// Returns the packets for this end, each after [`HEADROOM`] bytes. The caller may change them.
    pub fn packets(&mut self) -> &mut Vec<Vec<u8>> {
        &mut self.packets
    }

    /// Writes one datagram of at most `most` bytes. `write` returns how many bytes it wrote, or `None` for no datagram.
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

    /// Removes the datagram that was written last.
    pub(crate) fn retract_datagram(&mut self) {
        if let Some(datagram) = self.datagrams.pop() {
            self.used = datagram.bytes.start;
        }
    }

    /// Returns a buffer with `length` bytes after its headroom.
    pub(crate) fn take_buffer(&mut self, length: usize) -> Vec<u8> {
        let capacity = self.packet_capacity;
        let mut buffer = self.spare.pop().unwrap_or_else(|| Vec::with_capacity(capacity));
        buffer.resize(HEADROOM + length, 0);
        buffer
    }

    /// Returns an empty buffer.
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
