//! The kubernetes authority of the fleet is replaced while agents are connected.

use std::{collections::BTreeSet, fs};

use keelway_api::worker::{CERTIFICATE_ISSUERS, TRUSTED_AUTHORITIES};
use keelway_e2e::Kubectl;
use keelway_fleet::names::{AGENT_LEASE, works_namespace};

use crate::{Member, guestbook};

/// Agents follow with the tokens of before, nothing in their clusters changes, and the fleet rejects what the previous authority signed.
pub(crate) fn is_replaced(fleet: &Kubectl, members: &[&Member], rotate: impl FnOnce()) {
    let before: Vec<_> = members.iter().map(|member| guestbook::running(member)).collect();
    let (reported, former) = (reports(fleet, members), fleet.kubeconfig());
    rotate();
    let after: Vec<_> = members.iter().map(|member| guestbook::running(member)).collect();
    assert_eq!(after, before, "nothing of the application changed");
    for key in [TRUSTED_AUTHORITIES, CERTIFICATE_ISSUERS] {
        let values = |reports: &[(&str, String)]| -> BTreeSet<String> {
            reports.iter().filter(|(name, _)| *name == key).map(|(_, value)| value.clone()).collect()
        };
        let (before, after) = (values(&reported), values(&reports(fleet, members)));
        assert_eq!((before.len(), after.len()), (1, 1), "{key}: all agents report the same");
        assert_ne!(before, after, "{key}");
    }
    // A user with a certificate of before, who trusts the new authority.
    let mut kubeconfig = fleet.kubeconfig();
    kubeconfig["users"][0]["user"] = former["users"][0]["user"].clone();
    let file = fleet.file().with_file_name("former.kubeconfig");
    fs::write(&file, kubeconfig.to_string()).unwrap();
    let rejected = Kubectl::new(&file).run(&["get", "namespaces"]);
    assert!(rejected.code() != 0 && rejected.stderr.contains("Unauthorized"), "{rejected:?}");
}

/// What the agents report on their Leases.
fn reports(fleet: &Kubectl, members: &[&Member]) -> Vec<(&'static str, String)> {
    let of_member = |member: &&Member| {
        let lease = fleet.get(&["lease", AGENT_LEASE, "-n", &works_namespace(member.name)]);
        [TRUSTED_AUTHORITIES, CERTIFICATE_ISSUERS]
            .map(|key| (key, lease["metadata"]["annotations"][key].as_str().unwrap().to_owned()))
    };
    members.iter().flat_map(of_member).collect()
}
