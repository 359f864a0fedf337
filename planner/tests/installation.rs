//! The authority of an installation, and those whom it signs.
#![expect(clippy::unwrap_used, reason = "this is all test")]

#[expect(dead_code, reason = "nothing runs on these machines")]
mod model;

use keelway_api::{Documents, jiff::Timestamp, machine::Seen};
use keelway_planner::{MintRequest, Observation, identify, installation_authority, plan};
use model::{empty, mint};

const NOW: Timestamp = Timestamp::UNIX_EPOCH;

/// Machines by how each is reached, as one pass after the other leaves them.
struct World {
    documents: Documents,
    seen: Observation,
}

impl World {
    fn new(endpoints: &[&str]) -> Self {
        let machine = |(index, endpoint): (usize, &&str)| {
            let number = index + 1;
            format!(
                "---\napiVersion: keelway.dev/v1alpha1\nkind: Hypervisor\nmetadata: {{name: hv-{number}}}\nspec:\n  role: \
                 Private\n  endpoint: {endpoint}\n  addresses: {{private: [10.0.0.{number}]}}\n"
            )
        };
        let text: String = endpoints.iter().enumerate().map(machine).collect();
        let mut documents = Documents::read(text.as_bytes()).unwrap();
        identify(&mut documents, || "00000000000000ff".to_owned()).unwrap();
        let machines = documents.hypervisors.keys().map(|name| (name.clone(), Seen::Known(empty()))).collect();
        Self { documents, seen: Observation { machines, ..Observation::default() } }
    }

    /// What is minted of the installation's.
    fn pass(&mut self) -> Vec<MintRequest> {
        let mut plan = plan(self.documents.clone(), &self.seen, NOW).unwrap();
        mint(&mut plan, &mut self.seen.certificates);
        self.documents = plan.documents;
        plan.mint
    }

    fn minted(&mut self) -> Vec<String> {
        self.pass().iter().map(ToString::to_string).collect()
    }
}

const ALL: [&str; 4] = [
    "mint authority infrastructure-ca",
    "mint certificate driver/client",
    "mint certificate agent-hv-2/server",
    "mint certificate agent-hv-3/server",
];

fn two_on_network() -> World {
    World::new(&[
        "{unix: {path: /run/1.sock}}",
        "{agent: {address: '10.0.0.2:7443'}}",
        "{agent: {address: 'hv-3.example.com:7443'}}",
    ])
}

#[test]
fn machines_behind_sockets_want_no_certificates() {
    let mut world = World::new(&["{unix: {path: /run/1.sock}}", "{agent: {unix: {path: /run/2.sock}}}"]);
    assert_eq!(world.minted(), [""; 0]);
}

#[test]
fn agents_on_a_network_and_their_driver_get_certificates_once() {
    let mut world = two_on_network();
    assert_eq!(world.minted(), ALL);
    assert_eq!(world.minted(), [""; 0]);
    let written = world.documents.write();
    assert_eq!(Documents::read(written.as_bytes()).unwrap().write(), written);
}

#[test]
fn each_is_who_the_other_side_takes_it_for() {
    let mut world = two_on_network();
    let wanted = world.pass();
    let subjects = wanted.into_iter().filter_map(|wanted| {
        let MintRequest::Certificate { subject, authority, .. } = wanted else { return None };
        assert_eq!(Some(authority), world.documents.installation().map(installation_authority));
        assert_eq!(subject.organizations, ["00000000000000ff"]);
        Some((subject.common_name, subject.dns_names, subject.client, subject.server))
    });
    let agent = |name: &str| ("keelway:agent".to_owned(), vec![format!("{name}.hypervisor.keelway")], false, true);
    let driver = ("keelway:driver".to_owned(), Vec::new(), true, false);
    assert_eq!(subjects.collect::<Vec<_>>(), [driver, agent("hv-2"), agent("hv-3")]);
}

#[test]
fn what_has_lived_two_thirds_of_its_life_is_renewed() {
    let mut world = two_on_network();
    world.minted();
    let of_agent = world.seen.certificates.iter_mut().find(|((secret, _), _)| secret.name == "agent-hv-3").unwrap();
    of_agent.1.renew_at = NOW;
    assert_eq!(world.minted(), [ALL[3]]);
}

#[test]
fn a_lost_authority_and_all_that_it_signed_are_made_anew() {
    let mut world = two_on_network();
    world.minted();
    let authority = installation_authority(world.documents.installation().unwrap());
    world.documents.secrets.remove(&authority).unwrap();
    assert_eq!(world.minted(), ALL);
}
