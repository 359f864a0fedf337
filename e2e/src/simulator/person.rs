//! What people do, and documents in their hands: one is taken away, one is an older copy, one is there twice.

use std::{collections::BTreeMap, fmt};

use keelway_api::{
    Asked, Cluster, Documents, Hypervisor, Shared,
    cluster::MemberPhase,
    component::Stage,
    documents::{ENCRYPTION_SECRET, SecretName},
    machine::Seen,
    name::{ClusterId, ClusterRef, HypervisorName, PodName},
    role::Role,
};
use keelway_planner::{Holds, Observation, holds, refuse};

use super::{error::Refused, world::World};

/// Something that a person does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Deed {
    BringsAMachine,
    AsksForACluster,
    Changes,
    Deletes,
    Pauses,
    Unpauses,
    Cordons,
    Uncordons,
    Drains,
    Adopts,
    RemovesHypervisor,
    RemovesCluster,
    RemovesComponent,
    RemovesSecret,
    RestoresHypervisor,
    RestoresCluster,
    RestoresComponent,
    DoublesADocument,
    /// What a person wrote is refused, and it puts the documents back.
    IsRefused,
}

impl Deed {
    /// Everything that people do.
    pub const ALL: [Self; 19] = [
        Self::BringsAMachine,
        Self::AsksForACluster,
        Self::Changes,
        Self::Deletes,
        Self::Pauses,
        Self::Unpauses,
        Self::Cordons,
        Self::Uncordons,
        Self::Drains,
        Self::Adopts,
        Self::RemovesHypervisor,
        Self::RemovesCluster,
        Self::RemovesComponent,
        Self::RemovesSecret,
        Self::RestoresHypervisor,
        Self::RestoresCluster,
        Self::RestoresComponent,
        Self::DoublesADocument,
        Self::IsRefused,
    ];
}

/// How often people did what.
#[derive(Debug, Clone, Default)]
pub struct Deeds(BTreeMap<Deed, u64>);

impl Deeds {
    /// Adds what another run counted.
    pub fn add(&mut self, other: &Self) {
        for (deed, times) in &other.0 {
            *self.0.entry(*deed).or_default() += times;
        }
    }

    /// What nobody did.
    #[must_use]
    pub fn missing(&self) -> Vec<Deed> {
        Deed::ALL.into_iter().filter(|deed| !self.0.contains_key(deed)).collect()
    }
}

impl fmt::Display for Deeds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counted = Deed::ALL.map(|deed| format!("{deed:?} {}", self.0.get(&deed).copied().unwrap_or_default()));
        write!(f, "People: {}", counted.join(", "))
    }
}

/// One of the documents.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Document {
    Hypervisor(HypervisorName),
    Cluster(ClusterRef),
    Component(PodName),
    Secret(SecretName),
}

/// What a person wrote in the place of what is saved.
#[derive(Debug, Clone)]
pub(super) struct ByHand {
    text: String,
    changed: Document,
    /// What is right to say to it.
    expected: Expected,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expected {
    /// Others rely on what is not there, or nobody knows which of two counts.
    Refusal,
    Either,
}

impl World {
    pub(super) fn did(&mut self, deed: Deed) {
        self.deeds.count(deed);
    }

    pub(super) fn remove_document(&mut self) -> bool {
        let Some(document) = self.some_document() else { return false };
        let mut documents = self.saved.clone();
        let expected = if self.is_relied_on(&document) { Expected::Refusal } else { Expected::Either };
        let deed = match &document {
            Document::Hypervisor(name) => documents.hypervisors.remove(name).map(|_| Deed::RemovesHypervisor),
            Document::Cluster(name) => documents.clusters.remove(name).map(|_| Deed::RemovesCluster),
            Document::Component(name) => documents.components.remove(name).map(|_| Deed::RemovesComponent),
            Document::Secret(name) => documents.secrets.remove(name).map(|_| Deed::RemovesSecret),
        };
        self.write_by_hand(deed, "takes away", document, &documents, expected)
    }

    pub(super) fn restore_document(&mut self) -> bool {
        let (Some(document), Some(old)) = (self.some_document(), self.random.pick(self.history.clone())) else {
            return false;
        };
        let mut documents = self.saved.clone();
        let deed = match &document {
            Document::Hypervisor(name) => old.hypervisors.get(name).map(|copy| {
                documents.hypervisors.insert(name.clone(), copy.clone());
                Deed::RestoresHypervisor
            }),
            Document::Cluster(name) => old.clusters.get(name).map(|copy| {
                documents.clusters.insert(name.clone(), copy.clone());
                Deed::RestoresCluster
            }),
            Document::Component(name) => old.components.get(name).map(|copy| {
                documents.components.insert(name.clone(), copy.clone());
                Deed::RestoresComponent
            }),
            // Its older copies are what it is: a Secret hardly ever changes.
            Document::Secret(_) => None,
        };
        self.write_by_hand(deed, "puts an older copy in the place of", document, &documents, Expected::Either)
    }

