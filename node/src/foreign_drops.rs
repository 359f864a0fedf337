//! The worker's packets that firewalls of other programs drop, what to do about it, and what the worker accepts itself.

use std::{net::IpAddr, time::Duration};

use ipnet::IpNet;
use keelway_api::worker::ClusterInformation;
use tokio::{
    sync::watch,
    task::spawn_blocking,
    time::{Instant, MissedTickBehavior, interval},
};

use crate::{
    changes::BRIDGE,
    checks::CheckFault,
    facts,
    findings::{log_once, replace_findings},
    firewall::{self, DroppingChain, FirewallError, ForeignRules, LegacyTables, ProbePacket, ProbeWay},
    information::TrustedInformation,
    peer::PeerAssignment,
    tunnels,
};

const LOOK_EVERY: Duration = Duration::from_secs(10);
/// The interval at which rules of `iptables-legacy` are listed, if there are any.
const LEGACY_EVERY: Duration = Duration::from_secs(60);
/// Text for people.
const UNLISTED: &str = "this machine has rules of iptables-legacy, and no program that lists them (iptables-legacy-save): whether they drop packets of pods is found only once pods run";
/// The ports of HTTP, which represents any port, and of the kubelet.
const HTTP: u16 = 80;
const KUBELET: u16 = 10250;
/// Addresses on the internet, for packets that leave the cluster.
const INTERNET: [&str; 2] = ["1.1.1.1", "2606:4700:4700::1111"];

/// A packet that a firewall drops.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ForeignDrop {
    what: &'static str,
    /// Whether pods are cut off from the cluster.
    cuts_off: bool,
    chain: DroppingChain,
}

/// A packet that must pass, and whether pods are cut off without it. The owner of a machine may not want packets to the internet.
#[derive(Debug)]
struct NeededPacket {
    packet: ProbePacket,
    cuts_off: bool,
}

impl ForeignDrop {
    pub(crate) fn fault(&self) -> CheckFault {
        let chain = &self.chain.chain;
        let by = match (self.chain.rule, self.is_legacy()) {
            (Some(place), true) => format!("rule {place} of the chain {chain}"),
            (None, true) => format!("the policy of the chain {chain}"),
            (Some(handle), false) => format!("the rule with handle {handle} of the nftables chain {chain}"),
            (None, false) => format!("the policy of the nftables chain {chain}"),
        };
        CheckFault::new(format!("{by} drops packets {}", self.what), self.help())
    }

    /// Whether the chain is one of `iptables-legacy` or `ip6tables-legacy`.
    fn is_legacy(&self) -> bool {
        self.chain.chain.split(' ').next().is_some_and(|family| family.ends_with("-legacy"))
    }

    /// Returns what is dropped, and what to do.
    pub(crate) fn text(&self) -> String {
        let fault = self.fault();
        format!("{}; {}", fault.problem, fault.help)
    }

    fn help(&self) -> String {
        let (tunnels, chain) = (tunnels::INTERFACE, &self.chain.chain);
        let is_input = self.what == TO_KUBELET || self.what == TO_API;
        if chain.contains(" firewalld ") {
            return format!(
                "sudo firewall-cmd --permanent --zone=trusted --add-interface={BRIDGE} --add-interface={tunnels}+ && sudo firewall-cmd --reload"
            );
        }
        match chain.split(' ').next() {
            Some(family) if chain.contains(" filter ") && family != "inet" => {
                let program = match family {
                    "ip" => "iptables",
                    "ip6" => "ip6tables",
                    legacy => legacy,
                };
                let hook = if is_input { "INPUT" } else { "FORWARD" };
                let each = if is_input { vec!["-i"] } else { vec!["-i", "-o"] };
                let interfaces = [BRIDGE.to_owned(), format!("{tunnels}+")];
                let commands = interfaces.iter().flat_map(|interface| {
                    each.iter().map(move |option| format!("sudo {program} -I {hook} {option} {interface} -j ACCEPT"))
                });
                commands.collect::<Vec<_>>().join(" && ")
            }
            _ => format!("accept packets from and to the interfaces {BRIDGE} and {tunnels}* there"),
        }
    }
}

