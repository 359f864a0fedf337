//! `wg` with Keelway's device.

use std::path::Path;
use std::process::Command;

use super::{SECOND, on_host, ours, right};
use crate::support::{ConfigFile, End, chain, private_text, probe, public_key, reach, run, theirs, v4};

#[test]
fn wg_sees_and_sets_a_device() {
    on_host("wg::wg_sees_and_sets_a_device", || {
        let [a] = chain(1500);
        let end = End::new(1).peer(2, "10.232.0.2/32", "PersistentKeepalive = 25\nEndpoint = 192.0.2.1:1\nPresharedKey = FpCyhws9cxwWoV4xELtfJvjJN+zQVRPISllRWgeopVE=").peer(3, "10.232.0.3/32, fd32::3/128", "");
        let mut mine = ours(&a, &End::new(1));
        let name = mine.interface.clone();
        let show = || {
            let text = run("wg", &["showconf", &name]);
            let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
            lines.sort();
            lines
        };
        let config = ConfigFile::new(&end.wg_config());
        run("wg", &["setconf", &name, config.path()]);
        let after_setconf = show();
        assert!(after_setconf.iter().any(|line| line == "PersistentKeepalive = 25"));
        assert_eq!(after_setconf.iter().filter(|line| line.starts_with("Endpoint")).count(), 1, "of one peer only");
        assert_eq!(after_setconf.iter().filter(|line| line.starts_with("PresharedKey")).count(), 1, "of one peer only");
        run("wg", &["syncconf", &name, config.path()]);
        assert_eq!(show(), after_setconf, "the same again changes nothing");

        let third = public_key(3).to_string();
        run("wg", &["set", &name, "peer", &third, "persistent-keepalive", "7", "allowed-ips", "10.232.0.9/32"]);
        assert!(show().contains(&"PersistentKeepalive = 7".to_owned()));
        run("wg", &["set", &name, "peer", &third, "remove"]);
        assert_eq!(run("wg", &["show", &name, "peers"]).lines().count(), 1);
        let smaller = ConfigFile::new(&End::new(1).peer(3, "10.232.0.3/32", "").wg_config());
        run("wg", &["syncconf", &name, smaller.path()]);
        assert_eq!(run("wg", &["show", &name, "peers"]).trim(), third);
        run("wg", &["set", &name, "listen-port", "51999", "fwmark", "0x20"]);
        assert_eq!(run("wg", &["show", &name, "listen-port"]).trim(), "51999");
        assert_eq!(run("wg", &["show", &name, "fwmark"]).trim(), "0x20");
        let refused = Command::new("wg").args(["set", &name, "peer", "nonsense"]).output().unwrap();
        assert!(!refused.status.success());
        assert!(mine.process.is_running());
        let socket = format!("/var/run/wireguard/{name}.sock");
        mine.process.stop();
        assert!(!Path::new(&socket).exists(), "the socket goes with the device");
    });
}

#[test]
fn peers_may_come_before_the_private_key() {
    on_host("wg::peers_may_come_before_the_private_key", || {
        let [a, b] = chain(1500);
        let mine = ours(&a, &End::new(1));
        let _other = theirs(&b, &right(""));
        let key = public_key(2).to_string();
        run("wg", &["set", &mine.interface, "private-key", "/dev/null"]);
        run(
            "wg",
            &["set", &mine.interface, "peer", &key, "endpoint", "10.231.0.2:51820", "allowed-ips", "10.232.0.2/32"],
        );
        assert!(probe(&a, &b, v4(2), SECOND / 2).is_none());
        let private = ConfigFile::new(&private_text(1));
        run("wg", &["set", &mine.interface, "private-key", private.path()]);
        reach(&a, &b, v4(2));
    });
}
