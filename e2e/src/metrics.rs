//! Metrics of components.

use std::{
    io::{self, Read, Write},
    os::unix::{
        fs::{FileTypeExt, MetadataExt},
        net::UnixStream,
    },
    path::Path,
};

/// Reads all metrics from a socket. Fails the test unless only this user can access the socket.
pub fn read(socket: &Path, user: u32) -> String {
    let found = socket.symlink_metadata().unwrap();
    assert!(found.file_type().is_socket(), "{}", socket.display());
    assert_eq!((found.uid(), found.mode() & 0o777), (user, 0o600), "{}", socket.display());
    get(socket, "/metrics").unwrap()
}

/// Sends a `GET` to a Unix socket and returns the response.
pub fn get(socket: &Path, path: &str) -> io::Result<String> {
    ask(&mut UnixStream::connect(socket)?, path)
}

/// Sends a `GET` on this connection and returns the response.
pub fn ask(stream: &mut (impl Read + Write), path: &str) -> io::Result<String> {
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}

/// Returns the sum of a metric, or of its samples whose first labels are these: `requests_total{decision="Approved"`.
pub fn sum(text: &str, metric: &str) -> u64 {
    let is_its = |line: &&str| line.strip_prefix(metric).is_some_and(|rest| rest.starts_with([' ', '{', ',']));
    text.lines().filter(is_its).map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_series_with_the_labels_are_summed() {
        let text =
            "# TYPE a counter\na_total{b=\"1\",c=\"2\"} 3\na_total{b=\"2\",c=\"2\"} 4\na_total_more 8\nleading 1\n";
        assert_eq!(sum(text, "a_total"), 7);
        assert_eq!(sum(text, "a_total{b=\"2\""), 4);
        assert_eq!(sum(text, "leading"), 1);
        assert_eq!(sum(text, "none"), 0);
    }
}