const TO_WORKERS: &str = "from pods to other workers";
const FROM_WORKERS: &str = "from other workers to pods";
const TO_INTERNET: &str = "from pods to the internet";
const TO_KUBELET: &str = "from API servers to the kubelet";
const TO_API: &str = "from pods to the API";

/// Returns packets that a worker of this cluster depends on, of each address family of its pods. If the cluster has its own CNI plugins, their
/// interfaces are not known.
fn needed_packets(
    cluster: &ClusterInformation,
    assignment: &PeerAssignment,
    uplink: Option<&str>,
) -> Vec<NeededPacket> {
    let mut packets = Vec::new();
    for vpn in &cluster.vpn_cidrs {
        let is_v4 = vpn.addr().is_ipv4();
        let pods = cluster.pod_cidrs.iter().find(|range| range.addr().is_ipv4() == is_v4);
        let own_pods = assignment.pod_cidrs.iter().find(|range| range.addr().is_ipv4() == is_v4).or(pods);
        let worker = assignment.address(is_v4).unwrap_or_else(|| address(vpn, 17));
        let tunnel = format!("{}0", tunnels::INTERFACE);
        let mut need = |what, (input, output): (&str, &str), (source, destination), port, cuts_off| {
            let way = if output.is_empty() { ProbeWay::Delivered } else { ProbeWay::Forwarded };
            let (input, output) = (input.to_owned(), output.to_owned());
            let packet = ProbePacket { what, way, input, output, source, destination, port };
            packets.push(NeededPacket { packet, cuts_off });
        };
        need(TO_KUBELET, (&tunnel, ""), (address(vpn, 2), worker), KUBELET, true);
        let Some((pods, own_pods)) = pods.zip(own_pods).filter(|_| cluster.cni.enabled) else { continue };
        let (own, other) = (address(own_pods, 7), pods.broadcast());
        need(TO_WORKERS, (BRIDGE, &tunnel), (own, other), HTTP, true);
        need(FROM_WORKERS, (&tunnel, BRIDGE), (other, own), HTTP, true);
        for api in cluster.api.addresses.iter().filter(|api| api.is_ipv4() == is_v4) {
            need(TO_API, (BRIDGE, ""), (own, *api), cluster.api.port, true);
        }
        let internet = INTERNET.iter().filter_map(|text| text.parse().ok()).find(|to: &IpAddr| to.is_ipv4() == is_v4);
        if let Some((uplink, internet)) = uplink.zip(internet) {
            need(TO_INTERNET, (BRIDGE, uplink), (own, internet), HTTP, false);
        }
    }
    packets
}

/// Returns an address of a range by its number.
fn address(range: &IpNet, number: u8) -> IpAddr {
    match range.network() {
        IpAddr::V4(first) => (first.to_bits() | u32::from(number)).to_be_bytes().into(),
        IpAddr::V6(first) => (first.to_bits() | u128::from(number)).to_be_bytes().into(),
    }
}

/// Returns what the rules drop for certain.
fn drops(rules: &ForeignRules, needed: &[NeededPacket]) -> Vec<ForeignDrop> {
    let dropped = needed.iter().filter_map(|needed| {
        let chain = rules.dropping_chain(&needed.packet)?;
        Some(ForeignDrop { what: needed.packet.what, cuts_off: needed.cuts_off, chain })
    });
    dropped.collect()
}

/// Returns the texts of those that cut off pods.
pub(crate) fn cut_off(drops: &[ForeignDrop]) -> Vec<String> {
    drops.iter().filter(|drop| drop.cuts_off).map(ForeignDrop::text).collect()
}

fn own_interfaces() -> [String; 2] {
    [BRIDGE.to_owned(), format!("{}*", tunnels::INTERFACE)]
}

