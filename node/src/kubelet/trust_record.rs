//! The authorities with which the running kubelet was started. It reads those of its kubeconfig only then.

use keelway_api::machine::sha256_hex;
use serde::{Deserialize, Serialize};

use crate::{
    files::{self, NodeFileError},
    process::ProcessId,
    settings::Layout,
};

/// What a kubelet was started with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct KubeletTrust {
    /// The kubelet. The record is about no other process.
    process: ProcessId,
    /// The SHA-256 of the authorities. `None`: the kubelet has to be restarted.
    authorities: Option<String>,
}

impl KubeletTrust {
    /// Returns the record of a kubelet that was started with these authorities, in PEM.
    pub(crate) fn started_with(process: ProcessId, authorities: &str) -> Self {
        Self { process, authorities: Some(sha256_hex(authorities.as_bytes())) }
    }

    /// Returns the record of a kubelet that has to be restarted, whatever its authorities are.
    pub(crate) fn outdated(process: ProcessId) -> Self {
        Self { process, authorities: None }
    }

    /// Whether the kubelet was started with these authorities, and does not have to be restarted.
    pub(crate) fn is_of(&self, authorities: &str) -> bool {
        self.authorities.as_ref() == Some(&sha256_hex(authorities.as_bytes()))
    }

    /// Stores the record for as long as the process runs.
    pub(crate) fn store(&self, layout: &Layout) -> Result<(), NodeFileError> {
        files::write_json_volatile(&layout.kubelet_trust(), self)
    }

    /// Returns the record of this kubelet, if there is one. Earlier releases wrote none.
    pub(crate) fn load(layout: &Layout, process: ProcessId) -> Result<Option<Self>, NodeFileError> {
        // A file that cannot be parsed was not on disk when the machine crashed, and its process ended then, too.
        let record = files::read(&layout.kubelet_trust())?.and_then(|text| serde_json::from_str::<Self>(&text).ok());
        Ok(record.filter(|record| record.process == process))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_about_one_process() {
        let directory = tempfile::tempdir().unwrap();
        let layout = Layout::new(directory.path());
        let process = ProcessId { pid: 7, started: 1 };
        assert_eq!(KubeletTrust::load(&layout, process).unwrap(), None);
        let record = KubeletTrust::started_with(process, "a");
        record.store(&layout).unwrap();
        assert_eq!(KubeletTrust::load(&layout, process).unwrap(), Some(record.clone()));
        assert_eq!(KubeletTrust::load(&layout, ProcessId { started: 2, ..process }).unwrap(), None);
        assert!(record.is_of("a") && !record.is_of("b"));
        KubeletTrust::outdated(process).store(&layout).unwrap();
        assert!(!KubeletTrust::load(&layout, process).unwrap().unwrap().is_of("a"));
        files::write_volatile(&layout.kubelet_trust(), "", 0o600).unwrap();
        assert_eq!(KubeletTrust::load(&layout, process).unwrap(), None);
    }
}
