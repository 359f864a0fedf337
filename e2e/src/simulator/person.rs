//! What people do to documents by hand: remove one, replace one by an older copy, or duplicate one.

use std::{collections::BTreeMap, fmt};

use keelway_api::{
    Cluster, Documents, Hypervisor, ReadOptions, Shared,
    cluster::MemberPhase,
    component::ComponentStage,
    documents::{ENCRYPTION_SECRET, SecretName},
    machine::ObservedValue,
    name::{ClusterId, ClusterRef, HypervisorName, PodName},
    role::Role,
    rotation::RotatedKey,
};
use keelway_planner::{PassObservation, SecretContents, holds, refuse};

use super::{error::SimulatedRefusal, state::SimulationState};

/// An action of a person.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[expect(missing_docs, reason = "the names explain the fields")]
pub enum PersonAction {
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
    /// A manual edit is rejected, and the person restores the documents.
    IsRefused,
    UpgradesPatch,
    UpgradesMinor,
    SkipsMinors,
    /// The previous patch release is requested, also while an upgrade is under way.
    GoesBack,
    /// An older minor version is requested, which is refused.
    Downgrades,
    Rotates(RotatedKey),
    /// The key was stolen, so nothing is waited for that does not respond.
    RotatesNow(RotatedKey),
    Completes,
    MarksAsLost,
    RecoversAQuorum,
    Restores,
    GivesUpARestore,
    Sleeps,
    Wakes,
}

impl PersonAction {
    /// All actions.
    pub const ALL: [Self; 43] = [
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
        Self::UpgradesPatch,
        Self::UpgradesMinor,
        Self::SkipsMinors,
        Self::GoesBack,
        Self::Downgrades,
        Self::Rotates(RotatedKey::ServiceAccount),
        Self::Rotates(RotatedKey::Encryption),
        Self::Rotates(RotatedKey::EtcdAuthority),
        Self::Rotates(RotatedKey::FrontProxyAuthority),
        Self::Rotates(RotatedKey::InfrastructureAuthority),
        Self::Rotates(RotatedKey::KubernetesAuthority),
        Self::RotatesNow(RotatedKey::ServiceAccount),
        Self::RotatesNow(RotatedKey::Encryption),
        Self::RotatesNow(RotatedKey::EtcdAuthority),
        Self::RotatesNow(RotatedKey::FrontProxyAuthority),
        Self::RotatesNow(RotatedKey::InfrastructureAuthority),
        Self::RotatesNow(RotatedKey::KubernetesAuthority),
        Self::Completes,
        Self::MarksAsLost,
        Self::RecoversAQuorum,
        Self::Restores,
        Self::GivesUpARestore,
        Self::Sleeps,
        Self::Wakes,
    ];
}

/// The number of times that each action occurred.
#[derive(Debug, Clone, Default)]
pub struct PersonActionCounts(BTreeMap<PersonAction, u64>);

impl PersonActionCounts {
    /// Adds the counts of another run.
    pub fn add(&mut self, other: &Self) {
        for (deed, times) in &other.0 {
            *self.0.entry(*deed).or_default() += times;
        }
    }

    /// Returns the actions that did not occur.
    #[must_use]
    pub fn missing(&self) -> Vec<PersonAction> {
        PersonAction::ALL.into_iter().filter(|deed| !self.0.contains_key(deed)).collect()
    }
}

impl fmt::Display for PersonActionCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counted =
            PersonAction::ALL.map(|deed| format!("{deed:?} {}", self.0.get(&deed).copied().unwrap_or_default()));
        write!(f, "People: {}", counted.join(", "))
    }
}

/// The name of one document.
#[derive(Debug, Clone, PartialEq, Eq)]
enum DocumentKey {
    Hypervisor(HypervisorName),
    Cluster(ClusterRef),
    Component(PodName),
    Secret(SecretName),
}

