//! Checks whether routing tables, policy rules, DNS servers or Tailscale divert packets of a cluster's ranges.

use std::{
    net::{IpAddr, Ipv4Addr},
    path::Path,
};

use ipnet::{IpNet, Ipv4Net};
use keelway_vpn::netlink::routing::{PolicyRule, RoutedPrefix};

use super::{
    CheckFault, NamedRanges, ResolvConf,
    ranges::{help, overlap},
    resolv_conf::{RESOLV_CONF, for_pods},
};

/// The routing table of Tailscale.
const TAILSCALE_TABLE: u32 = 52;
/// The range of Tailscale's addresses. Tailscale drops packets from there on other interfaces than its own.
const TAILSCALE_RANGE: Ipv4Net = Ipv4Net::new_assert(Ipv4Addr::new(100, 64, 0, 0), 10);
/// The names of the chains with these rules.
pub(crate) const TAILSCALE_CHAINS: [&str; 2] = ["ts-input", "ts-forward"];

/// What can divert packets on a machine, besides its networks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct RoutingFacts {
    /// The routes of other tables than the standard ones.
    pub(crate) routes: Vec<RoutedPrefix>,
    pub(crate) rules: Vec<PolicyRule>,
    pub(crate) resolv_confs: Vec<ResolvConf>,
    /// The chains of Tailscale, such as `ip filter ts-input`.
    pub(crate) tailscale_chains: Vec<String>,
}

/// Returns a fault for each of these that overlaps a range of the cluster. Default routes are ignored.
pub(crate) fn routing_faults(ranges: &NamedRanges, facts: &RoutingFacts) -> Vec<CheckFault> {
    let mut faults = Vec::new();
    for (name, range) in ranges.named() {
        let fault = |clash, help| CheckFault::new(format!("{name} of the cluster ({range}) {clash}"), help);
        let clashes = clashing_routes(range, &facts.routes).into_iter().chain(clashing_rules(range, &facts.rules));
        let clashes = clashes.chain(dropped_by_tailscale(range, &facts.tailscale_chains));
        faults.extend(clashes.map(|clash| fault(clash, help(name))));
        let servers_help = format!("change {name} of the cluster, or the DNS servers of this machine");
        let servers = clashing_servers(range, &facts.resolv_confs);
        faults.extend(servers.into_iter().map(|clash| fault(clash, servers_help.clone())));
    }
    faults.sort();
    faults.dedup();
    faults
}

fn clashing_routes(range: &IpNet, routes: &[RoutedPrefix]) -> Vec<String> {
    let clashing = routes.iter().filter(|route| is_part(range, &route.destination));
    clashing.map(|route| format!("overlaps the route {} in {}", route.destination, table(route.table))).collect()
}

fn clashing_rules(range: &IpNet, rules: &[PolicyRule]) -> Vec<String> {
    let clash = |rule: &PolicyRule| {
        let prefix = rule.prefixes.iter().find(|prefix| is_part(range, prefix))?;
        let end = match rule.table {
            Some(number) => format!("leads to {}", table(number)),
            None => "drops packets".to_owned(),
        };
        Some(format!("overlaps {prefix} of the policy rule {}, which {end}", rule.priority))
    };
    rules.iter().filter_map(clash).collect()
}

fn dropped_by_tailscale(range: &IpNet, chains: &[String]) -> Option<String> {
    let chain = chains.first().filter(|_| overlap(range, &TAILSCALE_RANGE.into()))?;
    Some(format!(
        "overlaps {TAILSCALE_RANGE}, and Tailscale drops packets from there on other interfaces than its own (nftables chain {chain})"
    ))
}

fn clashing_servers(range: &IpNet, files: &[ResolvConf]) -> Vec<String> {
    let clashing = servers(files).filter(|(server, _)| range.contains(server));
    clashing.map(|(server, path)| format!("contains the DNS server {server} of {}", path.display())).collect()
}

fn is_part(range: &IpNet, prefix: &IpNet) -> bool {
    prefix.prefix_len() > 0 && overlap(range, prefix)
}

fn table(number: u32) -> String {
    let owner = if number == TAILSCALE_TABLE { " of Tailscale" } else { "" };
    format!("the routing table {number}{owner}")
}