    pub(super) fn double_document(&mut self) -> bool {
        let Some(document) = self.some_document() else { return false };
        let mut alone = Documents::default();
        match &document {
            Document::Hypervisor(name) => {
                alone.hypervisors.extend(self.saved.hypervisors.get_key_value(name).map(owned));
            }
            Document::Cluster(name) => alone.clusters.extend(self.saved.clusters.get_key_value(name).map(owned)),
            Document::Component(name) => {
                alone.components.extend(self.saved.components.get_key_value(name).map(owned));
            }
            Document::Secret(name) => alone.secrets.extend(self.saved.secrets.get_key_value(name).map(owned)),
        }
        if self.by_hand.is_some() || self.pass.stale {
            return false;
        }
        let text = format!("{}---\n{}", self.saved.write(), alone.write());
        self.tell(format!("a person writes {document:?} twice"));
        self.did(Deed::DoublesADocument);
        self.by_hand = Some(ByHand { text, changed: document, expected: Expected::Refusal });
        true
    }

    /// What a person wrote is read as the command line reads it. Who is told that it cannot be puts the documents back.
    pub(super) fn read_what_a_person_wrote(&mut self) -> Result<(), Refused> {
        let Some(ByHand { text, changed, expected }) = self.by_hand.take() else { return Ok(()) };
        match Documents::read_with(text.as_bytes(), Asked { whole: true, ..Asked::default() }) {
            Ok(_) if expected == Expected::Refusal => {
                self.breaks("what others rely on is missed where it is not there", format!("{changed:?}"));
                Ok(())
            }
            Ok(documents) => {
                self.tell(format!("what a person made of {changed:?} is read"));
                let before = std::mem::replace(&mut self.saved, documents);
                match changed {
                    Document::Hypervisor(name) => drop(self.replaced.insert(name)),
                    Document::Secret(name) => self.miss_what_is_minted_once(name, &before),
                    Document::Cluster(_) | Document::Component(_) => {}
                }
                self.history.push(before);
                self.forget_what_was_taken_back();
                Ok(())
            }
            Err(faults) => {
                let vague = faults.0.iter().find(|fault| fault.document.is_empty() || fault.mend.is_empty());
                if let Some(fault) = vague {
                    self.breaks("a fault names its document and its mend", fault.to_string());
                }
                self.did(Deed::IsRefused);
                self.tell(format!("refused, and put back: {faults}"));
                Err(Refused(faults.to_string()))
            }
        }
    }

    /// Nobody makes an authority or a key of a living cluster anew: who took it away brings it back.
    fn miss_what_is_minted_once(&mut self, name: SecretName, before: &Documents) {
        let is_minted_once =
            matches!(holds(&name.name), Holds::Authority | Holds::ServiceAccountKey | Holds::EncryptionKey);
        if let Some(secret) = before.secrets.get(&name).filter(|_| is_minted_once && name.is_of_a_cluster()) {
            self.missed.insert(name, secret.clone());
        }
    }

    /// Who is told that a cluster misses its authority brings that back. Another one may have written from documents without it meanwhile.
    pub(super) fn put_back_what_is_missed(&mut self) {
        for (name, secret) in self.missed.clone() {
            let of_it = |cluster: &Shared<Cluster>| cluster.id().is_some_and(|id| id.namespace() == name.namespace);
            let is_there = self.saved.clusters.values().any(of_it);
            if is_there && !self.saved.secrets.contains_key(&name) {
                self.tell(format!("a person puts {}/{} back", name.namespace, name.name));
                self.saved.secrets.insert(name, secret);
            }
        }
    }

    /// Where it is written no more that a member may have started, and it never served, nothing tells that it ran.
    fn forget_what_was_taken_back(&mut self) {
        let saved = &self.saved;
        let told = |pod: &PodName| {
            let mut all = saved.clusters.values();
            let cluster = all.find(|cluster| cluster.id() == Some(&pod.cluster));
            let store = cluster.and_then(|cluster| cluster.status.as_ref()?.etcd.as_ref());
            store.is_some_and(|store| {
                store.members.get(&pod.component).is_some_and(|member| member.phase != MemberPhase::Pending)
            })
        };
        self.started.retain(told);
    }

    /// Who is told that a machine takes nothing puts its newest document back, and so does who misses a machine.
    pub(super) fn put_back_what_is_stale(&mut self) {
        if self.pass.stale {
            // All of those documents were old ones.
            return;
        }
        let refused = self.refused().refused;
        self.put_back(|name| refused.contains_key(name));
    }