/// Documents that a person wrote in place of the saved ones.
#[derive(Debug, Clone)]
pub(super) struct ManualEdit {
    text: String,
    changed: DocumentKey,
    /// The expected result of reading them.
    expected: Expected,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expected {
    /// Other documents refer to the missing one, or it is ambiguous which of two copies applies.
    Refusal,
    Either,
}

impl SimulationState {
    pub(super) fn record_action(&mut self, deed: PersonAction) {
        self.actions.count(deed);
    }

    pub(super) fn remove_document(&mut self) -> bool {
        let Some(document) = self.some_document() else { return false };
        let mut documents = self.saved.clone();
        let expected = if self.is_relied_on(&document) { Expected::Refusal } else { Expected::Either };
        let deed = match &document {
            DocumentKey::Hypervisor(name) => {
                documents.hypervisors.remove(name).map(|_| PersonAction::RemovesHypervisor)
            }
            DocumentKey::Cluster(name) => documents.clusters.remove(name).map(|_| PersonAction::RemovesCluster),
            DocumentKey::Component(name) => documents.components.remove(name).map(|_| PersonAction::RemovesComponent),
            DocumentKey::Secret(name) => documents.secrets.remove(name).map(|_| PersonAction::RemovesSecret),
        };
        self.write_by_hand(deed, "takes away", document, &documents, expected)
    }

    pub(super) fn restore_document(&mut self) -> bool {
        let (Some(document), Some(old)) = (self.some_document(), self.random.pick(self.history.clone())) else {
            return false;
        };
        let mut documents = self.saved.clone();
        let deed = match &document {
            DocumentKey::Hypervisor(name) => old.hypervisors.get(name).map(|copy| {
                documents.hypervisors.insert(name.clone(), copy.clone());
                PersonAction::RestoresHypervisor
            }),
            // Without its record, the data of a restored member is kept until a person removes it.
            DocumentKey::Cluster(name) => old.clusters.get(name).filter(|_| !self.restores.happen).map(|copy| {
                let mut copy = copy.clone();
                self.keep_rollouts(name, &mut copy);
                self.keep_sleep(name, &mut copy);
                documents.clusters.insert(name.clone(), copy);
                PersonAction::RestoresCluster
            }),
            DocumentKey::Component(name) => old.components.get(name).map(|copy| {
                let mut copy = copy.clone();
                if let Some(now) = self.saved.components.get(name).filter(|_| self.rollouts.happen) {
                    copy.spec.version.clone_from(&now.spec.version);
                }
                documents.components.insert(name.clone(), copy);
                PersonAction::RestoresComponent
            }),
            // A Secret rarely changes, so an older copy is usually the same.
            DocumentKey::Secret(_) => None,
        };
        self.write_by_hand(deed, "puts an older copy in the place of", document, &documents, Expected::Either)
    }

    pub(super) fn double_document(&mut self) -> bool {
        let Some(document) = self.some_document() else { return false };
        let mut alone = Documents::default();
        match &document {
            DocumentKey::Hypervisor(name) => {
                alone.hypervisors.extend(self.saved.hypervisors.get_key_value(name).map(owned));
            }
            DocumentKey::Cluster(name) => alone.clusters.extend(self.saved.clusters.get_key_value(name).map(owned)),
            DocumentKey::Component(name) => {
                alone.components.extend(self.saved.components.get_key_value(name).map(owned));
            }
            DocumentKey::Secret(name) => alone.secrets.extend(self.saved.secrets.get_key_value(name).map(owned)),
        }
        if self.manual_edit.is_some() || self.pass.stale {
            return false;
        }
        let text = format!("{}---\n{}", self.saved.write(), alone.write());
        self.trace_line(format!("a person writes {document:?} twice"));
        self.record_action(PersonAction::DoublesADocument);
        self.manual_edit = Some(ManualEdit { text, changed: document, expected: Expected::Refusal });
        true
    }

