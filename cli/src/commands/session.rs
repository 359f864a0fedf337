//! Shared code of `plan` and `reconcile`: a pass with this machine's clock, randomness and sockets.

use std::sync::Arc;

use keelway_api::{Documents, jiff::Timestamp};
use keelway_reconciler::{ConnectedMachines, DialledComponents, PassContext, PkiMinter, RunControl};
use rand::{SeedableRng, rngs::StdRng};
use tokio_util::sync::CancellationToken;

use crate::{
    args::GlobalArguments,
    directories::{cache_directory, state_directory},
    exit::CommandFailure,
    pipe::Pipe,
    progress::ProgressLine,
};

/// A pass over the documents of a pipe.
pub(super) struct PipeSession {
    pub(super) pipe: Arc<Pipe>,
    pub(super) context: PassContext,
    pub(super) minter: PkiMinter<StdRng>,
}

impl PipeSession {
    /// Creates a session over documents that go to stdout.
    pub(super) fn new(global: &GlobalArguments, documents: Documents) -> Self {
        Self::over(Pipe::new(documents, &state_directory(), global.quiet), global)
    }

    /// Creates a session over the documents of this store.
    pub(super) fn over(pipe: Pipe, global: &GlobalArguments) -> Self {
        let pipe = Arc::new(pipe);
        let run =
            RunControl { stop: CancellationToken::new(), progress: Arc::new(ProgressLine::of_terminal(global.quiet)) };
        let machines = Arc::new(ConnectedMachines::new(cache_directory().join("images")));
        let components = Arc::new(DialledComponents::new(machines.clone()));
        let context = PassContext { store: pipe.clone(), machines, components, clock: Arc::new(Timestamp::now), run };
        Self { pipe, context, minter: minter() }
    }
}

/// Returns a minter of keys with this machine's randomness.
pub(super) fn minter() -> PkiMinter<StdRng> {
    PkiMinter::new(StdRng::from_rng(&mut rand::rng()))
}

/// Returns the runtime of passes. Connections run on a separate thread: a decision about many machines takes longer than a peer waits for a
/// keep-alive.
pub(super) fn runtime_of_passes() -> Result<tokio::runtime::Runtime, CommandFailure> {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().map_err(CommandFailure::other)
}

/// Returns the runtime of a command that only communicates with machines. It mostly waits, and a single thread needs no wake-ups of others.
pub(super) fn runtime() -> Result<tokio::runtime::Runtime, CommandFailure> {
    tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(CommandFailure::other)
}
