//! Datagrams of WireGuard on a byte stream, for networks that let no UDP through: each follows its length, two bytes in network order.

use std::convert::Infallible;
use std::io;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::UdpSocket;
use tokio::time::timeout;

/// The application protocol (ALPN) of the TLS connections that carry such a stream.
pub const PROTOCOL: &str = "keelway-wireguard/1";
/// The largest datagram, in bytes: more than a packet of the largest MTU of a tunnel and its headers.
const MOST_BYTES: usize = 2048;
/// The bytes of a length.
const LENGTH: usize = 2;
/// The bytes that are read or written at once. Small datagrams share system calls and TLS records.
const BATCH: usize = 16 * 1024;
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
    let (from, to) = tokio::io::split(stream);
    let received = receive(from, socket, silence, admits);
    let sent = send(to, socket, on_sent);
    tokio::select! {
        ended = received => ended,
        ended = sent => ended,
    }
}

async fn receive(
    stream: impl AsyncRead + Unpin,
    socket: &UdpSocket,
    silence: Duration,
    mut admits: impl FnMut(&[u8]) -> bool,
) -> Result<Infallible, DatagramStreamError> {
    let mut stream = BufReader::with_capacity(BATCH, stream);
    let mut datagram = [0; MOST_BYTES];
    loop {
        let read = timeout(silence, read_datagram(&mut stream, &mut datagram)).await;
        let length = read.map_err(|_| DatagramStreamError::Silent(silence))??;
        if !admits(&datagram[..length]) {
            continue;
        }
        match socket.send(&datagram[..length]).await {
            // The local end is about to be restarted.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
            Err(error) => return Err(DatagramStreamError::Socket(error)),
            Ok(_) => {}
        }
    }
}

async fn read_datagram(
    stream: &mut (impl AsyncRead + Unpin),
    datagram: &mut [u8; MOST_BYTES],
) -> Result<usize, DatagramStreamError> {
    let length = stream.read_u16().await.map_err(DatagramStreamError::Stream)?.into();
    if length == 0 || length > MOST_BYTES {
        return Err(DatagramStreamError::Length(length));
    }
    stream.read_exact(&mut datagram[..length]).await.map_err(DatagramStreamError::Stream)?;
    Ok(length)
}

async fn send(
    mut stream: impl AsyncWrite + Unpin,
    socket: &UdpSocket,
    mut on_sent: impl FnMut(&[u8]),
) -> Result<Infallible, DatagramStreamError> {
    let mut batch = Vec::with_capacity(BATCH);
    let mut datagram = [0; MOST_BYTES];
    loop {
        batch.clear();
        let mut next = Some(received(socket.recv(&mut datagram).await)?);
        while let Some(length) = next {
            // A longer datagram was cut off.
            if (1..MOST_BYTES).contains(&length) {
                on_sent(&datagram[..length]);
                push(&mut batch, &datagram[..length]);
            }
            if batch.len() + LENGTH + MOST_BYTES > BATCH {
                break;
            }
            next = match socket.try_recv(&mut datagram) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
                outcome => Some(received(outcome)?),
            };
        }
        let written = async {
            stream.write_all(&batch).await?;
            stream.flush().await
        };
        let written = timeout(STALLED, written).await.map_err(|_| DatagramStreamError::Stalled)?;
        written.map_err(DatagramStreamError::Stream)?;
    }
}

/// Returns the length of a received datagram, 0 if nobody listens at the local end.
fn received(outcome: io::Result<usize>) -> Result<usize, DatagramStreamError> {
    match outcome {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(0),
        outcome => outcome.map_err(DatagramStreamError::Socket),
    }
}

fn push(batch: &mut Vec<u8>, datagram: &[u8]) {
    let length = u16::try_from(datagram.len()).unwrap_or_default();
    batch.extend_from_slice(&length.to_be_bytes());
    batch.extend_from_slice(datagram);
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
