//! The authority of an installation, and the identities that it signs.

use keelway_api::{Documents, jiff::Timestamp, machine::ObservedValue};
use keelway_planner::{
    MintRequest, PassObservation, Waiting, identify, installation_authority, installation_certificates, plan,
};

use crate::model::{empty, mint};

const NOW: Timestamp = Timestamp::UNIX_EPOCH;

/// Machines with these endpoints, after a number of passes.
struct World {
    documents: Documents,
    seen: PassObservation,
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
        let machines = documents.hypervisors.keys().map(|name| (name.clone(), ObservedValue::Known(empty()))).collect();
        Self { documents, seen: PassObservation { machines, ..PassObservation::default() } }
    }

    /// Returns what a pass mints for the installation.
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
    "create authority infrastructure-ca",
    "issue certificate driver/client",
    "issue certificate agent-hv-2/server",
    "issue certificate agent-hv-3/server",
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
fn certificates_have_the_names_that_the_other_side_verifies() {
    let mut world = two_on_network();
    let wanted = world.pass();
    let subjects = wanted.into_iter().filter_map(|wanted| {
        let MintRequest::Certificate { subject, authority, .. } = wanted else { return None };
        assert_eq!(Some(authority), world.documents.installation().map(installation_authority));
        assert_eq!(subject.organizations, ["00000000000000ff"]);
        Some((subject.common_name, subject.dns_names, subject.client, subject.server))
    });
    let names = |name: &str| vec![format!("{name}.hypervisor.keelway"), "hypervisor.keelway".to_owned()];
    let agent = |name: &str| ("keelway:agent".to_owned(), names(name), true, true);
    let driver = ("keelway:driver".to_owned(), Vec::new(), true, false);
    assert_eq!(subjects.collect::<Vec<_>>(), [driver, agent("hv-2"), agent("hv-3")]);
}

#[test]
fn a_certificate_is_renewed_after_two_thirds_of_its_lifetime() {
    let mut world = two_on_network();
    world.minted();
    let of_agent = world.seen.certificates.iter_mut().find(|((secret, _), _)| secret.name == "agent-hv-3").unwrap();
    of_agent.1.renew_at = NOW;
    assert_eq!(world.minted(), [ALL[3]]);
}

#[test]
fn a_lost_authority_is_not_minted_again() {
    let mut world = two_on_network();
    world.minted();
    let authority = installation_authority(world.documents.installation().unwrap());
    let before = world.documents.clone();
    world.documents.secrets.remove(&authority).unwrap();
    let plan = plan(world.documents.clone(), &world.seen, NOW).unwrap();
    assert_eq!(plan.mint.len(), 0, "{:?}", plan.mint);
    let waits = |waiting: &&Waiting| {
        waiting.subject.to_string().ends_with("/infrastructure-ca") && waiting.blocker.to_string().contains("backup")
    };
    assert_eq!(plan.waiting.iter().filter(waits).count(), 1, "{:?}", plan.waiting);
    let faults = installation_certificates(&world.documents, &world.seen.certificates, NOW).unwrap_err();
    assert!(faults.0.len() == 1 && faults.0[0].document.ends_with("/infrastructure-ca"), "{faults:?}");

    world.documents = before;
    assert_eq!(world.minted(), [""; 0]);
}

#[test]
fn a_bundle_of_the_installation_that_is_missing_is_derived() {
    let mut world = two_on_network();
    world.minted();
    let authority = installation_authority(world.documents.installation().unwrap());
    let lost = world.documents.secrets.get_mut(&authority).unwrap().data.as_mut().unwrap().remove("bundle.crt");
    assert!(lost.is_some());
    assert_eq!(world.minted(), [""; 0]);
    let data = world.documents.secrets[&authority].data.as_ref().unwrap();
    assert_eq!(data["bundle.crt"], data["active.crt"]);
}

