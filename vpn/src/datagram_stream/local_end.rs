//! The local end of a tunnel: a connected UDP socket. Datagrams of one length share system calls, by the kernel's segmentation offload.

use std::cell::RefCell;
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;

use quinn_udp::{RecvMeta, Transmit, UdpSocketState};
use tokio::io::Interest;
use tokio::net::UdpSocket;

/// As many coalesced datagrams as the kernel returns at once.
const RECEIVED: usize = 1 << 16;

thread_local! {
    /// Space for received datagrams. All streams of a thread share it, because a gateway has hundreds of them.
    static SPACE: RefCell<Vec<u8>> = RefCell::new(vec![0; RECEIVED]);
}

pub(super) struct LocalEnd<'a> {
    socket: &'a UdpSocket,
    offload: UdpSocketState,
    peer: SocketAddr,
}

/// Datagrams of one length, back to back. The last one may be shorter.
#[derive(Debug, Default)]
pub(super) struct LocalRun {
    bytes: Vec<u8>,
    segment: usize,
}

impl LocalRun {
    /// Whether the datagram can follow the others.
    fn fits(&self, datagram: &[u8]) -> bool {
        self.bytes.is_empty()
            || (self.bytes.len().is_multiple_of(self.segment)
                && datagram.len() <= self.segment
                && self.bytes.len() + datagram.len() < usize::from(u16::MAX))
    }

    fn push(&mut self, datagram: &[u8]) {
        if self.bytes.is_empty() {
            self.segment = datagram.len();
        }
        self.bytes.extend_from_slice(datagram);
    }
}

impl<'a> LocalEnd<'a> {
    pub(super) fn new(socket: &'a UdpSocket) -> io::Result<Self> {
        Ok(Self { socket, offload: UdpSocketState::new(socket.into())?, peer: socket.peer_addr()? })
    }

    /// Waits for datagrams, and passes on all that the kernel has coalesced.
    pub(super) async fn receive(&self, mut each: impl FnMut(&[u8])) -> io::Result<()> {
        ignore_absence(self.socket.async_io(Interest::READABLE, || self.read(&mut each)).await)
    }

    /// Receives as [`LocalEnd::receive`], without waiting. Returns whether there was anything.
    pub(super) fn try_receive(&self, mut each: impl FnMut(&[u8])) -> io::Result<bool> {
        match self.socket.try_io(Interest::READABLE, || self.read(&mut each)) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            read => ignore_absence(read).map(|()| true),
        }
    }

    fn read(&self, each: &mut impl FnMut(&[u8])) -> io::Result<()> {
        SPACE.with_borrow_mut(|space| {
            let mut meta = [RecvMeta::default()];
            self.offload.recv(self.socket.into(), &mut [IoSliceMut::new(space)], &mut meta)?;
            let [meta] = meta;
            space[..meta.len].chunks(meta.stride.max(1)).for_each(each);
            Ok(())
        })
    }

    /// Adds a datagram to the run. If it does not fit, sends the run first.
    pub(super) async fn push(&self, run: &mut LocalRun, datagram: &[u8]) -> io::Result<()> {
        if !run.fits(datagram) {
            self.send(run).await?;
        }
        run.push(datagram);
        Ok(())
    }

    /// Sends and empties the run.
    pub(super) async fn send(&self, run: &mut LocalRun) -> io::Result<()> {
        for contents in run.bytes.chunks((run.segment * self.offload.max_gso_segments()).max(1)) {
            let segment_size = (contents.len() > run.segment).then_some(run.segment);
            let transmit = Transmit { destination: self.peer, ecn: None, contents, segment_size, src_ip: None };
            let send =
                || self.socket.async_io(Interest::WRITABLE, || self.offload.try_send(self.socket.into(), &transmit));
            // The kernel sends nothing when it reports that an earlier datagram was refused.
            match send().await {
                Err(error) if is_absence(&error) => ignore_absence(send().await)?,
                other => other?,
            }
        }
        run.bytes.clear();
        Ok(())
    }
}

/// Whether no process listens at the local end, which may be restarting.
fn is_absence(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::ConnectionRefused
}

fn ignore_absence(outcome: io::Result<()>) -> io::Result<()> {
    match outcome {
        Err(error) if is_absence(&error) => Ok(()),
        outcome => outcome,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_has_datagrams_of_one_length_and_a_shorter_one_at_its_end() {
        let mut run = LocalRun::default();
        for (length, fits) in [(100, true), (100, true), (101, false), (60, true), (60, false)] {
            assert_eq!(run.fits(&vec![0; length]), fits, "{length}");
            if fits {
                run.push(&vec![0; length]);
            }
        }
        assert_eq!((run.bytes.len(), run.segment), (260, 100));
    }
}
