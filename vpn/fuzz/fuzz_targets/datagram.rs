//! No datagram or packet panics, or changes a peer without authentication: `hack/fuzz.sh vpn datagram`.
#![no_main]

use std::net::SocketAddr;
use std::time::Duration;

use keelway_vpn::{ClockReading, Config, Core, CoreLimits, CoreOutput, DatagramPath, PacketRoute, PeerConfig, PrivateKey};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let now = ClockReading { elapsed: Duration::from_secs(1), unix: Duration::from_secs(1_800_000_000) };
    let private_key = Some(PrivateKey::from_bytes([1; 32]));
    let relay = PacketRoute::Relay(vec!["10.0.0.1".parse().unwrap()]);
    let config = Config { private_key, route: relay, mtu: 1420 };
    let mut core = Core::new(config, CoreLimits::default(), 0, now);
    let mut peer = PeerConfig::new(PrivateKey::from_bytes([2; 32]).public());
    peer.allowed_ips.insert("10.0.0.0/8".parse().unwrap());
    core.set_peers(&[peer].into_iter().collect(), now);
    let before: Vec<_> = core.stats().collect();
    let mut out = CoreOutput::new();
    let from = SocketAddr::from(([192, 0, 2, 1], 1));
    core.handle_datagram(DatagramPath::to(from), bytes, now, &mut out);
    assert_eq!(core.stats().collect::<Vec<_>>(), before);
    core.handle_packet_from_tunnel(bytes, now, &mut out);
    core.poll_timers(now, &mut out);
});
