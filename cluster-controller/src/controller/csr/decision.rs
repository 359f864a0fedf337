//! Decides which certificates workers get. Pure.
//!
//! The form of a certificate follows Kubernetes' own signers
//! (<https://kubernetes.io/docs/reference/access-authn-authz/certificate-signing-requests/#kubernetes-signers>). Keelway decides who may have
//! which: a name belongs to its peer, and addresses to the allocation. The status of a Node is never a source.

use std::{collections::BTreeSet, net::IpAddr};

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use keelway_api::{
    machine::sha256_hex,
    name::is_subdomain,
    worker::{BOOTSTRAP_USER, BOOTSTRAPPERS, GATEWAY_USER, NodeNameFault, WorkerIdentitySpec},
};

use keelway_component::certificate_request::{CsrSubject, MalformedRequest, Request};

use super::super::identities::decision::{CertificateHolder, holder, is_asked, kept, pruned};

/// The signer of kubelets' client certificates.
pub(crate) const CLIENT: &str = "kubernetes.io/kube-apiserver-client-kubelet";
/// The signer of kubelets' serving certificates.
pub(crate) const SERVING: &str = "kubernetes.io/kubelet-serving";
/// The group of nodes.
pub const NODES: &str = "system:nodes";
const NODE_PREFIX: &str = "system:node:";

/// The facts about the name in a request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct NodeFacts {
    /// Why no worker may have that name, if that is the case.
    pub(crate) fault: Option<NodeNameFault>,
    /// The addresses of the peer with that name. `None` if there is no such peer.
    pub(crate) peer: Option<BTreeSet<IpAddr>>,
    /// Whether a worker of that name was evicted recently.
    pub(crate) tombstone: bool,
    /// The approvals for that name.
    pub(crate) identity: Option<WorkerIdentitySpec>,
    /// The current time.
    pub(crate) now: Timestamp,
    /// How long after its end a certificate proves its key.
    pub(crate) grace: SignedDuration,
}

/// The decision about a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CsrDecision {
    /// Approve it, for this reason.
    Approve(&'static str),
    /// Deny it.
    Deny(Denial),
    /// Leave it to another approver.
    LeaveAlone,
    /// Wait for the peer's addresses.
    Wait,
    /// Wait until the owner of the requester's certificate is known.
    WaitForIdentity,
}

/// Why a request is denied.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Denial {
    #[error("{0}; create the request again")]
    IllFormed(MalformedRequest),
    #[error("the subject must be exactly CN=system:node:NAME, O=system:nodes, where NAME is a DNS subdomain")]
    Subject,
    #[error("{name} is not a valid name of a worker: {fault}; set another one with --node-name")]
    Name { name: String, fault: NodeNameFault },
    #[error("a client certificate must not have alternative names")]
    Names,
    #[error("the usages must be {0}")]
    Usages(&'static str),
    #[error("{asked} requested a certificate for {named}; a node may only request its own")]
    AnotherNode { asked: String, named: String },
    #[error(
        "a worker named {0} is in the cluster; use another name, or, if it was this machine, delete the WireGuardPeer {0} first"
    )]
    NameTaken(String),
    #[error(
        "a worker named {0} was evicted, and its name is reserved; use another name, or wait until its Tombstone is deleted"
    )]
    NameRests(String),
    #[error("another key was just approved for {0}; use another name, or join again in a few minutes")]
    NameAsked(String),
    #[error("too many certificates of {0} are still valid; use another name, or wait until one expires")]
    NameSpent(String),
    #[error("the certificate belongs to an earlier worker named {0}; run `keelway node forget`, and join with a token")]
    Former(String),
    #[error(
        "the request is not signed by the key of the last certificate of {0}, or that certificate ended too long ago (spec.certificates.workerGrace); run `keelway node forget`, and join with a token"
    )]
    Unproven(String),
    #[error("{0} has no WireGuardPeer; join again")]
    NoPeer(String),
    #[error(
        "{name} does not belong to {node}; a node may use only its own name and the addresses of its WireGuardPeer"
    )]
    NotIts { name: String, node: String },
    #[error("a serving certificate must have at least one address or name")]
    NoName,
}

