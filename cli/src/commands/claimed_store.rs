//! A store that a command holds exclusively: no manager works on it at the same time.

use keelway_api::Documents;
use keelway_stores::{
    directory::DirectoryStore,
    pivot::{ManagementCluster, PipeStore, PivotStore},
};

use super::print_documents;
use crate::{args::PivotStoreArgument, exit::CommandFailure, pipe::Pipe};

pub(super) enum ClaimedStore {
    Stdin(PipeStore),
    Stdout(Pipe),
    Directory(Box<DirectoryStore>),
    Kubernetes(Box<ManagementCluster>),
}

impl ClaimedStore {
    /// Claims the store of an argument. `stream` is the store for stdin or stdout.
    pub(super) async fn begin(
        argument: &PivotStoreArgument,
        stream: Self,
        namespace: &str,
    ) -> Result<Self, CommandFailure> {
        Ok(match argument {
            PivotStoreArgument::Stream => stream,
            PivotStoreArgument::Directory(path) => {
                Self::Directory(Box::new(DirectoryStore::open_to_leave(path).map_err(CommandFailure::other)?))
            }
            PivotStoreArgument::Kubernetes(kubeconfig) => {
                let taken = ManagementCluster::take(kubeconfig.as_deref(), namespace).await;
                Self::Kubernetes(Box::new(taken.map_err(CommandFailure::other)?))
            }
        })
    }

    pub(super) fn as_end(&self) -> &dyn PivotStore {
        match self {
            Self::Stdin(stream) => stream,
            Self::Stdout(pipe) => pipe,
            Self::Directory(directory) => &**directory,
            Self::Kubernetes(cluster) => &**cluster,
        }
    }

    /// If the destination is stdout, writes the documents to it.
    pub(super) fn print(&self, moved: &Documents) -> Result<(), CommandFailure> {
        if let Self::Stdout(pipe) = self {
            print_documents(moved)?;
            pipe.done();
        }
        Ok(())
    }

    pub(super) async fn end(self) {
        if let Self::Kubernetes(cluster) = self {
            cluster.unlock().await;
        }
    }
}
