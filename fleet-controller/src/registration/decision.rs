//! Decides which certificates agents get. Pure.

use k8s_openapi::jiff::Timestamp;
use keelway_component::certificate_request::{CsrSubject, MalformedRequest, Request};
use keelway_fleet::{
    bootstrap::BOOTSTRAPPERS,
    names::{AGENT_SIGNER, AGENTS_GROUP, agent_user, cluster_of_agent, is_cluster_name},
};

use super::record::AgentRecord;

const BOOTSTRAP_USER: &str = "system:bootstrap:";
const USAGES: [&str; 2] = ["client auth", "digital signature"];

/// Who requests a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AgentRequester<'a> {
    /// The bootstrap token with this id, which is bound to a cluster.
    Token {
        /// The id of the token.
        id: &'a str,
        /// The cluster of the token.
        cluster: &'a str,
    },
    /// The agent of this cluster, with a valid certificate.
    Agent(&'a str),
}

/// The facts about the cluster in a request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RegistrationFacts {
    /// Whether the cluster is in the fleet, and is not being removed.
    pub is_member: bool,
    /// Whether the cluster is being removed.
    pub is_leaving: bool,
    /// What is remembered of its agent.
    pub record: Option<AgentRecord>,
    /// The SHA-256 of the public key in the request.
    pub key: String,
    /// The current time.
    pub now: Timestamp,
}

/// The decision about a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RegistrationDecision {
    /// Approve it. If it came with a token, the cluster registers.
    Approve,
    /// Deny it.
    Deny(RegistrationDenial),
    /// Leave it to another approver.
    LeaveAlone,
}

/// Why a request is denied.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RegistrationDenial {
    /// The request cannot be parsed.
    #[error("{0}; create the request again")]
    IllFormed(MalformedRequest),
    /// The subject has another form.
    #[error("the subject must be exactly CN={}, O={AGENTS_GROUP}", agent_user(.0))]
    Subject(String),
    /// The certificate would be for another cluster.
    #[error("the request of cluster {own} is for a certificate of {asked}; an agent may only request its own")]
    AnotherCluster {
        /// The cluster of the requester.
        own: String,
        /// The common name in the request.
        asked: String,
    },
    /// The request has alternative names.
    #[error("a client certificate must not have alternative names")]
    Names,
    /// The usages are others.
    #[error("the usages must be exactly `digital signature` and `client auth`")]
    Usages,
    /// The token was used for another key.
    #[error("the token {0} was already used for another key; create a new one with `keelway fleet token create`")]
    TokenUsed(String),
    /// The cluster was removed, and a certificate for its name is still valid.
    #[error(
        "the cluster {cluster} was removed from the fleet, and a certificate of its agent is valid until {until}; use another name, or wait until then"
    )]
    NameRests {
        /// The name of the cluster.
        cluster: String,
        /// When the last certificate expires.
        until: Timestamp,
    },
    /// The cluster is being removed.
    #[error("the cluster {0} is being removed from the fleet; wait until it is gone, or use another name")]
    Leaving(String),
    /// The cluster is not in the fleet.
    #[error("the cluster {0} is not in the fleet; register it with a token from `keelway fleet token create`")]
    Removed(String),
}

impl RegistrationDenial {
    /// Returns the reason as one word.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::IllFormed(_) => "IllFormed",
            Self::Subject(_) => "WrongSubject",
            Self::AnotherCluster { .. } => "AnotherCluster",
            Self::Names => "UnexpectedNames",
            Self::Usages => "WrongUsages",
            Self::TokenUsed(_) => "TokenUsed",
            Self::NameRests { .. } => "NameRests",
            Self::Leaving(_) => "ClusterLeaving",
            Self::Removed(_) => "ClusterRemoved",
        }
    }
}

/// Returns who requests a certificate, if it is an agent or its token, and the signer is that of agents.
#[must_use]
pub fn requester(request: &Request) -> Option<AgentRequester<'_>> {
    if request.signer != AGENT_SIGNER {
        return None;
    }
    if let Some(cluster) = cluster_of_agent(&request.username).filter(|_| request.groups.contains(AGENTS_GROUP)) {
        return Some(AgentRequester::Agent(cluster));
    }
    let id = request.username.strip_prefix(BOOTSTRAP_USER)?;
    let mut bound = request.groups.iter().filter_map(|group| group.strip_prefix(BOOTSTRAPPERS)?.strip_prefix(':'));
    // A token of two clusters would let one register as the other.
    let (Some(cluster), None) = (bound.next(), bound.next()) else { return None };
    is_cluster_name(cluster).then_some(AgentRequester::Token { id, cluster })
}

impl<'a> AgentRequester<'a> {
    /// Returns the cluster for which a certificate may be requested.
    #[must_use]
    pub fn cluster(&self) -> &'a str {
        match self {
            Self::Token { cluster, .. } | Self::Agent(cluster) => cluster,
        }
    }
}

/// Decides about a request.
#[must_use]
pub fn decide(request: &Request, facts: &RegistrationFacts) -> RegistrationDecision {
    let Some(asker) = requester(request).filter(|_| !request.decided) else { return RegistrationDecision::LeaveAlone };
    match check_form(request, asker.cluster()).and_then(|()| check_standing(&asker, facts)) {
        Ok(()) => RegistrationDecision::Approve,
        Err(denial) => RegistrationDecision::Deny(denial),
    }
}

/// Checks the content of the request.
fn check_form(request: &Request, cluster: &str) -> Result<(), RegistrationDenial> {
    let subject = request.subject.as_ref().map_err(|fault| RegistrationDenial::IllFormed(fault.clone()))?;
    check_subject(subject, cluster)?;
    if subject.has_names() {
        return Err(RegistrationDenial::Names);
    }
    if request.usages.iter().map(String::as_str).ne(USAGES) {
        return Err(RegistrationDenial::Usages);
    }
    Ok(())
}

fn check_subject(subject: &CsrSubject, cluster: &str) -> Result<(), RegistrationDenial> {
    let CsrSubject { common_names, organizations, has_others, .. } = subject;
    let ([asked], [group], false) = (common_names.as_slice(), organizations.as_slice(), *has_others) else {
        return Err(RegistrationDenial::Subject(cluster.to_owned()));
    };
    if group != AGENTS_GROUP {
        return Err(RegistrationDenial::Subject(cluster.to_owned()));
    }
    if *asked != agent_user(cluster) {
        return Err(RegistrationDenial::AnotherCluster { own: cluster.to_owned(), asked: asked.clone() });
    }
    Ok(())
}

/// Checks whether the requester may have a certificate now.
fn check_standing(asker: &AgentRequester<'_>, facts: &RegistrationFacts) -> Result<(), RegistrationDenial> {
    let cluster = asker.cluster().to_owned();
    if facts.is_leaving {
        return Err(RegistrationDenial::Leaving(cluster));
    }
    let record = facts.record.as_ref();
    match asker {
        AgentRequester::Agent(_) => {
            let is_known = facts.is_member && record.is_some_and(|record| !record.removed);
            if is_known { Ok(()) } else { Err(RegistrationDenial::Removed(cluster)) }
        }
        AgentRequester::Token { id, .. } => {
            if let Some(until) = record.and_then(|record| record.rests_until(facts.now)) {
                return Err(RegistrationDenial::NameRests { cluster, until });
            }
            let used = record.and_then(|record| record.token.as_ref()).filter(|used| used.id == *id);
            match used {
                Some(used) if used.key != facts.key => Err(RegistrationDenial::TokenUsed((*id).to_owned())),
                Some(_) | None => Ok(()),
            }
        }
    }
}
