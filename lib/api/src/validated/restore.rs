//! Validates the restore that a Cluster requests.

use super::FaultCollector;
use crate::{
    cluster::EtcdSpec,
    name::{is_label, is_subdomain},
    restore::RestoreSource,
};

const AT: &str = "spec.etcd.restore";

/// Records the faults of `spec.etcd.restore`.
pub(super) fn check(etcd: &EtcdSpec, faults: &mut FaultCollector) {
    let Some(restore) = &etcd.restore else { return };
    if etcd.snapshots.is_none() {
        let help = "set both";
        faults.add("spec.etcd", "restore needs spec.etcd.snapshots, whose sink has the snapshot", help);
    }
    if !is_name(&restore.snapshot) {
        let problem = format!("{:?} is not the name of a snapshot", restore.snapshot);
        faults.add(&format!("{AT}.snapshot"), problem, "write a name that `keelway snapshot list` prints");
    }
    if let Some(source) = &restore.cluster {
        check_source(source, faults);
    }
}

fn check_source(source: &RestoreSource, faults: &mut FaultCollector) {
    for (field, name) in [("namespace", &source.namespace), ("name", &source.name)] {
        if !is_label(name, 63) {
            let problem = format!("{name:?} is not an RFC 1123 label");
            let help = "write the name as `keelway get clusters` prints it";
            faults.add(&format!("{AT}.cluster.{field}"), problem, help);
        }
    }
    let secret = &source.keys_secret.name;
    if !is_subdomain(secret) {
        let problem = format!("{secret:?} is not an RFC 1123 subdomain");
        let help = "write the name of a Secret with the keys of that cluster";
        faults.add(&format!("{AT}.cluster.keysSecret.name"), problem, help);
    }
}

/// Returns whether a text has the form of a snapshot's name: `20261127T115200Z-48213`.
fn is_name(text: &str) -> bool {
    let digits = |part: &str, length: core::ops::RangeInclusive<usize>| {
        length.contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_digit())
    };
    let parts = text.split_once('T').and_then(|(date, rest)| Some((date, rest.split_once("Z-")?)));
    parts.is_some_and(|(date, (time, revision))| digits(date, 8..=8) && digits(time, 6..=6) && digits(revision, 1..=20))
}
