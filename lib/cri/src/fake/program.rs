//! The programs that would run on the machine, for tests that simulate the programs themselves.

use k8s_cri::v1;
use tokio::sync::futures::Notified;

use super::{Fake, state::FakeContainer};
use crate::CriMount;

/// The program of a running container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FakeProgram {
    /// The id of the container.
    pub container: String,
    /// The container's name in its pod.
    pub name: String,
    /// The command and its arguments.
    pub command: Vec<String>,
    /// The mounts of the container.
    pub mounts: Vec<CriMount>,
}

impl Fake {
    /// Returns the programs of all running containers, in the order of the containers' ids.
    #[must_use]
    pub fn programs(&self) -> Vec<FakeProgram> {
        let state = self.state();
        let running = state.containers.iter().filter(|(_, container)| is_running(container));
        running.map(|(id, container)| program(id, container)).collect()
    }

    /// Returns whether the container with this id runs.
    #[must_use]
    pub fn runs(&self, container: &str) -> bool {
        self.state().containers.get(container).is_some_and(is_running)
    }

    /// Returns a future that completes with the next change after this call.
    pub fn changed(&self) -> Notified<'_> {
        self.shared.changed.notified()
    }
}

fn is_running(container: &FakeContainer) -> bool {
    container.state() == v1::ContainerState::ContainerRunning
}

fn program(id: &str, container: &FakeContainer) -> FakeProgram {
    let config = &container.config;
    let mount = |mount: &v1::Mount| CriMount {
        host_path: mount.host_path.clone(),
        container_path: mount.container_path.clone(),
        read_only: mount.readonly,
    };
    FakeProgram {
        container: id.to_owned(),
        name: config.metadata.clone().unwrap_or_default().name,
        command: config.command.iter().chain(&config.args).cloned().collect(),
        mounts: config.mounts.iter().map(mount).collect(),
    }
}
