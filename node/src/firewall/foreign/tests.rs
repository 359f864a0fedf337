//! Rules as other programs write them, read from the kernel. Without root, the tests do nothing.

use std::{io::Write, net::IpAddr};

use rustix::thread::UnshareFlags;

use super::{
    super::{FirewallNames, clear, names},
    *,
};
use crate::isolated::{run, within};

/// What Docker writes, as of version 28.
const DOCKER: &str = "
table ip filter {
    chain FORWARD { type filter hook forward priority 0; policy drop;
        counter jump DOCKER-USER
        counter jump DOCKER-FORWARD
    }
    chain DOCKER-USER { }
    chain DOCKER-FORWARD {
        oifname docker0 ct state established,related counter accept
        iifname docker0 counter accept
    }
}";
const INTERFACES: [&str; 2] = ["cni0", "keelway*"];

fn packet(input: &str, output: &str) -> ProbePacket {
    let address = |text: &str| -> IpAddr { text.parse().unwrap() };
    let way = if output.is_empty() { ProbeWay::Delivered } else { ProbeWay::Forwarded };
    ProbePacket {
        what: "from pods",
        way,
        input: input.to_owned(),
        output: output.to_owned(),
        source: address("10.244.3.7"),
        destination: address("10.244.9.7"),
        port: 10250,
    }
}

