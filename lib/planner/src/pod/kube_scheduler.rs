//! kube-scheduler.

use alloc::{string::ToString, vec};

use super::{MissingKey, PodInputs, PodTemplate, STARTUP_SECONDS};

impl PodInputs<'_> {
    pub(super) fn kube_scheduler(&self) -> Result<PodTemplate, MissingKey> {
        let mut command = vec!["kube-scheduler".to_string()];
        command.extend(self.controller_flags());
        command.extend(self.extra_flags());
        Ok(PodTemplate {
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