impl Denial {
    /// Returns the reason as one word.
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Self::IllFormed(_) => "IllFormed",
            Self::Subject => "WrongSubject",
            Self::Name { .. } => "NameReserved",
            Self::Names => "UnexpectedNames",
            Self::Usages(_) => "WrongUsages",
            Self::AnotherNode { .. } => "AnotherNode",
            Self::NameTaken(_) => "NameTaken",
            Self::NameRests(_) => "NameRests",
            Self::NameAsked(_) => "NameAsked",
            Self::NameSpent(_) => "NameSpent",
            Self::Former(_) => "FormerWorker",
            Self::Unproven(_) => "Unproven",
            Self::NoPeer(_) => "NoPeer",
            Self::NotIts { .. } => "NotAllocated",
            Self::NoName => "NoName",
        }
    }
}

impl NodeFacts {
    /// Whether the worker of that name cannot reconnect, because all its certificates have expired.
    pub(crate) fn has_ended(&self) -> bool {
        self.identity.as_ref().is_some_and(|identity| pruned(identity, self.now).certificates.is_empty())
    }

    /// Whether this is the id of the worker's last certificate, which has expired, and still proves its key.
    fn is_proof(&self, id: &str) -> bool {
        let Some(identity) = self.identity.as_ref().filter(|_| self.has_ended()) else { return false };
        kept(identity, self.now, self.grace).certificates.iter().any(|one| one.id.as_deref() == Some(id))
    }

    fn is_asked(&self, subject: &CsrSubject) -> bool {
        self.identity.as_ref().is_some_and(|identity| is_asked(identity, &sha256_hex(&subject.key), self.now))
    }
}

/// The requester.
enum CsrRequester<'a> {
    Token,
    Node(&'a str),
    /// A worker without a valid certificate, through a gateway.
    Gateway,
}

/// Returns the node whose certificate is requested, if the request is from a worker or its token.
pub(crate) fn node_of(request: &Request) -> Option<&str> {
    requester(request)?;
    named(request.subject.as_ref().ok()?)
}

/// Decides about a request.
pub(crate) fn decide(request: &Request, facts: &NodeFacts) -> CsrDecision {
    let Some(asker) = requester(request) else { return CsrDecision::LeaveAlone };
    if request.decided {
        return CsrDecision::LeaveAlone;
    }
    let verdict = match request.signer.as_str() {
        CLIENT => client(request, &asker, facts),
        _ => serving(request, &asker, facts),
    };
    verdict.unwrap_or_else(CsrDecision::Deny)
}

/// Returns the requester. Keelway decides only about requests to these two signers by its tokens, by nodes and by gateways.
fn requester(request: &Request) -> Option<CsrRequester<'_>> {
    let node = request.username.strip_prefix(NODE_PREFIX).filter(|_| request.groups.contains(NODES));
    let token = request.username.starts_with(BOOTSTRAP_USER) && request.groups.contains(BOOTSTRAPPERS);
    match (request.signer.as_str(), node) {
        (CLIENT | SERVING, Some(node)) => Some(CsrRequester::Node(node)),
        (CLIENT, None) if token => Some(CsrRequester::Token),
        (CLIENT, None) if request.username == GATEWAY_USER => Some(CsrRequester::Gateway),
        (_, _) => None,
    }
}

fn named(subject: &CsrSubject) -> Option<&str> {
    let [name] = subject.common_names.as_slice() else { return None };
    let [organization] = subject.organizations.as_slice() else { return None };
    let node = name.strip_prefix(NODE_PREFIX)?;
    (organization == NODES && !subject.has_others && is_subdomain(node)).then_some(node)
}

/// Returns the subject and the node that it names.
fn subject(request: &Request) -> Result<(&CsrSubject, &str), Denial> {
    let subject = request.subject.as_ref().map_err(|why| Denial::IllFormed(why.clone()))?;
    Ok((subject, named(subject).ok_or(Denial::Subject)?))
}

