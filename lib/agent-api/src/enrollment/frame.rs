//! Messages of an enrolment, each with its length in front.

use std::{io, time::Duration};

use prost::Message;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    time::timeout,
};

/// How long the peer may take for a message.
const WITHIN: Duration = Duration::from_secs(5);
/// The largest message of a peer that has proven nothing yet, in bytes.
pub const OF_STRANGERS: u32 = 4 << 10;
/// The largest message of a peer that holds the token, in bytes: a list of some thousand revoked certificates.
pub const OF_KNOWN: u32 = 1 << 20;

/// Reads a message of at most this many bytes.
pub async fn read<M: Message + Default>(stream: &mut (impl AsyncRead + Unpin), most: u32) -> io::Result<M> {
    let reading = async {
        let length = stream.read_u32().await?;
        if length > most {
            return Err(io::Error::other("a message exceeds the maximum length"));
        }
        // The buffer grows with the received bytes, so that a claimed length uses no memory.
        let mut bytes = Vec::new();
        let read = stream.take(length.into()).read_to_end(&mut bytes).await?;
        if read < usize::try_from(length).unwrap_or(usize::MAX) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        M::decode(bytes.as_slice()).map_err(io::Error::other)
    };
    timeout(WITHIN, reading).await.map_err(|_| io::ErrorKind::TimedOut)?
}

/// Writes a message.
pub async fn write(stream: &mut (impl AsyncWrite + Unpin), message: &impl Message) -> io::Result<()> {
    let bytes = message.encode_to_vec();
    let length = u32::try_from(bytes.len()).map_err(io::Error::other)?;
    let writing = async {
        stream.write_u32(length).await?;
        stream.write_all(&bytes).await?;
        stream.flush().await
    };
    timeout(WITHIN, writing).await.map_err(|_| io::ErrorKind::TimedOut)?
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::EnrollHello;

    fn hello() -> EnrollHello {
        EnrollHello { token: "0123456789abcdef".to_owned(), proof: vec![1; 32] }
    }

    #[tokio::test]
    async fn written_text_is_read_back() {
        let (mut ours, mut theirs) = tokio::io::duplex(16);
        let hello = hello();
        let (written, read) = tokio::join!(write(&mut ours, &hello), read::<EnrollHello>(&mut theirs, OF_STRANGERS));
        written.unwrap();
        assert_eq!(read.unwrap(), hello);
    }

    #[tokio::test]
    async fn a_long_message_is_not_read_and_a_short_one_is_none() {
        let length = hello().encode_to_vec().len();
        let whole: Vec<u8> =
            u32::try_from(length).unwrap().to_be_bytes().into_iter().chain(hello().encode_to_vec()).collect();
        assert_eq!(read::<EnrollHello>(&mut whole.as_slice(), OF_STRANGERS).await.unwrap(), hello());
        let most = u32::try_from(length).unwrap() - 1;
        assert!(read::<EnrollHello>(&mut whole.as_slice(), most).await.is_err());
        for cut in 0..whole.len() {
            assert!(read::<EnrollHello>(&mut &whole[..cut], OF_STRANGERS).await.is_err(), "{cut}");
        }
    }
}