/// Returns what drops a packet from pods to a tunnel, `CHAIN` or `CHAIN rule`, for each of these rulesets.
fn dropped(packet: &ProbePacket, rulesets: &[&str]) -> Vec<String> {
    let mut found = Vec::new();
    within(UnshareFlags::NEWNET, || {
        for rules in rulesets {
            run("nft", &[&format!("flush ruleset; {rules}")]);
            let chain = ForeignRules::read().unwrap().unwrap().dropping_chain(packet);
            found.push(
                chain.map_or_else(String::new, |chain| chain.chain + if chain.rule.is_some() { " rule" } else { "" }),
            );
        }
    });
    found
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[test]
fn a_policy_or_a_rule_that_drops_is_found() {
    if !is_root() {
        return;
    }
    let forward = |rules: &str| {
        format!(
            "table inet t {{ set own {{ type ifname; elements = {{ cni0, eth0 }}; }}; chain other {{ ip saddr 10.0.0.0/8 drop; }}; chain f {{ type filter hook forward priority 10; {rules} }}; }}"
        )
    };
    let dropping = [
        "policy drop;",
        "policy drop; iifname docker0 accept; ct state established,related accept;",
        "ct state { new, invalid } drop;",
        "ct state vmap { established : accept, new : drop };",
        "iifname @own reject;",
        "iifname != \\\"docker*\\\" drop;",
        "tcp dport 10000-11000 drop;",
        "tcp dport { 22, 10000-11000 } jump other;",
        "ip saddr != 10.244.3.0/24 accept; goto other;",
        "meta nfproto ipv4 meta l4proto { tcp, udp } counter drop;",
        "jump other; accept;",
    ]
    .map(|rules| forward(&rules.replace('\\', "")));
    let rulesets: Vec<&str> = dropping.iter().map(String::as_str).collect();
    let found = dropped(&packet("cni0", "keelway0"), &rulesets);
    let expected = [
        "f",
        "f",
        "f rule",
        "f rule",
        "f rule",
        "f rule",
        "f rule",
        "other rule",
        "other rule",
        "f rule",
        "other rule",
    ];
    assert_eq!(found, expected.map(|chain| format!("inet t {chain}")));
}

#[test]
fn passing_and_unknown_rules_raise_no_alarm() {
    if !is_root() {
        return;
    }
    let forward = |rules: &str| {
        format!(
            "table ip t {{ chain back {{ meta mark 7 return; }}; chain f {{ type filter hook forward priority 10; policy drop; {rules} }}; }}"
        )
    };
    let passing = [
        "iifname cni0 accept;",
        "oifname keelway0 accept;",
        "ct state new accept;",
        "meta mark 7 accept;",
        "meta mark 7 jump back; accept;",
        "limit rate 1/second accept;",
        "ip ttl 64 accept;",
        "tcp sport 1024-65535 accept;",
        "meta mark vmap { 7 : drop, 8 : accept };",
        "iifname vmap { docker0 : drop, cni0 : accept };",
        "ip saddr @none accept; meta mark 7 drop; accept;",
        "fib daddr type unicast fib saddr type unicast accept;",
        "fib daddr type local drop; fib daddr . iif type local drop; accept;",
    ]
    .map(|rules| forward(rules).replace("chain back", "set none { type ipv4_addr; }; chain back"));
    let rulesets: Vec<&str> = passing.iter().map(String::as_str).collect();
    assert_eq!(dropped(&packet("cni0", "keelway0"), &rulesets), [""; 13]);
    // Without the rule, the policy drops the packet.
    assert_eq!(dropped(&packet("cni0", "keelway0"), &[&forward("")]), ["ip t f"]);
}

#[test]
fn packets_to_the_worker_pass_through_other_chains() {
    if !is_root() {
        return;
    }
    let input = "table inet t { chain i { type filter hook input priority 0; policy drop; iifname lo accept; tcp dport 22 accept; }; }";
    let raw = "table ip raw { chain p { type filter hook prerouting priority -300; tcp dport 10250 drop; }; }";
    assert_eq!(dropped(&packet("keelway0", ""), &[input, raw, DOCKER]), ["inet t i", "ip raw p rule", ""]);
    assert_eq!(dropped(&packet("keelway0", "cni0"), &[input, raw, DOCKER]), ["", "ip raw p rule", "ip filter FORWARD"]);
}

#[test]
fn the_workers_packets_are_accepted_in_dockers_chain_until_it_leaves() {
    let interfaces = INTERFACES.map(str::to_owned);
    let read = || ForeignRules::read().unwrap().unwrap();
    let drops = |rules: &ForeignRules| rules.dropping_chain(&packet("keelway3", "cni0")).is_some();
    within(UnshareFlags::NEWNET, || {
        for earlier in [
            "",
            "add rule ip filter DOCKER-USER counter return",
            "add rule ip filter DOCKER-USER ip saddr 192.0.2.1 drop",
        ] {
            run("nft", &[&format!("flush ruleset; {DOCKER}\n{earlier}")]);
            let before = run("nft", &["list", "ruleset"]);
            let kept: FirewallNames = names().unwrap();
            assert!(drops(&read()) && !drops(&read().admitted_in_docker(&interfaces)));
            assert!(read().admit_in_docker(&interfaces).unwrap());
            assert!(!drops(&read()), "{}", run("nft", &["list", "ruleset"]));
            assert!(!read().admit_in_docker(&interfaces).unwrap(), "nothing is missing");
            // Another program removes one of the rules.
            let handles = run("nft", &["-a", "list", "chain", "ip", "filter", "DOCKER-USER"]);
            let first = handles.lines().find(|line| line.contains("keelway-node")).unwrap();
            let handle = first.rsplit(' ').next().unwrap();
            run("nft", &["delete", "rule", "ip", "filter", "DOCKER-USER", "handle", handle]);
            assert!(read().admit_in_docker(&interfaces).unwrap() && !drops(&read()));
            clear(&kept).unwrap();
            assert_eq!(run("nft", &["list", "ruleset"]), before);
        }
    });
}

#[test]
fn rules_of_dockers_user_come_first() {
    let interfaces = INTERFACES.map(str::to_owned);
    within(UnshareFlags::NEWNET, || {
        run("nft", &[&format!("{DOCKER}\nadd rule ip filter DOCKER-USER iifname keelway3 drop")]);
        let rules = ForeignRules::read().unwrap().unwrap();
        assert!(rules.admit_in_docker(&interfaces).unwrap());
        let rules = ForeignRules::read().unwrap().unwrap();
        let chain = rules.dropping_chain(&packet("keelway3", "cni0")).unwrap();
        assert_eq!((chain.chain.as_str(), chain.rule.is_some()), ("ip filter DOCKER-USER", true));
    });
}

#[test]
fn each_change_has_another_generation() {
    within(UnshareFlags::NEWNET, || {
        let before = generation().unwrap();
        assert_eq!(generation(), Some(before));
        run("nft", &["add table ip t"]);
        assert_ne!(generation(), Some(before));
    });
}

/// What ufw 0.36.2 of Debian 12 writes after `ufw allow 22/tcp` and `ufw enable`, as nftables and `iptables-save` list it.
const UFW: [&str; 2] = [include_str!("recorded/ufw.nft"), include_str!("recorded/ufw.iptables-save")];
/// The packets that ufw drops, and the chains that do.
const DROPPED_BY_UFW: [((&str, &str), &str); 4] = [
    (("cni0", "keelway0"), "FORWARD"),
    (("keelway0", "cni0"), "FORWARD"),
    (("cni0", "eth0"), "FORWARD"),
    (("keelway0", ""), "INPUT"),
];

#[test]
fn rules_of_ufw_drop_packets_until_the_interfaces_are_accepted() {
    if !is_root() {
        return;
    }
    let [listed, saved] = UFW;
    for ((input, output), chain) in DROPPED_BY_UFW {
        let packet = packet(input, output);
        // The commands that the error names.
        let accept = |interface: &str| format!("insert rule ip filter {chain} iifname {interface} counter accept\n");
        let accepted = format!("{listed}\n{}{}", accept("cni0"), accept("keelway*"));
        assert_eq!(
            dropped(&packet, &[listed, &accepted]),
            [format!("ip filter {chain}"), String::new()],
            "{input} {output}"
        );

        // `iptables` stores some of these rules in another form.
        if let Some(restored) = restored_by_iptables(saved, &packet) {
            assert_eq!(restored, format!("ip filter {chain}"), "{input} {output}");
        }
        let legacy = |rules: &str| dropping_chain(&legacy::ruleset("iptables-legacy", rules), &packet);
        let found = legacy(saved).unwrap();
        assert_eq!((found.chain.as_str(), found.rule), (format!("iptables-legacy filter {chain}").as_str(), None));
        let first = format!("-A {chain} -j ufw-before-logging-");
        let accept = |interface: &str| format!("-A {chain} -i {interface} -j ACCEPT\n");
        let accepted = saved.replace(&first, &format!("{}{}{first}", accept("cni0"), accept("keelway+")));
        assert_eq!(legacy(&accepted), None, "{input} {output}");
    }
}

/// Returns what drops a packet once `iptables-nft` has restored these rules. `None` if the machine lacks this program.
fn restored_by_iptables(saved: &str, packet: &ProbePacket) -> Option<String> {
    let mut found = None;
    within(UnshareFlags::NEWNET, || {
        let restore = std::process::Command::new("iptables-nft-restore").stdin(std::process::Stdio::piped()).spawn();
        let Ok(mut restore) = restore else { return };
        restore.stdin.take().unwrap().write_all(saved.as_bytes()).unwrap();
        assert!(restore.wait().unwrap().success());
        let chain = ForeignRules::read().unwrap().unwrap().dropping_chain(packet);
        found = Some(chain.map_or_else(String::new, |chain| chain.chain));
    });
    found
}

/// What firewalld 1.3.3 of Debian 12 writes, before and after the command that the error names.
const FIREWALLD: [&str; 2] = [include_str!("recorded/firewalld.nft"), include_str!("recorded/firewalld-trusted.nft")];

#[test]
fn rules_of_firewalld_drop_packets_until_the_interfaces_are_trusted() {
    if !is_root() {
        return;
    }
    for (input, output) in [("cni0", "keelway0"), ("keelway3", "cni0")] {
        let expected = ["inet firewalld filter_FWD_public rule", ""];
        assert_eq!(dropped(&packet(input, output), &FIREWALLD), expected, "{input} {output}");
    }
    assert_eq!(dropped(&packet("keelway0", ""), &FIREWALLD), ["inet firewalld filter_IN_public rule", ""]);
}

/// What `iptables` writes is read, too, if the machine has this program.
#[test]
fn rules_of_iptables_are_read() {
    if std::process::Command::new("iptables-nft").arg("--version").output().is_err() {
        return;
    }
    within(UnshareFlags::NEWNET, || {
        let iptables = |arguments: &str| {
            run("iptables-nft", &arguments.split(' ').collect::<Vec<_>>());
        };
        let drops = || ForeignRules::read().unwrap().unwrap().dropping_chain(&packet("cni0", "keelway0")).is_some();
        iptables("-P FORWARD DROP");
        iptables("-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT");
        iptables("-A FORWARD -i docker0 -m comment --comment own -j ACCEPT");
        assert!(drops());
        iptables("-A FORWARD -m conntrack --ctstate NEW -i cni0 -j ACCEPT");
        assert!(!drops());
        iptables("-I FORWARD -m addrtype --dst-type LOCAL -j REJECT");
        iptables("-I FORWARD -m addrtype ! --dst-type UNICAST -j REJECT");
        assert!(!drops());
        iptables("-I FORWARD -m addrtype ! --src-type LOCAL --dst-type UNICAST,BROADCAST -j REJECT");
        assert!(drops());
        iptables("-D FORWARD 1");
        iptables("-I FORWARD -p tcp -m tcp --dport 10250 -j REJECT");
        assert!(drops());
    });
}

/// Docker's rules and one of the machine's owner, in the form of `iptables-legacy-save`.
const LEGACY: &str = "# Generated by iptables-save v1.8.9 on Fri Nov 27 08:25:02 2026
*nat
:PREROUTING ACCEPT [0:0]
:DOCKER - [0:0]
-A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER
COMMIT
*filter
:INPUT ACCEPT [0:0]
:FORWARD DROP [0:0]
:OUTPUT ACCEPT [0:0]
:DOCKER-USER - [0:0]
-A INPUT ! -i lo -p tcp -m tcp --dport 10250 -m comment --comment \"no \\\"kubelet\\\" here\" -j REJECT --reject-with icmp-port-unreachable
-A FORWARD -j DOCKER-USER
-A FORWARD -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A FORWARD -i docker0 ! -o docker0 -j ACCEPT
-A DOCKER-USER -j RETURN
COMMIT
";

#[test]
fn rules_of_iptables_legacy_are_followed() {
    let dropping = |rules: &str, packet: &ProbePacket| {
        let chain = dropping_chain(&legacy::ruleset("iptables-legacy", rules), packet);
        chain.map_or_else(String::new, |chain| format!("{} {:?}", chain.chain, chain.rule))
    };
    let policy = "iptables-legacy filter FORWARD None";
    assert_eq!(dropping(LEGACY, &packet("cni0", "keelway0")), policy);
    assert_eq!(dropping(LEGACY, &packet("docker0", "eth0")), "");
    assert_eq!(dropping(LEGACY, &packet("keelway0", "")), "iptables-legacy filter INPUT Some(1)");
    let user = |rule: &str| LEGACY.replace("-A DOCKER-USER -j RETURN", &format!("-A DOCKER-USER {rule}"));
    for (rule, dropped) in [
        ("-i cni0 -j ACCEPT", ""),
        ("-i cni+ -m conntrack --ctstate NEW -j ACCEPT", ""),
        ("-i cni0 -m conntrack --ctstate ESTABLISHED -j ACCEPT", policy),
        ("-s 10.244.0.0/16 -p tcp -m multiport --dports 80,10000:10250 -j ACCEPT", ""),
        ("! -d 10.244.0.0/16 -j ACCEPT", policy),
        ("-m mark --mark 0x1 -j ACCEPT", ""),
        ("-m mark --mark 0x1 -j DROP", policy),
        ("-j NFQUEUE --queue-num 7", ""),
        ("-j LOG", policy),
        ("-i cni0 -j DROP", "iptables-legacy filter DOCKER-USER Some(1)"),
    ] {
        assert_eq!(dropping(&user(rule), &packet("cni0", "keelway0")), dropped, "{rule}");
    }
}

/// The kernel of the machine may not have them.
#[test]
fn rules_of_iptables_legacy_are_read_from_the_kernel() {
    within(UnshareFlags::NEWNET, || {
        let set = |rule: &[&str]| std::process::Command::new("iptables-legacy").args(rule).status();
        assert!(!LegacyTables::observe().can_drop());
        if !set(&["-P", "FORWARD", "DROP"]).is_ok_and(|status| status.success()) {
            return;
        }
        assert!(LegacyTables::observe().can_drop());
        let rules = ForeignRules::read().unwrap().unwrap();
        let found = rules.dropping_chain(&packet("cni0", "keelway0")).unwrap();
        assert_eq!(found, DroppingChain { chain: "iptables-legacy filter FORWARD".to_owned(), rule: None });
        assert!(!rules.has_unlisted);
    });
}