/// Networked machines whose agents are enrolled or are to be enrolled.
mod enrolled {
    use keelway_api::{
        ByteString, Time,
        condition::is_true,
        hypervisor::{AgentStatus, CriEndpoint, HypervisorEndpoint, RUNTIME_SOCKET, SecretReference},
        jiff::SignedDuration,
        machine::{AgentIdentity, ObservedValue, SystemFacts, UnreachableReason, sha256_hex},
        name::HypervisorName,
        release::KEELWAY,
    };
    use keelway_planner::{
        AgentOrder, ENROLLMENT_EXPIRES, ENROLLMENT_TOKEN, Plan, REVOCATION_LIST, REVOKED_SERIALS, enrollment_secret,
        installation_revoked,
    };

    use super::*;

    fn hour(hours: i64) -> Timestamp {
        NOW + SignedDuration::from_hours(hours)
    }

    /// One machine whose agent does not respond, with a token that is valid for two hours.
    fn one() -> World {
        let mut world = World::new(&["{agent: {address: '10.0.0.1:7443'}}"]);
        let (name, id) = (name(), world.documents.installation().unwrap().clone());
        let status = world.documents.hypervisors.get_mut(&name).unwrap().status.as_mut().unwrap();
        status.agent = Some(AgentStatus::new("0123456789abcdef".to_owned()));
        let values = [(ENROLLMENT_TOKEN, "kwe1.".to_owned()), (ENROLLMENT_EXPIRES, hour(2).to_string())];
        let values = values.map(|(key, value)| (key.to_owned(), ByteString(value.into_bytes())));
        world.documents.put_secret_values(&enrollment_secret(&id, &name), values);
        world.seen.machines.insert(name, ObservedValue::unreachable("no connection"));
        world
    }

    fn name() -> HypervisorName {
        "hv-1".parse().unwrap()
    }

    impl World {
        fn pass_at(&mut self, now: Timestamp) -> Plan {
            let mut plan = plan(self.documents.clone(), &self.seen, now).unwrap();
            mint(&mut plan, &mut self.seen.certificates);
            self.documents = plan.documents.clone();
            plan
        }

        fn agent(&self) -> &AgentStatus {
            self.documents.hypervisors[&name()].status.as_ref().unwrap().agent.as_ref().unwrap()
        }

        fn has_token(&self) -> bool {
            let id = self.documents.installation().unwrap();
            self.documents.secrets.contains_key(&enrollment_secret(id, &name()))
        }

        fn is_enrolled(&self) -> bool {
            is_true(&self.documents.hypervisors[&name()].status.as_ref().unwrap().conditions, "Enrolled")
        }

        fn trusts(&self) -> String {
            let id = self.documents.installation().unwrap();
            let value = |secret, key: &str| self.documents.secrets[secret].data.as_ref().unwrap()[key].0.clone();
            let (authority, list) = (installation_authority(id), installation_revoked(id));
            sha256_hex(&[value(&authority, "bundle.crt"), value(&list, REVOCATION_LIST)].concat())
        }

        /// The agent responds with a certificate of this serial number, which is due for renewal at this time.
        fn answers(&mut self, serial: String, renew_at: Timestamp) {
            let trusts = self.trusts();
            let (renew_at, not_after) = (Time(renew_at), Time(hour(24 * 365)));
            let identity = Some(AgentIdentity { serial, renew_at, not_after, trusts });
            let state = keelway_api::machine::MachineState { identity, ..empty() };
            self.seen.machines.insert(name(), ObservedValue::Known(state));
        }
    }

    fn ordered(plan: &Plan) -> Option<&AgentOrder> {
        plan.agents.get(&name())
    }

    #[test]
    fn an_agent_is_enrolled_while_its_token_is_good_and_its_key_is_nowhere_else() {
        let mut world = one();
        let plan = world.pass_at(hour(1));
        let minted: Vec<String> = plan.mint.iter().map(ToString::to_string).collect();
        assert_eq!(minted, [ALL[0], ALL[1], "sign revocation list revoked/revoked.crl"]);
        assert_eq!(ordered(&plan), Some(&AgentOrder::Enroll(world.agent().serial())));
        assert!(world.has_token() && !world.is_enrolled());
        // Until the agent is observed as enrolled, the order is repeated with the same number.
        assert_eq!(ordered(&world.pass_at(hour(1))), ordered(&plan));
        let late = world.pass_at(hour(2));
        assert_eq!(ordered(&late), None);
        assert!(late.waiting[0].blocker.to_string().contains("a new token"), "{:?}", late.waiting);
    }

