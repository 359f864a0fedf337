//! TCP keepalive for connections of the operating system.

use std::os::fd::AsFd;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};

/// How long a connection may be idle before the kernel sends the first probe.
const IDLE: Duration = Duration::from_secs(2);
/// The interval between two probes.
const INTERVAL: Duration = Duration::from_secs(1);
/// The number of probes that may remain unanswered.
const QUESTIONS: u32 = 2;
/// How long sent data may remain unacknowledged.
pub const UNACKNOWLEDGED: Duration = Duration::from_secs(4);

/// Ends the connection with an error four seconds after the other side last responded.
pub fn keep_alive(stream: &impl AsFd) {
    keep_alive_within(stream, UNACKNOWLEDGED);
}

/// As [`keep_alive`], but the other side may be silent for this long.
pub fn keep_alive_within(stream: &impl AsFd, silence: Duration) {
    let socket = SockRef::from(stream);
    let keepalive = TcpKeepalive::new().with_time(IDLE).with_interval(INTERVAL).with_retries(QUESTIONS);
    let set = socket.set_tcp_keepalive(&keepalive).and_then(|()| socket.set_tcp_user_timeout(Some(silence)));
    if let Err(error) = set {
        tracing::debug!(%error, "cannot enable keepalive probes of a connection");
    }
}