fn client(request: &Request, asker: &CsrRequester<'_>, facts: &NodeFacts) -> Result<CsrDecision, Denial> {
    let (subject, node) = subject(request)?;
    check_name(node, facts)?;
    if subject.has_names() {
        return Err(Denial::Names);
    }
    check_usages(request, "client auth", "digital signature, client auth and, for RSA, key encipherment")?;
    check_tombstone(node, facts)?;
    match asker {
        CsrRequester::Token if facts.peer.is_some() && !facts.has_ended() => Err(Denial::NameTaken(node.to_owned())),
        CsrRequester::Token if facts.is_asked(subject) => Err(Denial::NameAsked(node.to_owned())),
        CsrRequester::Token => Ok(CsrDecision::Approve("a worker joins, and its name is free")),
        CsrRequester::Gateway if facts.peer.is_none() => Err(Denial::NoPeer(node.to_owned())),
        CsrRequester::Gateway if request.proven.as_deref().is_some_and(|id| facts.is_proof(id)) => {
            Ok(CsrDecision::Approve("a worker renews its expired certificate with the key of that certificate"))
        }
        CsrRequester::Gateway => Err(Denial::Unproven(node.to_owned())),
        CsrRequester::Node(own) => {
            check_own(own, node)?;
            if facts.peer.is_none() {
                return Err(Denial::NoPeer(node.to_owned()));
            }
            if !check_holder(request, node, facts)? {
                return Ok(CsrDecision::WaitForIdentity);
            }
            Ok(CsrDecision::Approve("a worker renews its own client certificate"))
        }
    }
}

fn serving(request: &Request, asker: &CsrRequester<'_>, facts: &NodeFacts) -> Result<CsrDecision, Denial> {
    let (subject, node) = subject(request)?;
    if let CsrRequester::Node(own) = asker {
        check_own(own, node)?;
    }
    check_name(node, facts)?;
    check_usages(request, "server auth", "digital signature, server auth and, for RSA, key encipherment")?;
    check_tombstone(node, facts)?;
    let Some(allocated) = &facts.peer else {
        return Err(Denial::NoPeer(node.to_owned()));
    };
    if !check_holder(request, node, facts)? {
        return Ok(CsrDecision::WaitForIdentity);
    }
    if allocated.is_empty() {
        return Ok(CsrDecision::Wait);
    }
    if subject.has_other_names {
        return Err(Denial::NotIts {
            name: "a name that is neither a DNS name nor an address".to_owned(),
            node: node.to_owned(),
        });
    }
    let foreign = |name: String| Denial::NotIts { name, node: node.to_owned() };
    if let Some(name) = subject.dns_names.iter().find(|name| *name != node) {
        return Err(foreign(name.clone()));
    }
    if let Some(address) = subject.addresses.difference(allocated).next() {
        return Err(foreign(address.to_string()));
    }
    if !subject.has_names() {
        return Err(Denial::NoName);
    }
    Ok(CsrDecision::Approve("the names and addresses belong to the worker"))
}

fn check_own(asked: &str, named: &str) -> Result<(), Denial> {
    if asked == named {
        return Ok(());
    }
    Err(Denial::AnotherNode { asked: asked.to_owned(), named: named.to_owned() })
}

/// Checks that the requester's certificate belongs to the worker that has the name. Returns false if that is not known yet. If the worker never
/// joined with a token, nothing is recorded. Its certificate was then approved by an administrator, and is accepted.
fn check_holder(request: &Request, node: &str, facts: &NodeFacts) -> Result<bool, Denial> {
    let age = request.created.map_or(SignedDuration::ZERO, |created| facts.now.duration_since(created));
    let holder = |known| holder(known, request.credential.as_deref(), age);
    match facts.identity.as_ref().map_or(CertificateHolder::Current, holder) {
        CertificateHolder::Current => Ok(true),
        CertificateHolder::Unknown => Ok(false),
        CertificateHolder::Former => Err(Denial::Former(node.to_owned())),
    }
}

fn check_name(node: &str, facts: &NodeFacts) -> Result<(), Denial> {
    facts.fault.map_or(Ok(()), |fault| Err(Denial::Name { name: node.to_owned(), fault }))
}

fn check_tombstone(node: &str, facts: &NodeFacts) -> Result<(), Denial> {
    if facts.tombstone { Err(Denial::NameRests(node.to_owned())) } else { Ok(()) }
}

/// Checks for exactly the usages that the signers accept.
fn check_usages(request: &Request, wanted: &str, in_words: &'static str) -> Result<(), Denial> {
    let mut usages = request.usages.clone();
    usages.remove("key encipherment");
    let exact = usages.len() == 2 && usages.contains("digital signature") && usages.contains(wanted);
    if exact { Ok(()) } else { Err(Denial::Usages(in_words)) }
}
