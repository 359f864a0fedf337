//! Kernel settings that pods need, and their values before.

mod interfaces;
#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, fs, path::PathBuf};

use crate::{
    changes::Changes,
    files::NodeFileError,
    forwarding::{self, ACCEPT_RA, ForwardingError, IPV6_FORWARDING, is_accept_ra},
    settings::Layout,
};

/// Settings for forwarding between pods and tunnels, and for Services between pods of one bridge.
const WANTED: [&str; 2] = ["net/ipv4/ip_forward", "net/bridge/bridge-nf-call-iptables"];
/// The same for IPv6. They are for clusters with IPv6 ranges only. [`forwarding`] enables the first one.
const WANTED_IPV6: [&str; 2] = [IPV6_FORWARDING, "net/bridge/bridge-nf-call-ip6tables"];

/// Settings that the kubelet (`setupKernelTunables`) and kube-proxy change, and the one that `ip_forward` changes with it. Each has the value that
/// it then has, if that is always the same.
const CHANGED_BY_OTHERS: [(&str, Option<&str>); 12] = [
    ("vm/overcommit_memory", Some("1")),
    ("vm/panic_on_oom", Some("0")),
    ("kernel/panic", Some("10")),
    ("kernel/panic_on_oops", Some("1")),
    ("kernel/keys/root_maxkeys", Some("1000000")),
    ("kernel/keys/root_maxbytes", Some("25000000")),
    ("net/ipv4/conf/all/accept_redirects", Some("0")),
    ("net/ipv4/conf/all/route_localnet", Some("1")),
    ("net/netfilter/nf_conntrack_max", None),
    ("net/netfilter/nf_conntrack_tcp_timeout_established", None),
    ("net/netfilter/nf_conntrack_tcp_timeout_close_wait", None),
    ("net/netfilter/nf_conntrack_tcp_be_liberal", None),
];
/// Families in which each interface has a setting of its own, which follows the setting for all.
const FAMILIES: [&str; 2] = ["net/ipv4/conf", "net/ipv6/conf"];

fn file(name: &str) -> PathBuf {
    PathBuf::from("/proc/sys").join(name)
}

/// Returns the forwarding setting of each interface. It follows the setting for all.
fn of_interfaces() -> impl Iterator<Item = String> {
    FAMILIES.into_iter().flat_map(|family| {
        let entries = fs::read_dir(file(family)).into_iter().flatten().flatten();
        entries.map(move |entry| format!("{family}/{}/forwarding", entry.file_name().to_string_lossy()))
    })
}

/// Returns the value of a setting, if the kernel has the setting.
pub(crate) fn read(name: &str) -> Option<String> {
    fs::read_to_string(file(name)).ok().map(|value| value.trim().to_owned())
}

pub(crate) fn write(name: &str, value: &str) -> Result<(), NodeFileError> {
    fs::write(file(name), value).map_err(NodeFileError::new("set", file(name)))
}

/// Sets a setting that the kernel has. Before that, it records the value that [`restore`] restores.
pub(crate) fn change(layout: &Layout, name: &str, wanted: &str) -> Result<(), NodeFileError> {
    let Some(found) = read(name).filter(|found| found != wanted) else { return Ok(()) };
    Changes::note(layout, |changes| {
        changes.sysctls.entry(name.to_owned()).or_insert(found);
    })?;
    write(name, wanted)
}

/// Returns the current values of all settings that other programs may change on a worker.
pub(crate) fn all() -> BTreeMap<String, String> {
    let names = CHANGED_BY_OTHERS.map(|(name, _)| name.to_owned()).into_iter().chain(of_interfaces());
    names.filter_map(|name| read(&name).map(|value| (name, value))).collect()
}

/// Sets all settings that the kernel has, and those of each interface that the worker uses.
pub(crate) fn set(layout: &Layout, has_ipv6: bool) -> Result<(), ForwardingError> {
    WANTED.iter().try_for_each(|name| change(layout, name, "1"))?;
    interfaces::set(layout)?;
    if has_ipv6 {
        WANTED_IPV6[1..].iter().try_for_each(|name| change(layout, name, "1"))?;
        forwarding::enable_ipv6(layout)?;
    }
    Ok(())
}

/// Returns the settings that the kernel does not have.
pub(crate) fn missing_settings(has_ipv6: bool) -> Vec<String> {
    let ipv6 = if has_ipv6 { &WANTED_IPV6[..] } else { &[] };
    let all = WANTED.iter().chain(ipv6);
    all.filter(|name| !file(name).exists()).map(|name| name.replace('/', ".")).collect()
}

/// Restores the values before. A setting for all interfaces changes the setting of each, so all are written twice. Interfaces ignore
/// advertisements again only after that, because enabling `forwarding` of any interface then removes advertised routes.
///
/// A value that another program set since the join stays. If other programs need forwarding, its settings stay, too, and are returned.
pub(crate) fn restore(changes: &Changes, must_forward: bool) -> Result<Vec<String>, NodeFileError> {
    let (stay, all): (Vec<_>, Vec<_>) =
        of_worker(&changes.sysctls, read).partition(|(name, _)| must_forward && is_forwarding(name));
    let (last, first): (Vec<_>, Vec<_>) = all.into_iter().partition(|(name, _)| is_accept_ra(name));
    for (name, before) in first.iter().chain(&first).chain(&last) {
        if read(name).is_some_and(|now| now != **before) {
            write(name, before)?;
        }
    }
    let differ = stay.into_iter().filter(|(name, before)| read(name).is_some_and(|now| now != **before));
    Ok(differ.map(|(name, _)| name.replace('/', ".")).collect())
}

/// Returns the settings with the value before or the value of a worker.
fn of_worker(
    before: &BTreeMap<String, String>,
    now: impl Fn(&str) -> Option<String>,
) -> impl Iterator<Item = (&String, &String)> {
    before.iter().filter(move |(name, before)| {
        let wanted = CHANGED_BY_OTHERS
            .iter()
            .find(|(known, _)| known == name)
            .map_or_else(|| Some(if is_accept_ra(name) { ACCEPT_RA } else { "1" }), |(_, value)| *value);
        now(name).is_some_and(|now| now == **before || wanted.is_none_or(|wanted| now == wanted))
    })
}

/// Whether forwarded packets depend on the setting.
fn is_forwarding(name: &str) -> bool {
    const NAMES: [&str; 2] = ["net/ipv4/ip_forward", "net/ipv4/conf/all/accept_redirects"];
    NAMES.contains(&name) || name.starts_with("net/bridge/") || name.ends_with("/forwarding") || is_accept_ra(name)
}
