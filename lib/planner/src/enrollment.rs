//! The identities of networked agents: which agent is to be enrolled, to get a new certificate, or to get new trust anchors.

use alloc::{
    format,
    string::{String, ToString},
    vec::Vec,
};
use core::str;

use keelway_api::{
    Documents, Hypervisor, Time,
    condition::{self, ConditionStatus, ConditionValue, reason::ConditionReason},
    documents::SecretName,
    hypervisor::{AgentStatus, MachineTransport},
    jiff::Timestamp,
    machine::{AgentIdentity, MachineState, ObservedValue, UnreachableReason, sha256_hex},
    name::{HypervisorName, InstallationId},
    release::KEELWAY,
};

use crate::{
    PassObservation,
    installation::{AGENT_PREFIX, REVOCATION_LIST, agent_identity, installation_authority, installation_revoked},
    plan::{AgentOrder, Plan},
};

/// The prefix of the names of Secrets that hold tokens.
const TOKEN_PREFIX: &str = "enroll";
/// The key of the token in its Secret, as the agent gets it.
pub const ENROLLMENT_TOKEN: &str = "token";
/// The key of the token's expiry in its Secret.
pub const ENROLLMENT_EXPIRES: &str = "expires";

/// Returns the Secret of the token with which a machine's agent is enrolled.
#[must_use]
pub fn enrollment_secret(id: &InstallationId, machine: &HypervisorName) -> SecretName {
    SecretName::of_installation(id, &format!("{TOKEN_PREFIX}-{machine}"))
}

