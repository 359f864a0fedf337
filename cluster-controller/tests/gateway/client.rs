//! Does what an API server does: CONNECT over a Unix socket.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::support::wait_until;
use crate::{ANSWER, PATIENCE};

/// The response to a CONNECT.
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// The line with the reason of a refusal.
    pub(crate) why: String,
    pub(crate) took: Duration,
    stream: UnixStream,
}

impl Answer {
    /// Returns the stream of an accepted CONNECT.
    pub(crate) fn tunnel(self) -> UnixStream {
        assert_eq!(self.status, 200, "{}", self.why);
        self.stream
    }
}

/// Requests a tunnel. The response must arrive within [`ANSWER`].
pub(crate) fn connect(socket: &Path, target: &str) -> Answer {
    let started = Instant::now();
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(stream, "CONNECT {target} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n").unwrap();
    // Reads byte by byte, because what follows the head belongs to the tunnel.
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap_or_else(|error| panic!("{target}: no answer: {error}"));
        head.push(byte[0]);
    }
    let took = started.elapsed();
    assert!(took < ANSWER, "{target}: answered after {took:?}");
    let (status, length) = read_head(&String::from_utf8(head).unwrap());
    let mut why = vec![0; if status == 200 { 0 } else { length }];
    stream.read_exact(&mut why).unwrap();
    let why = String::from_utf8(why).unwrap().trim().to_owned();
    assert_eq!(why.lines().count(), usize::from(status != 200), "one line of reason: {why:?}");
    Answer { status, why, took, stream }
}

/// Requests a tunnel until one is opened.
pub(crate) fn connect_soon(socket: &Path, target: &str) -> UnixStream {
    let mut tunnel = None;
    wait_until(target, PATIENCE, || {
        let answer = connect(socket, target);
        if answer.status == 200 {
            tunnel = Some(answer.tunnel());
        }
        tunnel.is_some()
    });
    tunnel.unwrap()
}

/// Sends bytes through a tunnel to an echo server, and expects them back.
pub(crate) fn ping(stream: &mut UnixStream) {
    stream.write_all(b"question").unwrap();
    let mut answer = [0; 8];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"question");
}

/// Waits until a tunnel is reset or closed. Returns how long that took.
pub(crate) fn cut_off(stream: &mut UnixStream, patience: Duration) -> Duration {
    let started = Instant::now();
    stream.set_read_timeout(Some(patience)).unwrap();
    match stream.read(&mut [0; 64]) {
        Ok(0) => started.elapsed(),
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => started.elapsed(),
        other => panic!("the tunnel is still there: {other:?}"),
    }
}

fn read_head(head: &str) -> (u16, usize) {
    let mut lines = head.lines();
    let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
    let length = lines.find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse().unwrap())
    });
    (status, length.unwrap_or(0))
}

/// Sends a plain GET. Returns status and body.
pub(crate) fn get(mut stream: impl Read + Write, path: &str) -> (u16, String) {
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        assert_ne!(reader.read_line(&mut head).unwrap(), 0, "{head}");
    }
    let (status, length) = read_head(&head);
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    (status, String::from_utf8(body).unwrap())
}
