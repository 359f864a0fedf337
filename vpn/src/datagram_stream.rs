//! Datagrams of WireGuard on a byte stream, for networks that let no UDP through: each follows its length, two bytes in network order.

mod local_end;

use std::convert::Infallible;
use std::io;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::UdpSocket;
use tokio::time::timeout;

use local_end::{LocalEnd, LocalRun};

/// The application protocol (ALPN) of the TLS connections that carry such a stream.
pub const PROTOCOL: &str = "keelway-wireguard/1";
/// The largest datagram, in bytes: more than a packet of the largest MTU of a tunnel and its headers.
const MOST_BYTES: usize = 2048;
/// The bytes of a length.
const LENGTH: usize = 2;
/// The bytes that are read at once: one TLS record.
const READ: usize = 16 * 1024;
/// Datagrams are written together once they have this many bytes, or no other one is there yet. They share system calls and TLS records.
const WRITTEN: usize = 16 * 1024;
/// The longest time for which the other side may accept no bytes. Datagrams are lost meanwhile.
const STALLED: Duration = Duration::from_secs(10);

/// A stream does not carry datagrams any more.
#[derive(Debug, thiserror::Error)]
pub enum DatagramStreamError {
    /// The stream failed.
    #[error("the stream failed")]
    Stream(#[source] io::Error),
    /// The other side sent a length that no datagram has.
    #[error("the other side sent a datagram of {0} bytes; datagrams have 1 to {MOST_BYTES}")]
    Length(usize),
    /// The other side sent nothing for too long.
    #[error("the other side sent nothing for {} s", .0.as_secs())]
    Silent(Duration),
    /// The other side accepts no bytes.
    #[error("the other side accepted nothing for {} s", STALLED.as_secs())]
    Stalled,
    /// The local socket failed.
    #[error("the local socket failed")]
    Socket(#[source] io::Error),
}

/// Carries datagrams between a stream and a socket, which is connected to the local end of the tunnel. Returns once the stream fails, or has carried
/// nothing from the other side for `silence`. It drops what `admits` refuses of the other side, and calls `on_sent` with each datagram for it.
pub async fn carry<S>(
    stream: S,
    socket: &UdpSocket,
    silence: Duration,
    admits: impl FnMut(&[u8]) -> bool,
    on_sent: impl FnMut(&[u8]),
) -> Result<Infallible, DatagramStreamError>
where
    S: AsyncRead + AsyncWrite,
{
    let local = LocalEnd::new(socket).map_err(DatagramStreamError::Socket)?;
    let (from, to) = tokio::io::split(stream);
    let received = receive(from, &local, silence, admits);
    let sent = send(to, &local, on_sent);
    tokio::select! {
        ended = received => ended,
        ended = sent => ended,
    }
}

async fn receive(
    mut stream: impl AsyncRead + Unpin,
    local: &LocalEnd<'_>,
    silence: Duration,
    mut admits: impl FnMut(&[u8]) -> bool,
) -> Result<Infallible, DatagramStreamError> {
    let mut space = vec![0; READ + LENGTH + MOST_BYTES];
    let (mut filled, mut run) = (0, LocalRun::default());
    loop {
        let read = timeout(silence, stream.read(&mut space[filled..])).await;
        match read.map_err(|_| DatagramStreamError::Silent(silence))?.map_err(DatagramStreamError::Stream)? {
            0 => return Err(DatagramStreamError::Stream(io::ErrorKind::UnexpectedEof.into())),
            read => filled += read,
        }
        let mut rest = &space[..filled];
        while let Some((datagram, after)) = split_first(rest)? {
            if admits(datagram) {
                local.push(&mut run, datagram).await.map_err(DatagramStreamError::Socket)?;
            }
            rest = after;
        }
        local.send(&mut run).await.map_err(DatagramStreamError::Socket)?;
        let left = rest.len();
        space.copy_within(filled - left..filled, 0);
        filled = left;
    }
}

/// A datagram, and the bytes after it.
type SplitDatagram<'a> = (&'a [u8], &'a [u8]);

/// Returns the first datagram, or `None` if it is not complete.
fn split_first(bytes: &[u8]) -> Result<Option<SplitDatagram<'_>>, DatagramStreamError> {
    let Some((length, rest)) = bytes.split_first_chunk::<LENGTH>() else { return Ok(None) };
    match u16::from_be_bytes(*length).into() {
        length @ 1..=MOST_BYTES => Ok(rest.split_at_checked(length)),
        length => Err(DatagramStreamError::Length(length)),
    }
}

async fn send(
    mut stream: impl AsyncWrite + Unpin,
    local: &LocalEnd<'_>,
    mut on_sent: impl FnMut(&[u8]),
) -> Result<Infallible, DatagramStreamError> {
    loop {
        // An idle stream needs no memory for a batch.
        let mut batch = Vec::new();
        local
            .receive(|datagram| push(&mut batch, datagram, &mut on_sent))
            .await
            .map_err(DatagramStreamError::Socket)?;
        while batch.len() < WRITTEN {
            let received = local.try_receive(|datagram| push(&mut batch, datagram, &mut on_sent));
            if !received.map_err(DatagramStreamError::Socket)? {
                break;
            }
        }
        let written = async {
            stream.write_all(&batch).await?;
            stream.flush().await
        };
        let written = timeout(STALLED, written).await.map_err(|_| DatagramStreamError::Stalled)?;
        written.map_err(DatagramStreamError::Stream)?;
    }
}

/// Adds a datagram, unless it is longer than any of WireGuard here.
fn push(batch: &mut Vec<u8>, datagram: &[u8], on_sent: &mut impl FnMut(&[u8])) {
    if let Some(length) = u16::try_from(datagram.len()).ok().filter(|length| usize::from(*length) <= MOST_BYTES) {
        on_sent(datagram);
        batch.extend_from_slice(&length.to_be_bytes());
        batch.extend_from_slice(datagram);
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use proptest::prelude::*;
    use tokio::io::DuplexStream;
    use tokio::runtime::Builder;

    use super::*;

    const SILENCE: Duration = Duration::from_secs(5);

    /// Two sockets that are connected to each other.
    async fn sockets() -> (UdpSocket, UdpSocket) {
        let one = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let other = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        one.connect(other.local_addr().unwrap()).await.unwrap();
        other.connect(one.local_addr().unwrap()).await.unwrap();
        (one, other)
    }

    fn block_on<T>(test: impl Future<Output = T>) -> T {
        Builder::new_current_thread().enable_all().build().unwrap().block_on(test)
    }

    /// Runs a test between two local ends with a stream between them.
    async fn between_ends<T>(test: impl AsyncFnOnce(UdpSocket, UdpSocket) -> T) -> T {
        let (here, there) = tokio::io::duplex(512);
        let ((one, carried_one), (other, carried_other)) = (sockets().await, sockets().await);
        tokio::select! {
            result = test(one, other) => result,
            ended = carry(here, &carried_one, SILENCE, |_| true, |_| {}) => panic!("{ended:?}"),
            ended = carry(there, &carried_other, SILENCE, |_| true, |_| {}) => panic!("{ended:?}"),
        }
    }

    /// What a carrier does with these bytes from the other side.
    async fn fed(bytes: &[u8], silence: Duration) -> DatagramStreamError {
        let (mut far, near): (DuplexStream, _) = tokio::io::duplex(8192);
        far.write_all(bytes).await.unwrap();
        let (_local, carried) = sockets().await;
        carry(near, &carried, silence, |_| true, |_| {}).await.unwrap_err()
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]
        #[test]
        fn datagrams_arrive_whole_and_in_order(
            sizes in proptest::collection::vec(1..MOST_BYTES, 1..40),
        ) {
            let datagrams: Vec<Vec<u8>> =
                sizes.iter().enumerate().map(|(at, size)| vec![u8::try_from(at).unwrap(); *size]).collect();
            let arrived = block_on(between_ends(async |one, other| {
                let mut arrived = Vec::new();
                for datagram in &datagrams {
                    one.send(datagram).await.unwrap();
                    let mut space = [0; MOST_BYTES];
                    let length = other.recv(&mut space).await.unwrap();
                    arrived.push(space[..length].to_vec());
                    other.send(&space[..length]).await.unwrap();
                    let length = one.recv(&mut space).await.unwrap();
                    assert_eq!(&space[..length], &datagram[..], "and back");
                }
                arrived
            }));
            prop_assert_eq!(arrived, datagrams);
        }
    }

    #[test]
    fn a_stream_of_other_bytes_ends() {
        block_on(async {
            assert!(matches!(fed(&[0, 0], SILENCE).await, DatagramStreamError::Length(0)));
            assert!(matches!(fed(b"GET / HTTP/1.1", SILENCE).await, DatagramStreamError::Length(0x4745)));
            let quick = Duration::from_millis(50);
            assert!(matches!(fed(&[0, 9, 1], quick).await, DatagramStreamError::Silent(_)));
            assert!(matches!(fed(&[], quick).await, DatagramStreamError::Silent(_)));
        });
    }

    #[test]
    fn a_closed_stream_ends() {
        block_on(async {
            let (far, near) = tokio::io::duplex(64);
            drop(far);
            let (_local, carried) = sockets().await;
            let ended = carry(near, &carried, SILENCE, |_| true, |_| {}).await.unwrap_err();
            assert!(matches!(ended, DatagramStreamError::Stream(_)), "{ended:?}");
        });
    }

    #[test]
    fn a_local_end_that_is_restarted_ends_nothing() {
        block_on(async {
            let (mut far, near) = tokio::io::duplex(4096);
            let (local, carried) = sockets().await;
            let address = local.local_addr().unwrap();
            drop(local);
            let test = async {
                far.write_all(&[0, 1, 7, 0, 1, 8]).await.unwrap();
                tokio::time::sleep(Duration::from_millis(50)).await;
                let local = UdpSocket::bind(address).await.unwrap();
                far.write_all(&[0, 1, 9]).await.unwrap();
                let mut space = [0; 16];
                assert_eq!((local.recv(&mut space).await.unwrap(), space[0]), (1, 9));
            };
            tokio::select! {
                () = test => {}
                ended = carry(near, &carried, SILENCE, |_| true, |_| {}) => panic!("{ended:?}"),
            }
        });
    }
}