/// Returns a fault for what other firewalls will drop after the join, and logs what the worker will accept itself.
pub(crate) fn check(cluster: &ClusterInformation) -> Result<Vec<CheckFault>, FirewallError> {
    let Some(rules) = ForeignRules::read()? else { return Ok(vec![]) };
    let needed = needed_packets(cluster, &PeerAssignment::default(), facts::uplinks().first().map(String::as_str));
    let before = drops(&rules, &needed);
    if rules.has_unlisted {
        tracing::warn!("{UNLISTED}");
    }
    let after =
        if cluster.cni.enabled { drops(&rules.admitted_in_docker(&own_interfaces()), &needed) } else { before.clone() };
    for repaired in before.iter().filter(|drop| !after.contains(drop)) {
        let problem = repaired.fault().problem;
        tracing::warn!("{problem}; the worker accepts them in the chain DOCKER-USER");
    }
    for other in after.iter().filter(|drop| !drop.cuts_off) {
        tracing::warn!("{}", other.text());
    }
    Ok(after.iter().filter(|drop| drop.cuts_off).map(ForeignDrop::fault).collect())
}

/// What other firewalls drop.
struct ObservedDrops {
    drops: Vec<ForeignDrop>,
    /// Whether rules exist that no program lists.
    has_unlisted: bool,
}

/// Accepts the worker's packets where that is enough, and returns what other firewalls drop nevertheless. `None`: the rules changed meanwhile.
fn repair(cluster: &ClusterInformation, assignment: &PeerAssignment) -> Result<Option<ObservedDrops>, FirewallError> {
    let Some(mut rules) = ForeignRules::read()? else { return Ok(None) };
    if cluster.cni.enabled && rules.admit_in_docker(&own_interfaces())? {
        tracing::info!("accepted the worker's packets in the chain DOCKER-USER");
        let Some(after) = ForeignRules::read()? else { return Ok(None) };
        rules = after;
    }
    let needed = needed_packets(cluster, assignment, facts::uplinks().first().map(String::as_str));
    Ok(Some(ObservedDrops { drops: drops(&rules, &needed), has_unlisted: rules.has_unlisted }))
}

/// The facts on which the meaning of other programs' rules depends.
#[derive(Debug, Clone, PartialEq, Eq)]
struct RulesFacts {
    generation: Option<u32>,
    legacy: LegacyTables,
    cluster: ClusterInformation,
    assignment: PeerAssignment,
}

impl RulesFacts {
    /// Whether nothing has changed. The kernel does not count changes of rules of `iptables-legacy`.
    fn is_settled(&self, before: &Self, since: Duration) -> bool {
        self.generation.is_some() && self == before && (!self.legacy.can_drop() || since < LEGACY_EVERY)
    }
}

/// Repairs and reports after each change of the rules or the cluster.
pub(crate) async fn follow(
    known: &watch::Sender<TrustedInformation>,
    assignment: &watch::Sender<PeerAssignment>,
    found: &watch::Sender<Vec<ForeignDrop>>,
) {
    let mut turns = interval(LOOK_EVERY);
    turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut last, mut fault, mut has_unlisted) = (None, None, false);
    loop {
        turns.tick().await;
        let now = RulesFacts {
            generation: firewall::generation(),
            legacy: LegacyTables::observe(),
            cluster: known.borrow().cluster.clone(),
            assignment: assignment.borrow().clone(),
        };
        if last.as_ref().is_some_and(|(before, at)| now.is_settled(before, Instant::now().duration_since(*at))) {
            continue;
        }
        let (looked, facts) = (Instant::now(), now.clone());
        let Ok(observed) = spawn_blocking(move || repair(&facts.cluster, &facts.assignment)).await else { return };
        let observed = observed.map(|observed| {
            let Some(observed) = observed else { return };
            replace_findings(found, observed.drops, log);
            if observed.has_unlisted && !std::mem::replace(&mut has_unlisted, observed.has_unlisted) {
                tracing::warn!("{UNLISTED}");
            }
            last = Some((now, looked));
        });
        log_once(&mut fault, "cannot check the firewalls of other programs", observed);
    }
}

