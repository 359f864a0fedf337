//! Connections of the operating system whose other side may die.

use std::os::fd::AsFd;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};

/// How long a connection may be silent before the other side is asked whether it lives.
const IDLE: Duration = Duration::from_secs(2);
/// How long between two questions.
const INTERVAL: Duration = Duration::from_secs(1);
/// How many questions may go unanswered.
const QUESTIONS: u32 = 2;
/// How long what was sent may go unacknowledged.
pub const UNACKNOWLEDGED: Duration = Duration::from_secs(4);

/// Ends the connection with an error four seconds after the other side was last heard of.
pub fn keep_alive(stream: &impl AsFd) {
    let socket = SockRef::from(stream);
    let keepalive = TcpKeepalive::new().with_time(IDLE).with_interval(INTERVAL).with_retries(QUESTIONS);
    let set = socket.set_tcp_keepalive(&keepalive).and_then(|()| socket.set_tcp_user_timeout(Some(UNACKNOWLEDGED)));
    if let Err(error) = set {
        tracing::debug!(%error, "a connection cannot be watched");
    }
}
