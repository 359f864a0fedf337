//! The checks of `spec.etcd.restore` by an API server.

use serde_json::{Value as Json, json};

use super::{
    cel::{CelRule, is, rule},
    forms::{ID, LABEL, subdomain},
    schema::extend,
};

const AT: &str = "spec.etcd.restore";
const NAME: &str = "[0-9]{8}T[0-9]{6}Z-[0-9]{1,20}";

/// Sets the maximum lengths of texts.
pub(super) fn bounds(root: &mut Json) {
    let texts = [("snapshot", 64), ("cluster.namespace", 63), ("cluster.name", 63), ("cluster.keysSecret.name", 253)];
    for (field, most) in texts {
        extend(root, &format!("{AT}.{field}"), json!({ "maxLength": most }));
    }
    extend(root, &format!("{AT}.cluster.id"), json!({ "pattern": ID, "maxLength": 16 }));
}

pub(super) fn rules() -> Vec<CelRule> {
    let label = "\"{self}\" is not an RFC 1123 label; write the name as `keelway get clusters` prints it";
    vec![
        rule(
            format!("{AT}.snapshot"),
            is("self", NAME),
            "\"{self}\" is not the name of a snapshot; write a name that `keelway snapshot list` prints",
        ),
        rule(format!("{AT}.cluster.namespace"), is("self", LABEL), label),
        rule(format!("{AT}.cluster.name"), is("self", LABEL), label),
        rule(
            format!("{AT}.cluster.keysSecret.name"),
            is("self", &subdomain()),
            "\"{self}\" is not an RFC 1123 subdomain; write the name of a Secret with the keys of that cluster",
        ),
        rule(
            "spec.etcd",
            "!has(self.restore) || has(self.snapshots)",
            "restore needs spec.etcd.snapshots, whose sink has the snapshot; set both",
        ),
    ]
}
