//! kube-scheduler.

use alloc::{string::ToString, vec};

use super::{MissingKey, Parts, STARTUP_SECONDS, Site};

impl Site<'_> {
    pub(super) fn kube_scheduler(&self) -> Result<Parts, MissingKey> {
        let mut command = vec!["kube-scheduler".to_string()];
        command.extend(self.controller_flags());
        command.extend(self.extra_flags());
        Ok(Parts {
            files: self.controller_files()?,
            data: vec![],
            servers: None,
            image: self.kubernetes_image(),
            command,
            check: self.controller_check(),
            startup_seconds: Some(STARTUP_SECONDS),
            beside: vec![],
        })
    }
}
