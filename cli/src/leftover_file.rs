//! Documents that a run has left in a file because it was killed or did not settle.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use keelway_api::{Documents, Hypervisor, Shared, hypervisor::MachineTransport, name::HypervisorName};

use crate::pipe::{PREFIX, SUFFIX};

/// A file that no process writes any more, with documents about the same machines as others.
pub(crate) struct LeftoverFile {
    pub(crate) file: PathBuf,
    documents: Documents,
}

impl LeftoverFile {
    /// Returns the files in this directory that share machines with these documents.
    pub(crate) fn of(directory: &Path, documents: &Documents) -> Vec<Self> {
        let files = fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path());
        let mut left: Vec<PathBuf> = files.filter(|file| writer(file).is_some_and(|process| !runs(process))).collect();
        left.sort();
        let read = |file: PathBuf| Some(Self { documents: Documents::read(&fs::read(&file).ok()?).ok()?, file });
        left.into_iter().filter_map(read).filter(|left| left.shares_machines(documents)).collect()
    }

    fn shares_machines(&self, documents: &Documents) -> bool {
        let known: BTreeSet<_> = documents.hypervisors.iter().map(place).collect();
        self.documents.hypervisors.iter().map(place).any(|found| known.contains(&found))
    }

    /// Returns whether the file records a config for a machine that is newer than in these documents.
    pub(crate) fn is_newer(&self, documents: &Documents) -> bool {
        let known = |name| issued(documents.hypervisors.get(name));
        self.documents.hypervisors.iter().any(|(name, found)| issued(Some(found)) > known(name))
    }

    pub(crate) fn remove(&self) {
        let _ = fs::remove_file(&self.file);
    }
}

/// Returns the identity of a machine: its transport, and for a networked machine also its name, because several can share an address.
fn place<'a>(
    (name, machine): (&'a HypervisorName, &'a Shared<Hypervisor>),
) -> (MachineTransport<'a>, Option<&'a HypervisorName>) {
    let way = machine.spec.endpoint.way();
    (way, machine.spec.endpoint.is_on_network().then_some(name))
}

/// Returns term and generation of the last config that was recorded for a machine.
fn issued(machine: Option<&Shared<Hypervisor>>) -> Option<(u64, u64)> {
    let issued = machine?.status.as_ref()?.issued.as_ref()?;
    Some((issued.term, issued.generation))
}

fn writer(file: &Path) -> Option<u32> {
    file.file_name()?.to_str()?.strip_prefix(PREFIX)?.strip_suffix(SUFFIX)?.parse().ok()
}

/// Returns whether the process still is this program: process ids are reused.
fn runs(process: u32) -> bool {
    let name = |process: &str| fs::read_to_string(format!("/proc/{process}/comm")).ok();
    name(&process.to_string()).is_some_and(|found| Some(found) == name("self"))
}