    #[test]
    fn an_agent_that_answers_is_enrolled_and_its_token_is_gone() {
        let mut world = one();
        let _ = world.pass_at(hour(1));
        world.answers(world.agent().serial(), hour(100));
        let plan = world.pass_at(hour(1));
        assert_eq!((ordered(&plan), plan.waiting.len()), (None, 0));
        assert!(world.is_enrolled() && !world.has_token());
        let before = world.documents.clone();
        let _ = world.pass_at(hour(1));
        assert!(world.documents == before, "a settled world plans to nothing");
        // An agent that does not respond stays enrolled.
        world.seen.machines.insert(name(), ObservedValue::unreachable("no connection"));
        let away = world.pass_at(hour(1));
        assert!(
            ordered(&away).is_none() && away.waiting[0].blocker.to_string().contains("a response"),
            "{:?}",
            away.waiting
        );
        assert!(world.is_enrolled());
        let ended = world.pass_at(hour(24 * 365));
        assert!(ended.waiting[0].blocker.to_string().contains("its certificate expired"), "{:?}", ended.waiting);
    }

    #[test]
    fn a_certificate_is_counted_before_it_is_granted_and_granted_until_it_is_seen() {
        let mut world = one();
        let _ = world.pass_at(hour(1));
        let first = world.agent().serial();
        world.answers(first.clone(), hour(100));
        assert_eq!(ordered(&world.pass_at(hour(99))), None);
        let plan = world.pass_at(hour(100));
        let second = world.agent().serial();
        assert_ne!(first, second);
        assert_eq!(world.agent().serials(), [first, second.clone()]);
        assert_eq!(ordered(&plan), Some(&AgentOrder::Renew(second.clone())));
        assert_eq!(ordered(&world.pass_at(hour(101))), ordered(&plan), "nobody saw it yet");
        world.answers(second, hour(200));
        assert_eq!(ordered(&world.pass_at(hour(101))), None);
    }

    #[test]
    fn an_agent_with_other_certificates_keeps_its_token_until_it_starts_with_it() {
        let mut world = one();
        world.seen.machines.insert(name(), ObservedValue::Known(empty()));
        let plan = world.pass_at(hour(1));
        assert_eq!((ordered(&plan), world.has_token(), world.is_enrolled()), (None, true, false));
        world.seen.machines.insert(name(), ObservedValue::unreachable("a certificate of nobody"));
        assert_eq!(ordered(&world.pass_at(hour(1))), Some(&AgentOrder::Enroll(world.agent().serial())));
    }

    #[test]
    fn an_agent_receives_a_new_revocation_list() {
        let mut world = one();
        let _ = world.pass_at(hour(1));
        world.answers(world.agent().serial(), hour(100));
        let list = installation_revoked(world.documents.installation().unwrap());
        let serials = ByteString(b"40000000000000000000000000000000\n".to_vec());
        world.documents.put_secret_values(&list, [(REVOKED_SERIALS.to_owned(), serials)]);
        world.documents.secrets.get_mut(&list).unwrap().data.as_mut().unwrap().remove(REVOCATION_LIST);
        let plan = world.pass_at(hour(1));
        let signs = |wanted: &MintRequest| matches!(wanted, MintRequest::RevocationList { serials, .. } if serials == &["40000000000000000000000000000000"]);
        assert!(plan.mint.len() == 1 && signs(&plan.mint[0]), "{:?}", plan.mint);
        let list = world.documents.secrets.get_mut(&list).unwrap().data.as_mut().unwrap();
        list.insert(REVOCATION_LIST.to_owned(), ByteString(b"another".to_vec()));
        assert_eq!(ordered(&world.pass_at(hour(1))), Some(&AgentOrder::Trust));
    }

