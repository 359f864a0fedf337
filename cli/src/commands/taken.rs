//! A store that a command has alone: no manager works on it meanwhile.

use keelway_api::Documents;
use keelway_manager::{
    directory::Directory,
    pivot::{End, ManagementCluster, Stream},
};

use super::print_documents;
use crate::{args::EndArgument, exit::Failure, pipe::Pipe};

/// A store, for as long as a command has it.
pub(super) enum Taken {
    Stdin(Stream),
    Stdout(Pipe),
    Directory(Box<Directory>),
    Kubernetes(Box<ManagementCluster>),
}

impl Taken {
    /// `stream` is what stands for stdin or stdout.
    pub(super) async fn begin(argument: &EndArgument, stream: Self, namespace: &str) -> Result<Self, Failure> {
        Ok(match argument {
            EndArgument::Stream => stream,
            EndArgument::Directory(path) => {
                Self::Directory(Box::new(Directory::open_to_leave(path).map_err(Failure::other)?))
            }
            EndArgument::Kubernetes(kubeconfig) => {
                let taken = ManagementCluster::take(kubeconfig.as_deref(), namespace).await;
                Self::Kubernetes(Box::new(taken.map_err(Failure::other)?))
            }
        })
    }

    pub(super) fn as_end(&self) -> &dyn End {
        match self {
            Self::Stdin(stream) => stream,
            Self::Stdout(pipe) => pipe,
            Self::Directory(directory) => &**directory,
            Self::Kubernetes(cluster) => &**cluster,
        }
    }

    /// Writes what came to stdout, where that is where it goes.
    pub(super) fn print(&self, moved: &Documents) -> Result<(), Failure> {
        if let Self::Stdout(pipe) = self {
            print_documents(moved)?;
            pipe.done();
        }
        Ok(())
    }

    pub(super) async fn end(self) {
        if let Self::Kubernetes(cluster) = self {
            cluster.give_back().await;
        }
    }
}