    /// The same, for all that is there now.
    pub(super) fn put_back_what_machines_refuse(&mut self) {
        let machines = self.machines.iter().map(|(name, machine)| (name.clone(), Seen::Known(machine.state())));
        let mut seen = Observation { machines: machines.collect(), ..Observation::default() };
        refuse(&self.saved, &mut seen);
        self.put_back(|name| seen.refused.contains_key(name));
    }

    /// Whether machines told the last pass that the documents are stale as a whole.
    pub(super) fn refused_as_stale(&self) -> bool {
        self.refused().stale()
    }

    fn refused(&self) -> Observation {
        self.usable(&self.pass.kept)
    }

    fn put_back(&mut self, refused: impl Fn(&HypervisorName) -> bool) {
        for name in self.replaced.clone() {
            if !refused(&name) && self.saved.hypervisors.contains_key(&name) {
                continue;
            }
            let Some(document) = self.newest(&name) else { continue };
            self.tell(format!("a person puts {name} back"));
            self.saved.hypervisors.insert(name, document);
        }
    }

    /// The document that tells of what its machine holds, else the one of the last config.
    fn newest(&self, name: &HypervisorName) -> Option<Shared<Hypervisor>> {
        let applied = self.machines.get(name).and_then(|machine| machine.disk.applied.as_ref());
        let all = self.history.iter().chain([&self.saved]).rev();
        let all: Vec<&Shared<Hypervisor>> = all.filter_map(|documents| documents.hypervisors.get(name)).collect();
        let tells = |document: &&&Shared<Hypervisor>| {
            let issued = document.status.as_ref().and_then(|status| status.issued.as_ref());
            applied.is_some() && issued == applied
        };
        let last = all.iter().max_by_key(|document| {
            let issued = document.status.as_ref().and_then(|status| status.issued.as_ref());
            issued.map(|issued| (issued.term, issued.generation))
        });
        all.iter().find(tells).or(last).map(|document| (*document).clone())
    }

    fn write_by_hand(
        &mut self,
        deed: Option<Deed>,
        what: &str,
        document: Document,
        documents: &Documents,
        expected: Expected,
    ) -> bool {
        let Some(deed) = deed.filter(|_| *documents != self.saved && self.by_hand.is_none() && !self.pass.stale) else {
            return false;
        };
        self.tell(format!("a person {what} {document:?}"));
        self.did(deed);
        self.by_hand = Some(ByHand { text: documents.write(), changed: document, expected });
        true
    }

    /// Each kind is as likely as the others.
    fn some_document(&mut self) -> Option<Document> {
        let saved = &self.saved;
        match self.random.between(0, 3) {
            0 => self.random.pick(saved.hypervisors.keys().cloned()).map(Document::Hypervisor),
            1 => self.random.pick(saved.clusters.keys().cloned()).map(Document::Cluster),
            2 => self.random.pick(saved.components.keys().cloned()).map(Document::Component),
            _ => self.random.pick(saved.secrets.keys().cloned()).map(Document::Secret),
        }
    }

    /// Whether it cannot be missed, or made anew.
    fn is_relied_on(&self, document: &Document) -> bool {
        let born = |cluster: &Cluster| {
            !cluster.deleted() && cluster.status.as_ref().is_some_and(|status| status.etcd.is_some())
        };
        let of_id = |id: &ClusterId| {
            let mut all = self.saved.clusters.values();
            all.find(|cluster| cluster.id() == Some(id)).is_some_and(|cluster| born(cluster))
        };
        match document {
            Document::Hypervisor(name) => {
                self.saved.components.values().any(|component| component.spec.hypervisor == *name)
            }
            Document::Cluster(name) => {
                let id = self.saved.clusters.get(name).and_then(|cluster| cluster.id());
                id.is_some_and(|id| {
                    self.saved.components_of(id).next().is_some()
                        || self.saved.secrets.keys().any(|secret| secret.namespace == id.namespace())
                })
            }
            Document::Component(name) => {
                let component = self.saved.components.get(name);
                let is_member = component
                    .is_some_and(|component| component.spec.role == Role::Etcd && component.stage() == Stage::Serving);
                is_member && of_id(&name.cluster)
            }
            Document::Secret(name) => {
                let mut ids = self.saved.clusters.values().filter_map(|cluster| cluster.id());
                let id = ids.find(|id| id.namespace() == name.namespace);
                name.name == ENCRYPTION_SECRET && id.is_some_and(of_id)
            }
        }
    }
}

impl Deeds {
    fn count(&mut self, deed: Deed) {
        *self.0.entry(deed).or_default() += 1;
    }
}

fn owned<K: Clone, V: Clone>((key, value): (&K, &V)) -> (K, V) {
    (key.clone(), value.clone())
}