    /// One machine behind a proxy, on which no agent runs yet.
    fn behind_a_proxy() -> World {
        let mut world = World::new(&["{agent: {address: '10.0.0.1:7443'}}"]);
        let endpoint = CriEndpoint {
            address: "10.0.0.1:7444".to_owned(),
            server_name: None,
            secret_ref: SecretReference { namespace: "default".to_owned(), name: "proxy".to_owned() },
            agent_address: None,
            runtime_socket: RUNTIME_SOCKET.to_owned(),
        };
        let machine = world.documents.hypervisors.get_mut(&name()).unwrap();
        machine.spec.endpoint = HypervisorEndpoint::Cri(endpoint);
        identify(&mut world.documents, || "0123456789abcdef".to_owned()).unwrap();
        world.no_agent_runs();
        world
    }

    impl World {
        fn no_agent_runs(&mut self) {
            let why = "no agent runs on the machine".to_owned();
            self.seen.machines.insert(name(), ObservedValue::Unreachable { silent: UnreachableReason::Agent, why });
        }

        fn delete(&mut self) {
            let metadata = &mut self.documents.hypervisors.get_mut(&name()).unwrap().metadata;
            metadata.deletion_timestamp = Some(Time(NOW));
        }
    }

    #[test]
    fn an_agent_behind_a_proxy_is_started_whenever_none_runs() {
        let mut world = behind_a_proxy();
        let plan = world.pass_at(hour(1));
        let minted: Vec<String> = plan.mint.iter().map(ToString::to_string).collect();
        assert_eq!(minted, [ALL[0], ALL[1], "sign revocation list revoked/revoked.crl"]);
        let start = AgentOrder::Start(world.agent().serial());
        assert_eq!(ordered(&plan), Some(&start));
        assert!(!world.is_enrolled());
        // It runs and does not respond, because it has no certificate yet.
        world.seen.machines.insert(name(), ObservedValue::unreachable("no connection"));
        assert_eq!(ordered(&world.pass_at(hour(1))), Some(&start));
        world.answers(world.agent().serial(), hour(100));
        assert_eq!(ordered(&world.pass_at(hour(1))), None);
        assert!(world.is_enrolled());
        // It has a certificate, runs, and does not respond: the network is at fault.
        world.seen.machines.insert(name(), ObservedValue::unreachable("no connection"));
        assert_eq!(ordered(&world.pass_at(hour(1))), None);
        world.no_agent_runs();
        assert_eq!(ordered(&world.pass_at(hour(1))), Some(&start));
        // An expired certificate is replaced by one with another number.
        let plan = world.pass_at(hour(24 * 365));
        let second = AgentOrder::Start(world.agent().serial());
        assert_ne!(second, start);
        assert_eq!((ordered(&plan), world.agent().certificates), (Some(&second), 2));
        assert_eq!(ordered(&world.pass_at(hour(24 * 365))), Some(&second));
    }

    #[test]
    fn an_agent_of_another_release_is_replaced_if_keelway_started_it() {
        let mut world = behind_a_proxy();
        let _ = world.pass_at(hour(1));
        world.answers(world.agent().serial(), hour(100));
        let mut runs = |version: &str| {
            if let Some(ObservedValue::Known(state)) = world.seen.machines.get(&name()).map(|seen| (**seen).clone()) {
                let text = || "linux".to_owned();
                let (kernel_version, os_image, architecture) = (text(), text(), text());
                let agent_version = Some(version.to_owned());
                let system = SystemFacts { kernel_version, os_image, architecture, agent_version };
                let state = keelway_api::machine::MachineState { system: Some(system), ..state };
                world.seen.machines.insert(name(), ObservedValue::Known(state));
            }
            ordered(&world.pass_at(hour(1))).cloned()
        };
        assert_eq!(runs(KEELWAY.trim_start_matches('v')), None);
        assert!(matches!(runs("0.0.1"), Some(AgentOrder::Start(_))));
    }

    #[test]
    fn an_agent_is_stopped_before_its_document_is_removed() {
        let mut world = behind_a_proxy();
        let _ = world.pass_at(hour(1));
        world.answers(world.agent().serial(), hour(100));
        let _ = world.pass_at(hour(1));
        world.delete();
        let plan = world.pass_at(hour(1));
        assert_eq!(ordered(&plan), Some(&AgentOrder::Stop));
        assert!(plan.documents.hypervisors.contains_key(&name()));
        // It was not stopped: the order is repeated.
        assert_eq!(ordered(&world.pass_at(hour(1))), Some(&AgentOrder::Stop));
        world.no_agent_runs();
        assert!(world.pass_at(hour(1)).documents.hypervisors.is_empty());
    }

