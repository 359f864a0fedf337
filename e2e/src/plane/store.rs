//! Queries the etcd members one by one.

use std::{
    collections::BTreeSet,
    fs,
    ops::Range,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    process::Command,
};

use keelway_api::{Component, Documents, documents::SecretName, role::Role};
use keelway_cri::testing::cache;
use keelway_planner::{DRIVER_SECRET, probes};
use rand::{RngExt, SeedableRng, rngs::ChaCha8Rng};
use serde_json::Value;

use super::Plane;
use crate::{
    TestMachine,
    command::{FinishedCommand, run},
    deadline,
};

/// The size of a value that fills a store, which is below etcd's default limit of a request.
const VALUE: usize = 1 << 20;
/// What the keys of such values begin with. Their numbers follow.
pub const FILLED: &str = "filled-";
/// Puts the value of the file `$1` at the keys that begin with `$2`, with the numbers from `$3` to `$4`, until a request is refused.
const FILL: &str = r#"file=$1 key=$2 from=$3 to=$4; shift 4; for i in $(seq "$from" "$to"); do "$@" put "$key$i" < "$file" > /dev/null; done"#;

/// An etcd client with the driver's credentials.
pub struct PlaneStore<'a> {
    plane: &'a Plane<'a>,
    identity: [(&'static str, PathBuf); 3],
}

impl<'a> PlaneStore<'a> {
    /// Writes the driver's credentials to files of the test.
    pub fn of(plane: &'a Plane<'a>) -> Self {
        Self::with_certificate_of(plane, &plane.documents)
    }

    /// Does the same with the certificate of earlier documents, and trusts what the present ones trust.
    pub fn with_certificate_of(plane: &'a Plane<'a>, earlier: &Documents) -> Self {
        let file = |flag: &'static str, documents: &Documents, secret: &str, key: &str| {
            let secret = &documents.secrets[&SecretName::of(plane.cluster().id().unwrap(), secret)];
            let path = plane.keelway.directory().join(key);
            let mut options = fs::OpenOptions::new();
            let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&path).unwrap();
            std::io::Write::write_all(&mut file, &secret.data.as_ref().unwrap()[key].0).unwrap();
            (flag, path)
        };
        let identity = [
            file("--cacert", &plane.documents, "etcd-ca", "bundle.crt"),
            file("--cert", earlier, DRIVER_SECRET, "etcd-client.crt"),
            file("--key", earlier, DRIVER_SECRET, "etcd-client.key"),
        ];
        Self { plane, identity }
    }

    /// Returns the status that a member reports, or none if it does not respond.
    fn status(&self, member: &Component) -> Option<Value> {
        Some(self.etcdctl(member, &["endpoint", "status"])?[0]["Status"].clone())
    }

    /// Returns the names of all voters, as a majority confirms them. Fails the test if there is a learner.
    pub fn voters(&self) -> BTreeSet<String> {
        let list = self.etcdctl(self.leader(), &["member", "list"]).unwrap();
        let name = |member: &Value| {
            assert!(!member["isLearner"].as_bool().unwrap_or_default(), "{list}");
            member["name"].as_str().unwrap().to_owned()
        };
        list["members"].as_array().unwrap().iter().map(name).collect()
    }

    /// Runs `etcdctl` beside a member, and returns its output, or none if it fails.
    pub fn etcdctl(&self, member: &Component, arguments: &[&str]) -> Option<Value> {
        let mut command = self.client(&self.endpoint(member));
        let ran = self.plane.machine(member).run(command.args(arguments).arg("--write-out=json"));
        (ran.code() == 0).then(|| ran.json())
    }

    /// Returns the URL at which clients reach a member.
    pub fn endpoint(&self, member: &Component) -> String {
        let name = (&member.spec.cluster_id, member.spec.name().unwrap());
        let all = probes(&self.plane.documents).unwrap();
        let of_member =
            |component: &keelway_api::name::PodName| (&component.cluster, component.component.clone()) == name;
        let probe = all.iter().find(|probe| of_member(&probe.component)).unwrap();
        format!("https://{}", probe.address)
    }

    /// Returns `etcdctl` with the credentials of the driver.
    pub fn client(&self, endpoint: &str) -> Command {
        let mut command = Command::new(cache().unwrap().join("bin/etcdctl"));
        command.arg(format!("--endpoints={endpoint}"));
        for (flag, path) in &self.identity {
            command.arg(flag).arg(path);
        }
        command
    }

    /// Returns `curl` with the credentials of the driver and this path of a member's JSON API.
    pub fn web_client(&self, member: &Component, path: &str) -> Command {
        let mut command = Command::new("curl");
        command.args(["--fail", "--silent", "--show-error"]);
        for (flag, file) in &self.identity {
            command.arg(flag).arg(file);
        }
        command.arg(format!("{}{path}", self.endpoint(member)));
        command
    }

    /// Returns the leader.
    pub fn leader(&self) -> &'a Component {
        let leads = |member: &&Component| {
            self.status(member).is_some_and(|status| status["leader"] == status["header"]["member_id"])
        };
        self.plane.of_role(Role::Etcd).into_iter().find(leads).unwrap()
    }

    /// Returns the revision that a member has reached.
    pub fn revision(&self, member: &Component) -> Option<u64> {
        self.status(member)?["header"]["revision"].as_u64()
    }

    /// Waits until a member has reached a revision.
    pub fn reaches(&self, member: &Component, revision: u64) {
        let caught_up = || self.revision(member).is_some_and(|reached| reached >= revision);
        deadline::until("a member has what was written while it was away", deadline::KUBERNETES, caught_up);
    }
}

/// Writes a value of 1 MiB for each number, until a request is refused. Values do not compress well. The directory gets the value's file.
pub fn fill(machine: &TestMachine, client: &Command, directory: &Path, numbers: Range<usize>) -> FinishedCommand {
    let value_file = directory.join("value");
    let mut value = vec![0; VALUE];
    ChaCha8Rng::seed_from_u64(1).fill(&mut value[..]);
    fs::write(&value_file, value).unwrap();
    let mut fill = Command::new("sh");
    fill.args(["-ec", FILL, "sh"])
        .arg(&value_file)
        .arg(FILLED)
        .arg(numbers.start.to_string())
        .arg((numbers.end - 1).to_string())
        .arg(client.get_program())
        .args(client.get_args());
    machine.within(|| run(&mut fill, &[], deadline::SETTLE))
}