    /// Reads what a person wrote, as the command line does. If it is rejected, the person restores the documents.
    pub(super) fn read_manual_edit(&mut self) -> Result<(), SimulatedRefusal> {
        let Some(ManualEdit { text, changed, expected }) = self.manual_edit.take() else { return Ok(()) };
        match Documents::read_with(text.as_bytes(), ReadOptions { is_complete_world: true, ..ReadOptions::default() }) {
            Ok(_) if expected == Expected::Refusal => {
                self.report_violation("what others rely on is missed where it is not there", format!("{changed:?}"));
                Ok(())
            }
            Ok(documents) => {
                self.trace_line(format!("what a person made of {changed:?} is read"));
                let before = std::mem::replace(&mut self.saved, documents);
                match changed {
                    DocumentKey::Hypervisor(name) => drop(self.replaced.insert(name)),
                    DocumentKey::Secret(name) => self.miss_what_is_minted_once(name, &before),
                    DocumentKey::Cluster(_) | DocumentKey::Component(_) => {}
                }
                self.history.push(before);
                self.forget_reverted_members();
                Ok(())
            }
            Err(faults) => {
                let vague = faults.0.iter().find(|fault| fault.document.is_empty() || fault.help.is_empty());
                if let Some(fault) = vague {
                    self.report_violation("a fault names its document and its mend", fault.to_string());
                }
                self.record_action(PersonAction::IsRefused);
                self.trace_line(format!("refused, and put back: {faults}"));
                Err(SimulatedRefusal(faults.to_string()))
            }
        }
    }

    /// An authority or a key of an existing cluster is never minted again: a person who removed it restores it.
    fn miss_what_is_minted_once(&mut self, name: SecretName, before: &Documents) {
        let is_minted_once = matches!(
            holds(&name.name),
            SecretContents::Authority | SecretContents::ServiceAccountKey | SecretContents::EncryptionKey
        );
        if let Some(secret) = before.secrets.get(&name).filter(|_| is_minted_once && name.is_of_a_cluster()) {
            self.missed.insert(name, secret.clone());
        }
    }

    /// A person restores the authority of a cluster that lacks it. Meanwhile, another program may have saved documents without it.
    pub(super) fn restore_missing_secrets(&mut self) {
        for (name, secret) in self.missed.clone() {
            let of_it = |cluster: &Shared<Cluster>| cluster.id().is_some_and(|id| id.namespace() == name.namespace);
            let is_there = self.saved.clusters.values().any(of_it);
            if is_there && !self.saved.secrets.contains_key(&name) {
                self.trace_line(format!("a person puts {}/{} back", name.namespace, name.name));
                self.saved.secrets.insert(name, secret);
            }
        }
    }

    /// If the documents no longer record that a member may have started, and it never served, nothing shows that it ran.
    fn forget_reverted_members(&mut self) {
        let saved = &self.saved;
        let is_recorded = |pod: &PodName| {
            let mut all = saved.clusters.values();
            let cluster = all.find(|cluster| cluster.id() == Some(&pod.cluster));
            let store = cluster.and_then(|cluster| cluster.status.as_ref()?.etcd.as_ref());
            store.is_some_and(|store| {
                store.members.get(&pod.component).is_some_and(|member| member.phase != MemberPhase::Pending)
            })
        };
        self.started.retain(is_recorded);
    }

    /// A person restores the newest document of each machine that refuses its config, and of each missing Hypervisor.
    pub(super) fn restore_stale_documents(&mut self) {
        if self.pass.stale {
            // All documents of that pass were old ones.
            return;
        }
        let refused = self.refused().refused;
        self.restore_hypervisors(|name| refused.contains_key(name));
    }

    /// A person restores documents as in [`Self::restore_stale_documents`], for the current state of all machines.
    pub(super) fn restore_refused_documents(&mut self) {
        let machines =
            self.machines.iter().map(|(name, machine)| (name.clone(), ObservedValue::Known(machine.state())));
        let mut seen = PassObservation { machines: machines.collect(), ..PassObservation::default() };
        refuse(&self.saved, &mut seen);
        self.restore_hypervisors(|name| seen.refused.contains_key(name));
    }

