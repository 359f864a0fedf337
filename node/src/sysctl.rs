//! Kernel settings that pods need, and their values before.

use std::{collections::BTreeMap, fs, path::PathBuf};

use crate::{changes::Changes, files::NodeFileError, settings::Layout};

/// Settings for forwarding between pods and tunnels, and for Services between pods of one bridge.
const WANTED: [(&str, &str); 4] = [
    ("net/ipv4/ip_forward", "1"),
    ("net/ipv6/conf/all/forwarding", "1"),
    ("net/bridge/bridge-nf-call-iptables", "1"),
    ("net/bridge/bridge-nf-call-ip6tables", "1"),
];

/// Settings that the kubelet (`setupKernelTunables`) and kube-proxy change, and the one that `ip_forward` changes with it.
const CHANGED_BY_OTHERS: [&str; 12] = [
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
    "net/ipv4/conf/all/accept_redirects",
    "net/ipv4/conf/all/route_localnet",
    "net/netfilter/nf_conntrack_max",
    "net/netfilter/nf_conntrack_tcp_timeout_established",
    "net/netfilter/nf_conntrack_tcp_timeout_close_wait",
    "net/netfilter/nf_conntrack_tcp_be_liberal",
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

/// Returns the current values of all settings that other programs may change on a worker.
pub(crate) fn all() -> BTreeMap<String, String> {
    let names = CHANGED_BY_OTHERS.map(str::to_owned).into_iter().chain(of_interfaces());
    let read = |name: String| {
        let found = fs::read_to_string(file(&name)).ok()?;
        Some((name, found.trim().to_owned()))
    };
    names.filter_map(read).collect()
}

/// Sets all settings that the kernel has.
pub(crate) fn set(layout: &Layout) -> Result<(), NodeFileError> {
    for (name, wanted) in WANTED {
        let Ok(found) = fs::read_to_string(file(name)) else { continue };
        let found = found.trim();
        if found == wanted {
            continue;
        }
        Changes::note(layout, |changes| {
            changes.sysctls.entry(name.to_owned()).or_insert_with(|| found.to_owned());
        })?;
        fs::write(file(name), wanted).map_err(NodeFileError::new("set", file(name)))?;
    }
    Ok(())
}

/// Returns the settings that the kernel does not have.
pub(crate) fn missing_settings() -> Vec<String> {
    WANTED.iter().filter(|(name, _)| !file(name).exists()).map(|(name, _)| name.replace('/', ".")).collect()
}

/// Restores the values before. It writes them twice, because a setting for all interfaces changes the setting of each.
pub(crate) fn restore(changes: &Changes) -> Result<(), NodeFileError> {
    for (name, before) in changes.sysctls.iter().chain(&changes.sysctls) {
        if fs::read_to_string(file(name)).is_ok_and(|now| now.trim() != before) {
            fs::write(file(name), before).map_err(NodeFileError::new("set", file(name)))?;
        }
    }
    Ok(())
}
