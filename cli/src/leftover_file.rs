//! Documents that a run left in a file because it was killed, or did not settle.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use keelway_api::{Documents, Hypervisor, Shared, hypervisor::MachineTransport, name::HypervisorName};

use crate::pipe::{PREFIX, SUFFIX};

/// A file that nobody writes any more, of the same machines as other documents.
pub(crate) struct LeftoverFile {
    pub(crate) file: PathBuf,
    documents: Documents,
}

impl LeftoverFile {
    /// Those in this directory that tell of machines of these documents.
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

    /// Whether a machine was given a config that these documents do not know yet.
    pub(crate) fn is_newer(&self, documents: &Documents) -> bool {
        let known = |name| issued(documents.hypervisors.get(name));
        self.documents.hypervisors.iter().any(|(name, found)| issued(Some(found)) > known(name))
    }

    /// Takes the file away.
    pub(crate) fn remove(&self) {
        let _ = fs::remove_file(&self.file);
    }
}

/// Where a machine is found: over a network one is told from others at the same place by its name.
fn place<'a>(
    (name, machine): (&'a HypervisorName, &'a Shared<Hypervisor>),
) -> (MachineTransport<'a>, Option<&'a HypervisorName>) {
    let way = machine.spec.endpoint.way();
    (way, matches!(way, MachineTransport::Network(_)).then_some(name))
}

/// Term and generation of the last config that was written down for a machine.
fn issued(machine: Option<&Shared<Hypervisor>>) -> Option<(u64, u64)> {
    let issued = machine?.status.as_ref()?.issued.as_ref()?;
    Some((issued.term, issued.generation))
}

fn writer(file: &Path) -> Option<u32> {
    file.file_name()?.to_str()?.strip_prefix(PREFIX)?.strip_suffix(SUFFIX)?.parse().ok()
}

/// Whether the process still is this program: ids of processes are given again.
fn runs(process: u32) -> bool {
    let name = |process: &str| fs::read_to_string(format!("/proc/{process}/comm")).ok();
    name(&process.to_string()).is_some_and(|found| Some(found) == name("self"))
}
