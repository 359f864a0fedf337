//! The kernel's buffers of a gateway's sockets.

use keelway_vpn::KernelBuffers;
use socket2::SockRef;
use tokio::net::TcpStream;

/// The send buffer of a connection to an egress, in bytes. The kernel grows a buffer up to several MiB otherwise, which count as memory of the gateway
/// while the client does not read. It is enough for 500 Mbit/s at a round trip of 1 ms, as in a private network.
const SEND_BUFFER: usize = 64 * 1024;

/// Bounds the send buffer of a connection to an egress.
pub(super) fn bound(stream: &TcpStream) {
    if let Err(error) = SockRef::from(stream).set_send_buffer_size(SEND_BUFFER) {
        tracing::debug!(%error, "cannot bound the send buffer of a connection");
    }
}

/// Logs the buffers of the WireGuard port, if the machine limits them.
pub(super) fn report(buffers: KernelBuffers) {
    if let Some(text) = limited(buffers) {
        tracing::warn!("{text}");
    }
}

fn limited(buffers: KernelBuffers) -> Option<String> {
    let KernelBuffers { receive, send, wanted } = buffers;
    let limits = [("net.core.rmem_max", receive), ("net.core.wmem_max", send)];
    let limits: Vec<String> = limits
        .into_iter()
        .filter(|(_, bytes)| *bytes < wanted)
        .map(|(name, bytes)| format!("{name}={wanted} (the buffer has {bytes} bytes)"))
        .collect();
    let settings = limits.join(" and ");
    (!limits.is_empty()).then(|| {
        format!("the machine limits the socket buffers of WireGuard, so bursts lose packets; set with sysctl on the machine: {settings}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_of_the_machine_names_its_setting() {
        let wanted = 4 << 20;
        assert_eq!(limited(KernelBuffers { receive: wanted, send: wanted, wanted }), None);
        let text = limited(KernelBuffers { receive: 212_992, send: wanted, wanted }).unwrap();
        assert!(text.contains("net.core.rmem_max=4194304 (the buffer has 212992 bytes)"), "{text}");
        assert!(!text.contains("wmem"), "{text}");
        let text = limited(KernelBuffers { receive: 212_992, send: 212_992, wanted }).unwrap();
        assert!(text.contains("rmem_max") && text.contains("wmem_max"), "{text}");
    }
}