    /// Returns whether the machines showed the last pass that the documents as a whole are stale.
    pub(super) fn refused_as_stale(&self) -> bool {
        self.refused().stale()
    }

    fn refused(&self) -> PassObservation {
        self.usable(&self.pass.kept)
    }

    fn restore_hypervisors(&mut self, refused: impl Fn(&HypervisorName) -> bool) {
        for name in self.replaced.clone() {
            if !refused(&name) && self.saved.hypervisors.contains_key(&name) {
                continue;
            }
            let Some(document) = self.newest(&name) else { continue };
            self.trace_line(format!("a person puts {name} back"));
            self.saved.hypervisors.insert(name, document);
        }
    }

    /// Returns the document that records the config that the machine has applied, or else the one with the last config.
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
        deed: Option<PersonAction>,
        what: &str,
        document: DocumentKey,
        documents: &Documents,
        expected: Expected,
    ) -> bool {
        let Some(deed) = deed.filter(|_| *documents != self.saved && self.manual_edit.is_none() && !self.pass.stale)
        else {
            return false;
        };
        self.trace_line(format!("a person {what} {document:?}"));
        self.record_action(deed);
        self.manual_edit = Some(ManualEdit { text: documents.write(), changed: document, expected });
        true
    }

    /// Picks a document. Each kind has the same probability.
    fn some_document(&mut self) -> Option<DocumentKey> {
        let saved = &self.saved;
        match self.random.between(0, 3) {
            0 => self.random.pick(saved.hypervisors.keys().cloned()).map(DocumentKey::Hypervisor),
            1 => self.random.pick(saved.clusters.keys().cloned()).map(DocumentKey::Cluster),
            2 => self.random.pick(saved.components.keys().cloned()).map(DocumentKey::Component),
            _ => self.random.pick(saved.secrets.keys().cloned()).map(DocumentKey::Secret),
        }
    }

    /// Returns whether the document can neither be missing nor be created again.
    fn is_relied_on(&self, document: &DocumentKey) -> bool {
        let born = |cluster: &Cluster| {
            !cluster.deleted() && cluster.status.as_ref().is_some_and(|status| status.etcd.is_some())
        };
        let of_id = |id: &ClusterId| {
            let mut all = self.saved.clusters.values();
            all.find(|cluster| cluster.id() == Some(id)).is_some_and(|cluster| born(cluster))
        };
        match document {
            DocumentKey::Hypervisor(name) => {
                self.saved.components.values().any(|component| component.spec.hypervisor == *name)
            }
            DocumentKey::Cluster(name) => {
                let id = self.saved.clusters.get(name).and_then(|cluster| cluster.id());
                id.is_some_and(|id| {
                    self.saved.components_of(id).next().is_some()
                        || self.saved.secrets.keys().any(|secret| secret.namespace == id.namespace())
                })
            }
            DocumentKey::Component(name) => {
                let component = self.saved.components.get(name);
                let is_member = component.is_some_and(|component| {
                    component.spec.role == Role::Etcd && component.stage() == ComponentStage::Serving
                });
                is_member && of_id(&name.cluster)
            }
            DocumentKey::Secret(name) => {
                let mut ids = self.saved.clusters.values().filter_map(|cluster| cluster.id());
                let id = ids.find(|id| id.namespace() == name.namespace);
                name.name == ENCRYPTION_SECRET && id.is_some_and(of_id)
            }
        }
    }
}

impl PersonActionCounts {
    fn count(&mut self, deed: PersonAction) {
        *self.0.entry(deed).or_default() += 1;
    }
}

fn owned<K: Clone, V: Clone>((key, value): (&K, &V)) -> (K, V) {
    (key.clone(), value.clone())
}