    #[test]
    fn a_deleted_machine_whose_agent_does_not_respond_keeps_its_document() {
        let mut world = behind_a_proxy();
        let _ = world.pass_at(hour(1));
        world.answers(world.agent().serial(), hour(100));
        let _ = world.pass_at(hour(1));
        world.seen.machines.insert(name(), ObservedValue::unreachable("no connection"));
        world.delete();
        let plan = world.pass_at(hour(1));
        assert!(ordered(&plan).is_none() && plan.documents.hypervisors.contains_key(&name()));
        world.no_agent_runs();
        assert!(matches!(ordered(&world.pass_at(hour(1))), Some(AgentOrder::Start(_))), "it may hold something");
    }

    #[test]
    fn a_machine_that_is_gone_leaves_nothing_behind_and_one_that_is_enrolled_no_key() {
        let mut world = World::new(&["{agent: {address: '10.0.0.1:7443'}}", "{agent: {address: '10.0.0.2:7443'}}"]);
        let _ = world.pass_at(NOW);
        let secrets = |world: &World| world.documents.secrets.keys().map(|name| name.name.clone()).collect::<Vec<_>>();
        assert_eq!(secrets(&world), ["agent-hv-1", "agent-hv-2", "driver", "infrastructure-ca"]);
        let status = world.documents.hypervisors.get_mut(&name()).unwrap().status.as_mut().unwrap();
        status.agent = Some(AgentStatus::new("0123456789abcdef".to_owned()));
        let _ = world.pass_at(NOW);
        assert_eq!(secrets(&world), ["agent-hv-2", "driver", "infrastructure-ca", "revoked"]);
        let gone: HypervisorName = "hv-2".parse().unwrap();
        world.seen.machines.insert(gone.clone(), ObservedValue::Known(empty()));
        let missing = world.documents.hypervisors.remove(&gone).unwrap();
        let _ = world.pass_at(NOW);
        assert_eq!(secrets(&world), ["agent-hv-2", "driver", "infrastructure-ca", "revoked"], "nobody deleted it");
        world.documents.hypervisors.insert(gone.clone(), missing);
        world.documents.hypervisors.get_mut(&gone).unwrap().metadata.deletion_timestamp = Some(Time(NOW));
        let _ = world.pass_at(NOW);
        assert!(!world.documents.hypervisors.contains_key(&gone));
        assert_eq!(secrets(&world), ["driver", "infrastructure-ca", "revoked"]);
    }

    #[test]
    fn a_list_of_revoked_certificates_that_is_lost_is_not_begun_anew() {
        let mut world = one();
        let _ = world.pass_at(hour(1));
        world.answers(world.agent().serial(), hour(100));
        let _ = world.pass_at(hour(1));
        let list = installation_revoked(world.documents.installation().unwrap());
        world.documents.secrets.remove(&list).unwrap();
        let plan = world.pass_at(hour(1));
        assert_eq!((plan.mint.len(), ordered(&plan)), (0, None));
        assert!(
            plan.waiting.iter().any(|waiting| waiting.subject.to_string().ends_with("/revoked")),
            "{:?}",
            plan.waiting
        );
    }

    #[test]
    fn a_revoked_agent_gets_no_certificate() {
        let mut world = one();
        let _ = world.pass_at(hour(1));
        let id = world.documents.installation().unwrap().clone();
        world.documents.secrets.remove(&enrollment_secret(&id, &name()));
        world
            .documents
            .hypervisors
            .get_mut(&name())
            .unwrap()
            .status
            .as_mut()
            .unwrap()
            .agent
            .as_mut()
            .unwrap()
            .revoked = true;
        let plan = world.pass_at(hour(1));
        assert_eq!((ordered(&plan), world.is_enrolled()), (None, false));
        assert!(plan.waiting[0].blocker.to_string().contains("its certificates are revoked"), "{:?}", plan.waiting);
    }
}
