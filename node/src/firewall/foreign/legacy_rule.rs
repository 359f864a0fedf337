//! One rule of `iptables`, in its options. Pure.

use ipnet::IpNet;

use super::{
    expressions::{NEUTRAL_TARGETS, RuleDecision},
    probe::{LOCAL, ProbePacket, UNICAST},
    ruleset::NftVerdict,
};

/// Modules whose options decide. All others may match or not by themselves.
const MODULES: [&str; 7] = ["tcp", "udp", "conntrack", "state", "comment", "multiport", "addrtype"];
/// The names of TCP.
const TCP: [&str; 2] = ["tcp", "6"];
/// `NF_INET_FORWARD`, `NF_INET_POST_ROUTING`
const WITH_OUTPUT: [u32; 2] = [2, 4];
const POST_ROUTING: u32 = 4;

/// The options of a rule, each with its values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LegacyRule {
    options: Vec<LegacyOption>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct LegacyOption {
    is_inverted: bool,
    name: String,
    value: String,
}

impl LegacyRule {
    /// Parses a rule as `iptables-save` prints it, without its chain.
    pub(super) fn parse(rule: &str) -> Self {
        let mut options: Vec<LegacyOption> = Vec::new();
        let mut is_inverted = false;
        for word in words(rule) {
            match word.as_str() {
                "!" => is_inverted = true,
                option if option.starts_with('-') => {
                    options.push(LegacyOption { is_inverted, name: word, value: String::new() });
                    is_inverted = false;
                }
                value => {
                    if let Some(last) = options.last_mut() {
                        value.clone_into(&mut last.value);
                    }
                }
            }
        }
        Self { options }
    }

    /// Returns what the rule decides, or `None` if it does not match or decides nothing.
    pub(super) fn decide(&self, packet: &ProbePacket, hook: u32) -> Option<RuleDecision> {
        let mut is_certain = true;
        for option in &self.options {
            match option.name.as_str() {
                "-j" => return verdict(&option.value).map(|verdict| RuleDecision { verdict, is_certain }),
                "-g" => return Some(RuleDecision { verdict: NftVerdict::Goto(option.value.clone()), is_certain }),
                _ => match option.matches(packet, hook) {
                    Some(matches) if matches == option.is_inverted => return None,
                    Some(_) => {}
                    None => is_certain = false,
                },
            }
        }
        None
    }
}

impl LegacyOption {
    /// Whether the packet matches, before an inversion. `None`: it is not known.
    fn matches(&self, packet: &ProbePacket, hook: u32) -> Option<bool> {
        let value = self.value.as_str();
        let within = |address| value.parse::<IpNet>().ok().map(|range| range.contains(&address));
        match self.name.as_str() {
            "-i" if hook != POST_ROUTING => Some(is_interface(value, &packet.input)),
            "-o" if WITH_OUTPUT.contains(&hook) => Some(is_interface(value, &packet.output)),
            "-s" => within(packet.source),
            "-d" => within(packet.destination),
            "-p" => Some(TCP.contains(&value)),
            "-m" => (MODULES.contains(&value)).then_some(true),
            "--dport" | "--dports" => is_port(value, packet.port),
            "--ctstate" | "--state" => Some(value.split(',').any(|state| state == "NEW")),
            "--src-type" => has_type(value, packet.address_types().0),
            "--dst-type" => has_type(value, packet.address_types().1),
            "--comment" => Some(true),
            _ => None,
        }
    }
}

/// A target that is no chain makes the packet's way unknown, as a chain that does not exist.
fn verdict(target: &str) -> Option<NftVerdict> {
    match target {
        "DROP" | "REJECT" => Some(NftVerdict::Drop),
        "ACCEPT" => Some(NftVerdict::Accept),
        "RETURN" => Some(NftVerdict::Return),
        neutral if NEUTRAL_TARGETS.contains(&neutral) => None,
        chain => Some(NftVerdict::Jump(chain.to_owned())),
    }
}

/// Whether a list of types of addresses, such as `LOCAL,BROADCAST`, contains this one.
fn has_type(list: &str, kind: u8) -> Option<bool> {
    let name = match kind {
        UNICAST => "UNICAST",
        LOCAL => "LOCAL",
        _ => return None,
    };
    Some(list.split(',').any(|listed| listed == name))
}

/// `+` at the end stands for any name with that prefix.
fn is_interface(pattern: &str, name: &str) -> bool {
    pattern.strip_suffix('+').map_or_else(|| pattern == name, |prefix| name.starts_with(prefix))
}

/// Whether the port is one of `80,8000:8080`.
fn is_port(list: &str, port: u16) -> Option<bool> {
    let ranges = list.split(',').map(|item| {
        let (from, to) = item.split_once(':').unwrap_or((item, item));
        Some(from.parse::<u16>().ok()?..=to.parse().ok()?)
    });
    let ranges: Option<Vec<_>> = ranges.collect();
    Some(ranges?.iter().any(|range| range.contains(&port)))
}

/// Splits a rule at blanks outside of quotes.
fn words(rule: &str) -> Vec<String> {
    let (mut words, mut is_quoted) = (vec![String::new()], false);
    let mut letters = rule.chars();
    while let Some(letter) = letters.next() {
        let last = words.len() - 1;
        match letter {
            '"' => is_quoted = !is_quoted,
            '\\' if is_quoted => words[last].extend(letters.next()),
            ' ' if !is_quoted => words.push(String::new()),
            letter => words[last].push(letter),
        }
    }
    words.retain(|word| !word.is_empty());
    words
}
