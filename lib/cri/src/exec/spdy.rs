//! The subset of SPDY/3.1 that a runtime's streaming server uses: streams, data and pings. Neither side has flow control
//! (`github.com/moby/spdystream` has none).

use prost::bytes::{Buf, Bytes, BytesMut};

/// The first two bytes of a control frame: the control bit and the version.
const CONTROL: u16 = 0x8003;
const SYN_STREAM: u16 = 1;
const RST_STREAM: u16 = 3;
const PING: u16 = 6;
const GOAWAY: u16 = 7;
/// The flag of a sender's last frame in a stream.
const FIN: u8 = 1;
const HEAD: usize = 8;
/// The largest payload of a frame, in bytes.
pub(super) const MOST: usize = (1 << 24) - 1;

/// A frame from the server.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum SpdyFrame {
    Data {
        stream: u32,
        fin: bool,
        bytes: Bytes,
    },
    Reset {
        stream: u32,
    },
    Ping(u32),
    GoAway,
    /// Replies, settings and other frames that this client ignores.
    Other,
}

/// Opens the streams of a client, one after another.
#[derive(Debug, Default)]
pub(super) struct StreamOpener {
    opened: u32,
}

impl StreamOpener {
    /// Opens a stream with one header, whose name must be in lower case. Returns the stream's number and the frame to send.
    pub(super) fn open(&mut self, name: &str, value: &str) -> (u32, Vec<u8>) {
        // Streams that a client opens have odd numbers.
        let stream = self.opened * 2 + 1;
        let headers = self.compressed(name, value);
        self.opened += 1;
        let mut payload = Vec::new();
        payload.extend(stream.to_be_bytes());
        // No associated stream, the highest priority, no credential slot.
        payload.extend([0; 6]);
        payload.extend(headers);
        (stream, control(SYN_STREAM, &payload))
    }

    /// Compresses headers. All headers of a session are one zlib stream. Stored blocks need no dictionary. The empty block after each header flushes
    /// it, so that the server can read it at once.
    fn compressed(&self, name: &str, value: &str) -> Vec<u8> {
        const HEADER: [u8; 2] = [0x78, 0x01];
        const EMPTY_BLOCK: [u8; 5] = [0, 0, 0, 0xff, 0xff];
        let mut block = 1u32.to_be_bytes().to_vec();
        for text in [name, value] {
            block.extend(u32::try_from(text.len()).unwrap_or(0).to_be_bytes());
            block.extend(text.as_bytes());
        }
        // Header names and values of a session are short, so the length fits.
        let length = u16::try_from(block.len()).unwrap_or(u16::MAX);
        let mut compressed = if self.opened == 0 { HEADER.to_vec() } else { Vec::new() };
        compressed.push(0);
        compressed.extend(length.to_le_bytes());
        compressed.extend((!length).to_le_bytes());
        compressed.extend(block);
        compressed.extend(EMPTY_BLOCK);
        compressed
    }
}

/// Returns a data frame. `bytes` must not be longer than [`MOST`].
pub(super) fn data(stream: u32, bytes: &[u8], fin: bool) -> Vec<u8> {
    let mut frame = stream.to_be_bytes().to_vec();
    frame.push(if fin { FIN } else { 0 });
    frame.extend(length(bytes));
    frame.extend(bytes);
    frame
}

/// Returns the reply to a ping, which has the same number.
pub(super) fn pong(number: u32) -> Vec<u8> {
    control(PING, &number.to_be_bytes())
}

fn control(kind: u16, payload: &[u8]) -> Vec<u8> {
    let mut frame = CONTROL.to_be_bytes().to_vec();
    frame.extend(kind.to_be_bytes());
    frame.push(0);
    frame.extend(length(payload));
    frame.extend(payload);
    frame
}

fn length(bytes: &[u8]) -> [u8; 3] {
    let [_, high, middle, low] = u32::try_from(bytes.len().min(MOST)).unwrap_or(0).to_be_bytes();
    [high, middle, low]
}

/// Removes the first frame from `received`, or returns `None` if it is incomplete.
pub(super) fn take(received: &mut BytesMut) -> Option<SpdyFrame> {
    let &[a, b, c, d, flags, high, middle, low] = received.first_chunk::<HEAD>()?;
    let length = usize::try_from(u32::from_be_bytes([0, high, middle, low])).ok()?;
    let whole = HEAD + length;
    if received.len() < whole {
        return None;
    }
    let mut payload = received.split_to(whole).freeze();
    payload.advance(HEAD);
    let number = |bytes: &[u8]| bytes.first_chunk().map(|bytes| u32::from_be_bytes(*bytes) & 0x7fff_ffff);
    if a & 0x80 == 0 {
        let stream = u32::from_be_bytes([a, b, c, d]);
        return Some(SpdyFrame::Data { stream, fin: flags & FIN != 0, bytes: payload });
    }
    let frame = match u16::from_be_bytes([c, d]) {
        PING => payload.first_chunk().map(|bytes| SpdyFrame::Ping(u32::from_be_bytes(*bytes))),
        RST_STREAM => number(&payload).map(|stream| SpdyFrame::Reset { stream }),
        GOAWAY => Some(SpdyFrame::GoAway),
        _ => None,
    };
    Some(frame.unwrap_or(SpdyFrame::Other))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_arrives_in_pieces() {
        let sent = [data(3, b"hello", false), data(3, b"", true), pong(8)].concat();
        let mut received = BytesMut::new();
        let mut frames = Vec::new();
        for byte in sent {
            received.extend([byte]);
            frames.extend(take(&mut received));
        }
        assert_eq!(
            frames,
            [
                SpdyFrame::Data { stream: 3, fin: false, bytes: Bytes::from_static(b"hello") },
                SpdyFrame::Data { stream: 3, fin: true, bytes: Bytes::new() },
                SpdyFrame::Ping(8),
            ]
        );
        assert!(received.is_empty());
    }

    #[test]
    fn streams_are_opened_as_the_draft_writes_them() {
        let mut opener = StreamOpener::default();
        let (first, frame) = opener.open("streamtype", "error");
        assert_eq!(first, 1);
        assert_eq!(frame[..4], [0x80, 3, 0, 1]);
        assert_eq!(frame[8..12], [0, 0, 0, 1]);
        let headers = b"\0\0\0\x01\0\0\0\x0astreamtype\0\0\0\x05error";
        assert_eq!(frame[18..20], [0x78, 0x01]);
        assert_eq!(frame[25..25 + headers.len()], *headers);
        assert_eq!(frame[25 + headers.len()..], [0, 0, 0, 0xff, 0xff]);
        let (second, frame) = opener.open("streamtype", "stdin");
        assert_eq!(second, 3);
        assert_eq!(frame[18], 0, "the session's zlib stream has begun");
    }
}
