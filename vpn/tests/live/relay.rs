//! The relay between peers.

use std::fs::Permissions;
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use keelway_vpn::{CoreLimits, PeerConfig, PeerSet, PublicKey, Relay, RelayConfig, VpnEvent};

use super::{MEGABYTE, SECOND, on_host, ours, program};
use crate::support::{
    End, Namespace, chain, private_key, probe, public_key, reach, theirs, transfer, v4, v6, wait_until,
};

/// The number of the relay, which determines its keys and its inner addresses.
pub(crate) const RELAY: u8 = 9;

/// Starts a relay for the peers 1 and 2 in this process.
pub(crate) fn relay(namespace: &Namespace) -> Relay {
    let relay = namespace.within(|| {
        Relay::start(RelayConfig {
            name: "relay".to_owned(),
            private_key: Some(private_key(RELAY)),
            listen_port: 51820,
            addresses: vec![v4(RELAY), v6(RELAY)],
            mtu: 1420,
            limits: CoreLimits::default(),
        })
        .unwrap()
    });
    relay.set_peers(&ends());
    relay
}

fn ends() -> PeerSet {
    let end = |number| {
        let mut peer = PeerConfig::new(public_key(number));
        peer.allowed_ips = [v4(number).into(), v6(number).into()].into();
        peer
    };
    [1, 2].map(end).into_iter().collect()
}

pub(crate) fn towards_relay(number: u8, relay: &str) -> End {
    let endpoint = format!("Endpoint = {relay}:51820\nPersistentKeepalive = 1");
    End::new(number).peer(RELAY, "10.232.0.0/24, fd32::/64", &endpoint)
}

pub(crate) fn wait_for_peers(relay: &Relay, count: usize) {
    wait_until("peers of the relay", SECOND * 10, || {
        relay.stats().iter().filter(|peer| peer.last_handshake.is_some()).count() == count
    });
}

#[test]
fn peers_reach_each_other_through_a_relay() {
    on_host("relay::peers_reach_each_other_through_a_relay", || {
        let [a, middle, b] = chain(1500);
        let relay = relay(&middle);
        let mut events = relay.watch();
        let _left = theirs(&a, &towards_relay(1, "10.231.0.2"));
        let _right = ours(&b, &towards_relay(2, "10.231.1.1"));
        wait_for_peers(&relay, 2);
        reach(&a, &b, v4(2));
        reach(&a, &b, v6(2));
        transfer(&a, &b, v4(2), 50 * MEGABYTE);
        transfer(&b, &a, v6(1), 50 * MEGABYTE);
        let told: Vec<VpnEvent> = std::iter::from_fn(|| events.try_recv().ok()).collect();
        for number in [1, 2] {
            let key = public_key(number);
            assert!(told.contains(&VpnEvent::HandshakeCompleted(key)));
            let seen = |event: &VpnEvent| matches!(event, VpnEvent::Roamed { peer, .. } if *peer == key);
            assert!(told.iter().any(seen), "where a peer was seen");
        }
    });
}

/// While two peers communicate, a thousand others change. The two see no handshake and lose no packet.
#[test]
fn changing_one_peer_among_a_thousand_is_seen_by_no_other() {
    on_host("relay::changing_one_peer_among_a_thousand_is_seen_by_no_other", || {
        let [a, middle, b] = chain(1500);
        let relay = relay(&middle);
        let _left = ours(&a, &towards_relay(1, "10.231.0.2"));
        let _right = ours(&b, &towards_relay(2, "10.231.1.1"));
        wait_for_peers(&relay, 2);
        let mut wanted = ends();
        let other = |number: u32| {
            let mut peer = PeerConfig::new(PublicKey([number.to_be_bytes(); 8].as_flattened().try_into().unwrap()));
            peer.allowed_ips.insert(IpAddr::from((0x0a40_0000 + number).to_be_bytes()).into());
            peer
        };
        (1..=1000).map(other).for_each(|peer| wanted.insert(peer));
        relay.set_peers(&wanted);
        reach(&a, &b, v4(2));
        let mut events = relay.watch();
        let transferring = std::thread::scope(|scope| {
            let transferring = scope.spawn(|| transfer(&a, &b, v4(2), 200 * MEGABYTE));
            for number in (1..=1000).cycle().take_while(|_| !transferring.is_finished()) {
                let mut changed = other(number);
                changed.persistent_keepalive = 1 + wanted.get(&changed.public_key).unwrap().persistent_keepalive % 9;
                wanted.insert(changed);
                assert_eq!(relay.set_peers(&wanted).len(), 1);
            }
            transferring.join().unwrap()
        });
        println!("200 MB in {transferring:?}");
        assert_eq!(std::iter::from_fn(|| events.try_recv().ok()).next(), None, "no handshake, no roaming");
        let dropped: u64 = relay.stats().iter().map(|peer| peer.dropped_packets).sum();
        assert_eq!(dropped, 0);
    });
}

#[test]
fn a_relay_needs_no_privilege() {
    on_host("relay::a_relay_needs_no_privilege", || {
        let [a, middle, b] = chain(1500);
        let nobody = ["--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all", "--bounding-set=-all"];
        // The user without privilege can read it there, even if that user cannot read the checkout.
        let directory = tempfile::Builder::new().permissions(Permissions::from_mode(0o755)).tempdir_in("/run").unwrap();
        let copy = directory.path().join("keelway-vpn");
        std::fs::copy(program(), &copy).unwrap();
        let config = directory.path().join("relay.conf");
        let end = End::new(RELAY).peer(1, "10.232.0.1/32", "").peer(2, "10.232.0.2/32", "");
        std::fs::write(&config, end.quick_config()).unwrap();
        std::os::unix::fs::chown(&config, Some(65534), Some(65534)).unwrap();
        std::fs::set_permissions(&config, Permissions::from_mode(0o600)).unwrap();
        let run = [copy.to_str().unwrap(), "relay", "relay", "--config", config.to_str().unwrap()];
        let relay = middle.spawn(Path::new("setpriv"), &[&nobody[..], &run].concat(), &[]);
        let _left = ours(&a, &towards_relay(1, "10.231.0.2"));
        let _right = ours(&b, &towards_relay(2, "10.231.1.1"));
        wait_until("a way through", SECOND * 20, || probe(&a, &b, v4(2), SECOND / 2).is_some());
        transfer(&a, &b, v4(2), 20 * MEGABYTE);
        let status = std::fs::read_to_string(format!("/proc/{}/status", relay.id())).unwrap();
        let capabilities = status.lines().find(|line| line.starts_with("CapEff:")).unwrap();
        assert!(capabilities.ends_with("0000000000000000"), "{capabilities}");
    });
}
