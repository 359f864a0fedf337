//! kube-scheduler.

use alloc::{string::ToString, vec};

use super::{MissingKey, Parts, Site};

impl Site<'_> {
    pub(super) fn kube_scheduler(&self) -> Result<Parts, MissingKey> {
        let mut command = vec!["kube-scheduler".to_string()];
        command.extend(self.controller_flags());
        Ok(Parts { files: self.controller_files()?, data: vec![], image: self.kubernetes_image(), command })
    }
}