/// What the observation shows of a machine's agent.
enum EnrollmentState<'a> {
    /// It responds with its own certificate, and may report it.
    Answers(Option<&'a AgentIdentity>),
    /// It responds with a certificate that was not granted to it, and has a token that expires then.
    AnswersAsBefore(Timestamp),
    /// It does not respond, and has a token that expires then.
    Token(Timestamp),
    /// It does not respond, and has no token.
    Silent,
    /// Keelway starts it: it does not run, or has no valid certificate yet.
    NotStarted,
    /// Keelway started it, and it runs another release of Keelway.
    OtherRelease(&'a AgentIdentity),
}

pub(crate) fn plan_agents(plan: &mut Plan, seen: &PassObservation, now: &Time) {
    let Some(id) = plan.documents.installation().cloned() else { return };
    forget(&mut plan.documents, &id);
    let trusts = trusts(&plan.documents, &id);
    let names: Vec<HypervisorName> = plan.documents.hypervisors.keys().cloned().collect();
    for name in names {
        let secret = enrollment_secret(&id, &name);
        let token = expires(&plan.documents, &secret);
        let Some(document) = plan.documents.hypervisors.get_mut(&name) else { continue };
        let is_behind_proxy = document.spec.endpoint.cri().is_some();
        let Some(agent) = agent(document) else { continue };
        let started = is_behind_proxy && !agent.revoked;
        let standing = match seen.machines.get(&name).map(|seen| &**seen) {
            Some(ObservedValue::Unreachable { silent: UnreachableReason::Agent, .. }) if started => {
                EnrollmentState::NotStarted
            }
            Some(ObservedValue::Unreachable { silent: UnreachableReason::Asked, .. })
                if started && agent.not_after.as_ref().is_none_or(|end| end.0 <= now.0) =>
            {
                EnrollmentState::NotStarted
            }
            Some(ObservedValue::Known(MachineState { identity: Some(identity), system: Some(system), .. }))
                if started
                    && system
                        .agent_version
                        .as_deref()
                        .is_some_and(|version| version != KEELWAY.trim_start_matches('v')) =>
            {
                EnrollmentState::OtherRelease(identity)
            }
            Some(ObservedValue::Known(MachineState { identity: Some(identity), .. })) => {
                EnrollmentState::Answers(Some(identity))
            }
            Some(
                ObservedValue::Known(_)
                | ObservedValue::Unreachable { silent: UnreachableReason::Runtime | UnreachableReason::Led, .. },
            ) => token.map_or(EnrollmentState::Answers(None), EnrollmentState::AnswersAsBefore),
            Some(ObservedValue::Unreachable {
                silent: UnreachableReason::Asked | UnreachableReason::Agent, ..
            })
            | None => token.map_or(EnrollmentState::Silent, EnrollmentState::Token),
        };
        let order = order(agent, &standing, trusts.as_deref(), now.0);
        if matches!(standing, EnrollmentState::Answers(_)) {
            plan.documents.secrets.remove(&secret);
        }
        if let Some(order) = order.filter(|_| !seen.refused.contains_key(&name)) {
            plan.agents.insert(name.clone(), order);
        }
        if let Some(document) = plan.documents.hypervisors.get_mut(&name) {
            note(document, &standing, now);
        }
    }
}

/// Returns the machines whose agents Keelway is about to start for the first time. Their documents record the attempt.
pub(crate) fn first_starts(documents: &Documents, seen: &PassObservation) -> Vec<HypervisorName> {
    let is_first = |name: &HypervisorName, document: &Hypervisor| {
        let status = document.status.as_ref();
        let runs_no_agent = matches!(
            seen.machines.get(name).map(|seen| &**seen),
            Some(ObservedValue::Unreachable { silent: UnreachableReason::Agent, .. })
        );
        let was_tried = status.is_some_and(|status| status.conditions.iter().any(|found| found.type_ == "Enrolled"));
        let is_wanted = status.and_then(|status| status.agent.as_ref()).is_some_and(|agent| !agent.revoked);
        runs_no_agent && is_wanted && !was_tried && !document.deleted()
    };
    let machines = documents.hypervisors.iter().filter(|(name, document)| is_first(name, document));
    machines.map(|(name, _)| name.clone()).collect()
}

/// Removes the Secrets of agents that have their own key. A Secret whose Hypervisor is missing stays until that machine is deleted.
fn forget(documents: &mut Documents, id: &InstallationId) {
    let Documents { hypervisors, secrets, .. } = documents;
    let namespace = id.namespace();
    let is_enrolled = |name: &str| {
        let machine = name.parse::<HypervisorName>().ok().and_then(|name| hypervisors.get(&name));
        machine.and_then(|machine| machine.status.as_ref()?.agent.as_ref()).is_some()
    };
    secrets.retain(|SecretName { namespace: of, name }, _| match name.split_once('-') {
        Some((AGENT_PREFIX, name)) => *of != namespace || !is_enrolled(name),
        _ => true,
    });
}

/// Removes the token and the key of the agent of a deleted machine.
pub(crate) fn forget_machine(documents: &mut Documents, machine: &HypervisorName) {
    let Some(id) = documents.installation().cloned() else { return };
    for secret in [enrollment_secret(&id, machine), agent_identity(&id, machine).secret] {
        documents.secrets.remove(&secret);
    }
}

/// The status of the agent of a networked machine, if this installation grants its certificates.
fn agent(document: &mut Hypervisor) -> Option<&mut AgentStatus> {
    match document.spec.endpoint.way() {
        MachineTransport::Network(_) | MachineTransport::Cri(_) => document.status.as_mut()?.agent.as_mut(),
        MachineTransport::Runtime(_) | MachineTransport::Agent(_) => None,
    }
}

/// A certificate is counted before it is granted, so none is granted without being counted.
fn order(
    agent: &mut AgentStatus,
    standing: &EnrollmentState<'_>,
    trusts: Option<&str>,
    now: Timestamp,
) -> Option<AgentOrder> {
    match standing {
        EnrollmentState::Token(expires) => (now < *expires).then(|| AgentOrder::Enroll(agent.serial())),
        EnrollmentState::Answers(Some(identity)) if identity.serial != agent.serial() => {
            Some(AgentOrder::Renew(agent.serial()))
        }
        EnrollmentState::Answers(Some(identity)) if identity.renew_at.0 <= now => {
            agent.certificates += 1;
            Some(AgentOrder::Renew(agent.serial()))
        }
        EnrollmentState::Answers(Some(identity)) => {
            trusts.is_some_and(|trusts| trusts != identity.trusts).then_some(AgentOrder::Trust)
        }
        EnrollmentState::NotStarted => {
            // An expired certificate is replaced by one with another number.
            agent.certificates += u32::from(agent.not_after.take_if(|end| end.0 <= now).is_some());
            Some(AgentOrder::Start(agent.serial()))
        }
        EnrollmentState::OtherRelease(_) => Some(AgentOrder::Start(agent.serial())),
        EnrollmentState::Answers(None) | EnrollmentState::AnswersAsBefore(_) | EnrollmentState::Silent => None,
    }
}

/// Records the state of the agent in the status.
fn note(document: &mut Hypervisor, standing: &EnrollmentState<'_>, now: &Time) {
    let generation = document.metadata.generation;
    let status = document.status.get_or_insert_default();
    let Some(agent) = &mut status.agent else { return };
    if let EnrollmentState::Answers(Some(identity)) | EnrollmentState::OtherRelease(identity) = standing {
        agent.not_after = Some(identity.not_after.clone());
    }
    let is_enrolled = condition::is_true(&status.conditions, "Enrolled");
    let says = match standing {
        EnrollmentState::Answers(_) | EnrollmentState::OtherRelease(_) => {
            let message = agent.not_after.as_ref().map(|end| format!("its certificate expires at {}", end.0));
            verdict(ConditionStatus::True, ConditionReason::Certified, message.unwrap_or_default())
        }
        EnrollmentState::AnswersAsBefore(expires) | EnrollmentState::Token(expires) if now.0 < *expires => {
            let message = format!("waits for its agent to be started with the token that expires at {expires}");
            verdict(ConditionStatus::False, ConditionReason::TokenIssued, message)
        }
        EnrollmentState::AnswersAsBefore(expires) | EnrollmentState::Token(expires) => {
            verdict(ConditionStatus::False, ConditionReason::TokenExpired, format!("waits for {}", new_token(expires)))
        }
        EnrollmentState::Silent if agent.revoked => {
            verdict(ConditionStatus::False, ConditionReason::Revoked, "its certificates are revoked")
        }
        EnrollmentState::Silent | EnrollmentState::NotStarted if is_enrolled => return,
        EnrollmentState::NotStarted => {
            let message = "Keelway starts its agent through the machine's proxy";
            verdict(ConditionStatus::False, ConditionReason::AgentStarting, message)
        }
        EnrollmentState::Silent => {
            verdict(ConditionStatus::False, ConditionReason::TokenExpired, "waits for a new token")
        }
    };
    condition::set(&mut status.conditions, "Enrolled", says, generation, now);
}

fn verdict(status: ConditionStatus, reason: ConditionReason, message: impl Into<String>) -> ConditionValue {
    ConditionValue { status, reason: reason.as_str().to_string(), message: message.into() }
}

fn new_token(expires: &Timestamp) -> String {
    format!("a new token from `keelway hypervisor enroll`: the previous one expired at {expires}")
}

/// What a machine waits for that does not respond and is not enrolled. None: for a response.
pub(crate) fn waits_for(documents: &Documents, machine: &HypervisorName, now: Timestamp) -> Option<String> {
    let document = documents.hypervisors.get(machine)?;
    let agent = document.status.as_ref()?.agent.as_ref()?;
    let is_started = document.spec.endpoint.cri().is_some();
    if agent.revoked {
        if is_started {
            return Some(format!(
                "its deletion, because its agent's certificates are revoked: run `keelway hypervisor delete {machine}`"
            ));
        }
        let enroll = format!("`keelway hypervisor enroll --name {machine}`");
        return Some(format!(
            "a new enrollment, because its certificates are revoked: run {enroll}, or delete its document"
        ));
    }
    if let Some(end) = agent.not_after.as_ref().filter(|end| end.0 <= now && !is_started) {
        let enroll = format!("`keelway hypervisor enroll --name {machine}`");
        return Some(format!("a new enrollment, because its certificate expired at {}: run {enroll}", end.0));
    }
    let id = documents.installation()?;
    let expires = expires(documents, &enrollment_secret(id, machine))?;
    if now < expires {
        return Some(format!("its agent, which must be started with the token that expires at {expires}"));
    }
    Some(new_token(&expires))
}

fn expires(documents: &Documents, secret: &SecretName) -> Option<Timestamp> {
    let data = documents.secrets.get(secret)?.data.as_ref()?;
    str::from_utf8(&data.get(ENROLLMENT_EXPIRES)?.0).ok()?.parse().ok()
}

/// The digest of the authorities and the revocation list that agents are to trust, as in [`AgentIdentity`].
fn trusts(documents: &Documents, id: &InstallationId) -> Option<String> {
    let value = |secret: &SecretName, key: &str| {
        let value = documents.secrets.get(secret)?.data.as_ref()?.get(key)?;
        Some(value.0.clone())
    };
    let authorities = value(&installation_authority(id), "bundle.crt")?;
    let revoked = value(&installation_revoked(id), REVOCATION_LIST)?;
    Some(sha256_hex(&[authorities, revoked].concat()))
}
