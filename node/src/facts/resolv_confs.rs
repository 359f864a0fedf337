//! Reads the machine's files with DNS servers.

use std::{fs, path::Path};

use crate::checks::{RESOLV_CONF, ResolvConf};

/// The machine's own file, and the files in which systemd-resolved and NetworkManager list the servers that they use.
const FILES: [&str; 4] = [
    RESOLV_CONF,
    "/run/systemd/resolve/resolv.conf",
    "/run/NetworkManager/no-stub-resolv.conf",
    "/run/NetworkManager/resolv.conf",
];

/// Returns those of the files that exist.
pub(crate) fn resolv_confs() -> Vec<ResolvConf> {
    let read = |path| Some(ResolvConf::parse(Path::new(path), &fs::read_to_string(path).ok()?));
    FILES.into_iter().filter_map(read).collect()
}