/// Returns the DNS servers of the machine and of its pods, each with its file.
fn servers(files: &[ResolvConf]) -> impl Iterator<Item = (IpAddr, &Path)> {
    let own = files.iter().find(|file| file.path == Path::new(RESOLV_CONF));
    let others = for_pods(files).filter(|file| file.path != Path::new(RESOLV_CONF));
    own.into_iter().chain(others).flat_map(|file| file.servers.iter().map(|server| (*server, file.path)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The VPN range is 100.80.0.0/16.
    fn problems(facts: &RoutingFacts) -> Vec<String> {
        let found = routing_faults(&NamedRanges::of(&crate::samples::cluster()), facts);
        assert!(found.iter().all(|fault| fault.help.starts_with("change ")), "{found:?}");
        found.into_iter().map(|fault| fault.problem).collect()
    }

    fn route(table: u32, destination: &str) -> RoutedPrefix {
        RoutedPrefix { table, destination: destination.parse().unwrap(), drops: false, interface: None }
    }

    #[test]
    fn a_clash_names_the_table_or_the_rule() {
        let default = route(51820, "0.0.0.0/0");
        assert_eq!(problems(&RoutingFacts { routes: vec![default.clone()], ..RoutingFacts::default() }), [""; 0]);
        let routes = vec![default, route(52, "100.80.7.7/32"), route(100, "10.0.0.0/8")];
        let expected = [
            "network.podCIDRs of the cluster (10.244.0.0/16) overlaps the route 10.0.0.0/8 in the routing table 100",
            "network.serviceCIDRs of the cluster (10.96.0.0/16) overlaps the route 10.0.0.0/8 in the routing table 100",
            "vpn.cidrs of the cluster (100.80.0.0/16) overlaps the route 100.80.7.7/32 in the routing table 52 of Tailscale",
        ];
        assert_eq!(problems(&RoutingFacts { routes, ..RoutingFacts::default() }), expected);
        let rule = |table| PolicyRule { priority: 99, prefixes: vec!["10.96.0.0/12".parse().unwrap()], table };
        let expected = [
            "network.serviceCIDRs of the cluster (10.96.0.0/16) overlaps 10.96.0.0/12 of the policy rule 99, which drops packets",
            "network.serviceCIDRs of the cluster (10.96.0.0/16) overlaps 10.96.0.0/12 of the policy rule 99, which leads to the routing table 7",
        ];
        assert_eq!(
            problems(&RoutingFacts { rules: vec![rule(Some(7)), rule(None)], ..RoutingFacts::default() }),
            expected
        );
    }

    #[test]
    fn a_clash_names_the_dns_server() {
        let file = |path, server: &str| ResolvConf { path: Path::new(path), servers: vec![server.parse().unwrap()] };
        let stub = file(RESOLV_CONF, "127.0.0.53");
        let list = file("/run/systemd/resolve/resolv.conf", "100.80.0.53");
        let facts = |resolv_confs| RoutingFacts { resolv_confs, ..RoutingFacts::default() };
        let expected = "vpn.cidrs of the cluster (100.80.0.0/16) contains the DNS server 100.80.0.53 of /run/systemd/resolve/resolv.conf";
        assert_eq!(problems(&facts(vec![stub, list.clone()])), [expected]);
        assert_eq!(problems(&facts(vec![file(RESOLV_CONF, "192.0.2.53"), list])), [""; 0], "that list is not used");
        assert_eq!(problems(&facts(vec![file(RESOLV_CONF, "100.80.0.53")])).len(), 1);
    }

    #[test]
    fn a_clash_names_the_chain_of_tailscale() {
        let facts = RoutingFacts { tailscale_chains: vec!["ip filter ts-input".to_owned()], ..RoutingFacts::default() };
        let found = problems(&facts);
        let [problem] = found.as_slice() else { panic!("{found:?}") };
        assert!(problem.contains("vpn.cidrs") && problem.contains("Tailscale drops"), "{problem}");
        assert!(problem.contains("ip filter ts-input"), "{problem}");
        let mut cluster = crate::samples::cluster();
        cluster.vpn_cidrs = vec!["172.31.0.0/16".parse().unwrap()];
        assert_eq!(routing_faults(&NamedRanges::of(&cluster), &facts), []);
    }
}
