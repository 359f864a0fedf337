//! The member list as one member has it, requested without another process, so that the request takes no time of what is measured.

use std::{collections::BTreeSet, net::SocketAddr};

use keelway_api::{Component, documents::SecretName, role::PEER};
use keelway_e2e::{Plane, TestMachine, https::HttpsClient};
use keelway_planner::DRIVER_SECRET;
use serde_json::Value;

/// A member, asked at the path that etcd serves to its peers.
pub(crate) struct PeerView<'a> {
    machine: &'a TestMachine,
    address: SocketAddr,
    client: HttpsClient,
}

impl<'a> PeerView<'a> {
    pub(crate) fn of(plane: &'a Plane<'_>, member: &Component) -> Self {
        let secret = |name: &str, key: &str| {
            let secret = &plane.documents.secrets[&SecretName::of(plane.cluster().id().unwrap(), name)];
            secret.data.as_ref().unwrap()[key].0.clone()
        };
        let identity = ["etcd-client.crt", "etcd-client.key"].map(|key| secret(DRIVER_SECRET, key));
        let name = member.spec.name().unwrap();
        let client =
            HttpsClient::new(&secret("etcd-ca", "bundle.crt"), name.as_str(), Some((&identity[0], &identity[1])));
        let machine = plane.machine(member);
        let address: std::net::IpAddr = machine.document.spec.addresses.private[0].parse().unwrap();
        Self { machine, address: SocketAddr::new(address, member.spec.port(PEER)), client }
    }

    /// Returns the names of the members, if all of them are voters.
    pub(crate) fn voters(&self) -> Option<BTreeSet<String>> {
        let response = self.client.get(self.machine.connect(self.address).ok()?, "/members").ok()?;
        let (_, body) = response.text.split_once("\r\n\r\n")?;
        let members: Vec<Value> = serde_json::from_str(body).unwrap();
        let is_voter = |member: &Value| !member["isLearner"].as_bool().unwrap_or_default();
        let names = members.iter().map(|member| member["name"].as_str().unwrap().to_owned());
        members.iter().all(is_voter).then(|| names.collect())
    }
}
