//! The streams of one command.

use std::io;

use prost::bytes::BytesMut;
use serde_json::Value as Json;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    sync::mpsc,
};

use super::{
    ExecError,
    spdy::{self, SpdyFrame, StreamOpener},
};

/// How much of stdin is read and sent at once, in bytes.
const CHUNK: usize = 32 << 10;
/// How much is received at once, in bytes: two frames of containerd's.
const ROOM: usize = 64 << 10;
/// The largest status of a command that is read from the runtime, in bytes.
const STATUS: usize = 1 << 20;

/// The size of a terminal, in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    /// The number of columns.
    pub width: u16,
    /// The number of lines.
    pub height: u16,
}

/// The caller's side of a command's streams.
#[derive(Debug)]
pub struct ExecStreams<I, O, E> {
    /// The command's stdin. Read only if the command was prepared with stdin.
    pub stdin: I,
    /// The command's stdout. With a terminal, also its stderr.
    pub stdout: O,
    /// The command's stderr. Unused with a terminal.
    pub stderr: E,
    /// New sizes of the terminal.
    pub sizes: mpsc::Receiver<Size>,
}

/// Stream numbers in the SPDY session.
struct Numbers {
    error: u32,
    stdin: Option<u32>,
    stdout: u32,
    stderr: Option<u32>,
    resize: Option<u32>,
}

pub(super) async fn run<S, I, O, E>(
    connection: S,
    streams: ExecStreams<I, O, E>,
    (stdin, terminal): (bool, bool),
) -> Result<i32, ExecError>
where
    S: AsyncRead + AsyncWrite + Unpin,
    I: AsyncRead + Unpin,
    O: AsyncWrite + Unpin,
    E: AsyncWrite + Unpin,
{
    let (from, mut to) = tokio::io::split(connection);
    let mut opener = StreamOpener::default();
    let mut opening = Vec::new();
    let mut open = |kind| {
        let (number, frame) = opener.open("streamtype", kind);
        opening.extend(frame);
        number
    };
    let numbers = Numbers {
        error: open("error"),
        stdin: stdin.then(|| open("stdin")),
        stdout: open("stdout"),
        stderr: (!terminal).then(|| open("stderr")),
        resize: terminal.then(|| open("resize")),
    };
    to.write_all(&opening).await.map_err(ExecError::Stream)?;
    let (ping, pings) = mpsc::unbounded_channel();
    // Each direction continues while the other is blocked. Otherwise both sides could wait for each other.
    let down = receive(from, (streams.stdout, streams.stderr), &numbers, ping);
    let up = send(to, (streams.stdin, streams.sizes), &numbers, pings);
    tokio::select! {
        ended = down => ended,
        Err(error) = up => Err(ExecError::Stream(error)),
    }
}

/// Sends stdin, terminal sizes and pongs. Returns only errors: the session ends when the runtime reports the command's end.
async fn send(
    mut to: impl AsyncWrite + Unpin,
    (mut stdin, mut sizes): (impl AsyncRead + Unpin, mpsc::Receiver<Size>),
    numbers: &Numbers,
    mut pings: mpsc::UnboundedReceiver<u32>,
) -> io::Result<std::convert::Infallible> {
    let mut chunk = vec![0; CHUNK];
    let mut reading = numbers.stdin;
    loop {
        let frame = tokio::select! {
            read = stdin.read(&mut chunk), if reading.is_some() => {
                let bytes = chunk.get(..read?).unwrap_or_default();
                let stream = reading.unwrap_or_default();
                if bytes.is_empty() {
                    reading = None;
                }
                spdy::data(stream, bytes, bytes.is_empty())
            }
            Some(size) = sizes.recv(), if numbers.resize.is_some() => {
                let text = format!("{{\"Width\":{},\"Height\":{}}}\n", size.width, size.height);
                spdy::data(numbers.resize.unwrap_or_default(), text.as_bytes(), false)
            }
            Some(number) = pings.recv() => spdy::pong(number),
            else => std::future::pending().await,
        };
        to.write_all(&frame).await?;
        to.flush().await?;
    }
}

/// Receives the command's output until the runtime reports how the command ended.
async fn receive(
    mut from: impl AsyncRead + Unpin,
    (mut stdout, mut stderr): (impl AsyncWrite + Unpin, impl AsyncWrite + Unpin),
    numbers: &Numbers,
    ping: mpsc::UnboundedSender<u32>,
) -> Result<i32, ExecError> {
    let mut received = BytesMut::new();
    let mut status = Vec::new();
    loop {
        while let Some(frame) = spdy::take(&mut received) {
            match frame {
                SpdyFrame::Data { stream, bytes, .. } if stream == numbers.stdout => {
                    pass(&mut stdout, &bytes).await?;
                }
                SpdyFrame::Data { stream, bytes, .. } if Some(stream) == numbers.stderr => {
                    pass(&mut stderr, &bytes).await?;
                }
                SpdyFrame::Data { stream, bytes, fin } if stream == numbers.error => {
                    status.extend(bytes);
                    // The status can arrive in pieces. It is complete once it parses.
                    match ended(&status) {
                        None if !fin && status.len() <= STATUS => {}
                        end => return end.unwrap_or(Err(ExecError::CutOff)),
                    }
                }
                SpdyFrame::Reset { stream } if stream == numbers.error => return Err(ExecError::CutOff),
                // Fails only if `send` has ended, and then the session ends too.
                SpdyFrame::Ping(number) => drop(ping.send(number)),
                SpdyFrame::GoAway => return Err(ExecError::CutOff),
                SpdyFrame::Data { .. } | SpdyFrame::Reset { .. } | SpdyFrame::Other => {}
            }
        }
        received.reserve(ROOM);
        if from.read_buf(&mut received).await.map_err(ExecError::Stream)? == 0 {
            return Err(ExecError::CutOff);
        }
    }
}

async fn pass(to: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> Result<(), ExecError> {
    to.write_all(bytes).await.map_err(ExecError::Stream)?;
    to.flush().await.map_err(ExecError::Stream)
}

/// Returns the exit code from a Kubernetes `v1/Status`, or `None` if the status is incomplete.
fn ended(status: &[u8]) -> Option<Result<i32, ExecError>> {
    let status: Json = serde_json::from_slice(status).ok()?;
    if status["status"] == "Success" {
        return Some(Ok(0));
    }
    let causes = status["details"]["causes"].as_array().into_iter().flatten();
    let mut codes = causes.filter(|cause| cause["reason"] == "ExitCode").filter_map(|cause| cause["message"].as_str());
    let code = codes.next().and_then(|code| code.parse().ok());
    let message = || status["message"].as_str().unwrap_or("the runtime reports no cause").to_owned();
    Some(code.ok_or_else(|| ExecError::NotStarted(message())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_are_reported() {
        let failed = br#"{"metadata":{},"status":"Failure","reason":"NonZeroExitCode","details":{"causes":[{"reason":"ExitCode","message":"7"}]}}"#;
        assert!(ended(&failed[..20]).is_none());
        assert_eq!(ended(failed).unwrap().unwrap(), 7);
        assert_eq!(ended(br#"{"metadata":{},"status":"Success"}"#).unwrap().unwrap(), 0);
        let broken = br#"{"status":"Failure","reason":"InternalError","message":"no such program"}"#;
        assert_eq!(ended(broken).unwrap().unwrap_err().to_string(), "no such program");
    }
}