fn log(drop: &ForeignDrop) {
    if drop.cuts_off {
        tracing::error!("{}", drop.text());
    } else {
        tracing::warn!("{}", drop.text());
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn drop_by(chain: &str, rule: Option<u64>, what: &'static str) -> ForeignDrop {
        ForeignDrop { what, cuts_off: true, chain: DroppingChain { chain: chain.to_owned(), rule } }
    }

    #[test]
    fn packets_of_each_family_are_needed() {
        let mut cluster = crate::samples::cluster();
        cluster.vpn_cidrs.push("fd00:80::/64".parse().unwrap());
        cluster.pod_cidrs.push("fd00:81::/56".parse().unwrap());
        let assignment =
            PeerAssignment { addresses: vec!["100.80.0.19".parse().unwrap()], ..PeerAssignment::default() };
        let needed = needed_packets(&cluster, &assignment, Some("eth0"));
        let v4: Vec<String> = needed
            .iter()
            .map(|needed| &needed.packet)
            .filter(|packet| packet.destination.is_ipv4())
            .map(|packet| {
                format!("{}>{} {}>{}:{}", packet.input, packet.output, packet.source, packet.destination, packet.port)
            })
            .collect();
        let expected = [
            "keelway0> 100.80.0.2>100.80.0.19:10250",
            "cni0>keelway0 10.244.0.7>10.244.255.255:80",
            "keelway0>cni0 10.244.255.255>10.244.0.7:80",
            "cni0> 10.244.0.7>100.80.0.1:6443",
            "cni0>eth0 10.244.0.7>1.1.1.1:80",
        ];
        assert_eq!(v4, expected);
        assert_eq!(needed.len(), 9, "the API has no address of IPv6 here");
        assert!(needed.iter().all(|needed| needed.cuts_off == (needed.packet.what != TO_INTERNET)));
        cluster.cni.enabled = false;
        assert_eq!(needed_packets(&cluster, &assignment, Some("eth0")).len(), 2);
    }

    #[test]
    fn rules_that_the_kernel_does_not_count_are_listed_once_a_minute() {
        let facts = |legacy| RulesFacts {
            generation: Some(1),
            legacy,
            cluster: crate::samples::cluster(),
            assignment: PeerAssignment::default(),
        };
        let (without, with) = (facts(LegacyTables::default()), facts(LegacyTables::of(["filter\n", ""])));
        assert!(without.is_settled(&without, Duration::from_secs(3600)));
        assert!(with.is_settled(&with, Duration::from_secs(59)) && !with.is_settled(&with, LEGACY_EVERY));
        assert!(!with.is_settled(&without, Duration::ZERO));
    }

    #[test]
    fn help_depends_on_the_program_that_drops() {
        let policy = drop_by("ip filter FORWARD", None, TO_WORKERS).fault();
        assert_eq!(
            policy.problem,
            "the policy of the nftables chain ip filter FORWARD drops packets from pods to other workers"
        );
        assert!(policy.help.starts_with("sudo iptables -I FORWARD -i cni0 -j ACCEPT && "), "{}", policy.help);
        let input = drop_by("ip6 filter ufw6-user-input", Some(7), TO_KUBELET).fault();
        assert!(input.problem.contains("the rule with handle 7 of the nftables chain ip6 filter ufw6-user-input"));
        assert!(input.help.ends_with("sudo ip6tables -I INPUT -i keelway+ -j ACCEPT"), "{}", input.help);
        let legacy = drop_by("iptables-legacy filter FORWARD", Some(2), TO_WORKERS).fault();
        let expected = "rule 2 of the chain iptables-legacy filter FORWARD drops packets from pods to other workers";
        assert_eq!(legacy.problem, expected);
        assert!(legacy.help.starts_with("sudo iptables-legacy -I FORWARD -i cni0 -j ACCEPT && "), "{}", legacy.help);
        let zone = drop_by("inet firewalld filter_FORWARD", None, TO_WORKERS).help();
        assert!(zone.starts_with("sudo firewall-cmd") && zone.contains("--add-interface=keelway+ "), "{zone}");
        assert!(drop_by("inet owner f", None, TO_WORKERS).help().contains("interfaces cni0 and keelway*"));
    }
}
