//! Runs the programs of all running containers.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::Context;
use keelway_cri::fake::{Fake, FakeProgram};
use tokio::task::AbortHandle;

use super::{
    api_server::{self, StorageTrigger},
    program::StartedProgram,
    proxy, serving,
    signal_order::SignalOrder,
};

/// A running program. It ends on drop.
struct ProgramTask(AbortHandle);

impl Drop for ProgramTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Runs the programs of a machine and accepts orders, as long as it is polled.
#[derive(Clone, Debug)]
pub struct ProgramRunner {
    fake: Fake,
    watch: Arc<StorageTrigger>,
    root: PathBuf,
}

impl ProgramRunner {
    /// Creates a runner for this machine, whose root is the root of this process.
    #[must_use]
    pub fn new(fake: Fake) -> Self {
        Self::below(Path::new("/"), fake)
    }

    /// Creates a runner for a machine whose root is a directory of this process.
    #[must_use]
    pub fn below(root: &Path, fake: Fake) -> Self {
        Self { fake, watch: Arc::default(), root: root.to_owned() }
    }

    /// Accepts an order.
    pub fn take(&self, order: SignalOrder) {
        match order.fault() {
            Some((nth, fault)) => self.fake.inject(nth, fault),
            None => self.watch.set(order),
        }
    }

    /// Starts and ends programs together with their containers.
    pub async fn poll_programs(&self) {
        let mut playing: BTreeMap<String, ProgramTask> = BTreeMap::new();
        loop {
            let changed = self.fake.changed();
            let programs = self.fake.programs();
            playing.retain(|id, _| programs.iter().any(|program| program.container == *id));
            for program in programs {
                let id = program.container.clone();
                playing.entry(id).or_insert_with(|| {
                    let stage = self.clone();
                    ProgramTask(tokio::spawn(async move { stage.run(program).await }).abort_handle())
                });
            }
            changed.await;
        }
    }

    /// If the program fails, its container exits.
    async fn run(self, program: FakeProgram) {
        let name = program.name.clone();
        if let Err(error) = serve(StartedProgram::new(&self.root, program), self.watch).await {
            #[expect(clippy::print_stderr, reason = "the last message of a program")]
            {
                eprintln!("{name}: {error:#}");
            }
            // This fails if the machine has already ended the container.
            let _ = self.fake.exit_container(&name, 1);
        }
    }
}

async fn serve(program: StartedProgram, watch: Arc<StorageTrigger>) -> anyhow::Result<()> {
    match program.name() {
        "etcd" => serving::etcd(&program).await,
        "kube-apiserver" => api_server::serve(&program, watch).await,
        "kube-controller-manager" | "kube-scheduler" => serving::controller(&program).await,
        "haproxy" => proxy::serve(&program).await,
        "/keelway-cluster-controller" | "/keelway-fleet-controller" => serving::own(&program).await,
        other => Err(anyhow::anyhow!("nobody plays {other:?}")).context("unknown program"),
    }
}
