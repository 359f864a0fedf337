//! Queries the etcd members one by one.

use std::{fs, os::unix::fs::OpenOptionsExt, path::PathBuf, process::Command};

use keelway_api::{Component, documents::SecretName, role::Role};
use keelway_cri::testing::cache;
use keelway_e2e::deadline;
use keelway_planner::{DRIVER_SECRET, probes};
use serde_json::Value;

use crate::plane::Plane;

/// An etcd client with the driver's credentials.
pub(crate) struct Store<'a> {
    plane: &'a Plane<'a>,
    identity: [(&'static str, PathBuf); 3],
}

impl<'a> Store<'a> {
    pub(crate) fn of(plane: &'a Plane<'a>) -> Self {
        let file = |flag: &'static str, secret: &str, key: &str| {
            let secret = &plane.documents.secrets[&SecretName::of(plane.cluster().id().unwrap(), secret)];
            let path = plane.keelway.directory().join(key);
            let mut options = fs::OpenOptions::new();
            let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&path).unwrap();
            std::io::Write::write_all(&mut file, &secret.data.as_ref().unwrap()[key].0).unwrap();
            (flag, path)
        };
        let identity = [
            file("--cacert", "etcd-ca", "bundle.crt"),
            file("--cert", DRIVER_SECRET, "etcd-client.crt"),
            file("--key", DRIVER_SECRET, "etcd-client.key"),
        ];
        Self { plane, identity }
    }

    /// Returns the status that a member reports, or none if it does not respond.
    fn status(&self, member: &Component) -> Option<Value> {
        let name = (&member.spec.cluster_id, member.spec.name().unwrap());
        let all = probes(&self.plane.documents).unwrap();
        let of_member =
            |component: &keelway_api::name::PodName| (&component.cluster, component.component.clone()) == name;
        let probe = all.iter().find(|probe| of_member(&probe.component)).unwrap();
        let mut command = Command::new(cache().unwrap().join("bin/etcdctl"));
        command.arg(format!("--endpoints=https://{}", probe.address));
        for (flag, path) in &self.identity {
            command.arg(flag).arg(path);
        }
        let ran = self.plane.machine(member).run(command.args(["endpoint", "status", "--write-out=json"]));
        if ran.code() == 0 { Some(ran.json()[0]["Status"].clone()) } else { None }
    }

    /// Returns the leader.
    pub(crate) fn leader(&self) -> &'a Component {
        let leads = |member: &&Component| {
            self.status(member).is_some_and(|status| status["leader"] == status["header"]["member_id"])
        };
        self.plane.of_role(Role::Etcd).into_iter().find(leads).unwrap()
    }

    /// Returns the revision that a member has reached.
    pub(crate) fn revision(&self, member: &Component) -> Option<u64> {
        self.status(member)?["header"]["revision"].as_u64()
    }

    /// Waits until a member has reached a revision.
    pub(crate) fn reaches(&self, member: &Component, revision: u64) {
        let caught_up = || self.revision(member).is_some_and(|reached| reached >= revision);
        deadline::until("a member has what was written while it was away", deadline::KUBERNETES, caught_up);
    }
}
