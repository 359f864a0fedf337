//! `keelway pivot`.

use std::io::Write;

use keelway_api::Documents;
use keelway_manager::{
    directory::Directory,
    pivot::{End, ManagementCluster, PivotError, Stream, pivot},
};

use super::{print_documents, session::runtime_of_passes};
use crate::{
    args::{EndArgument, Global, PivotArguments},
    exit::{Code, Failure},
    input::Input,
};

/// One end of a move, for as long as that takes.
enum Taken {
    Stream(Stream),
    Directory(Box<Directory>),
    Kubernetes(Box<ManagementCluster>),
}

pub(super) fn run(global: &Global, arguments: &PivotArguments) -> Result<Code, Failure> {
    let PivotArguments { from, to, namespace } = arguments;
    if from == to {
        let problem = "the documents are to stay where they are";
        return Err(Failure::usage(problem, "say --from, --to, or both: two different stores"));
    }
    let input = match from {
        EndArgument::Stream => Some(Input::read(&global.files)?),
        EndArgument::Directory(_) | EndArgument::Kubernetes(_) => None,
    };
    let documents = input.as_ref().map(Input::documents).transpose()?.unwrap_or_default();
    let moved = runtime_of_passes()?.block_on(async {
        let from = Taken::begin(from, documents, namespace).await?;
        let to = match Taken::begin(to, Documents::default(), namespace).await {
            Ok(to) => to,
            Err(failure) => {
                from.end().await;
                return Err(failure);
            }
        };
        let moved = pivot(from.as_end(), to.as_end()).await.map_err(failed);
        from.end().await;
        to.end().await;
        moved
    })?;
    if *to == EndArgument::Stream {
        print_documents(&moved)?;
    }
    tell(global, &moved);
    Ok(Code::Done)
}

impl Taken {
    async fn begin(argument: &EndArgument, documents: Documents, namespace: &str) -> Result<Self, Failure> {
        Ok(match argument {
            EndArgument::Stream => Self::Stream(Stream::of(documents)),
            EndArgument::Directory(path) => {
                Self::Directory(Box::new(Directory::open_to_leave(path).map_err(Failure::other)?))
            }
            EndArgument::Kubernetes(kubeconfig) => {
                let taken = ManagementCluster::take(kubeconfig.as_deref(), namespace).await;
                Self::Kubernetes(Box::new(taken.map_err(Failure::other)?))
            }
        })
    }

    fn as_end(&self) -> &dyn End {
        match self {
            Self::Stream(stream) => stream,
            Self::Directory(directory) => &**directory,
            Self::Kubernetes(cluster) => &**cluster,
        }
    }

    async fn end(self) {
        if let Self::Kubernetes(cluster) = self {
            cluster.give_back().await;
        }
    }
}

/// What did not fit is told fault by fault.
fn failed(error: PivotError) -> Failure {
    match error {
        PivotError::Faults { faults, .. } => Failure::faults(faults, &Input::flags()),
        error @ (PivotError::Store(_) | PivotError::Empty(_) | PivotError::Left { .. } | PivotError::Lost { .. }) => {
            Failure::other(error)
        }
    }
}

fn tell(global: &Global, moved: &Documents) {
    if global.quiet {
        return;
    }
    let counts = [
        ("Hypervisors", moved.hypervisors.len()),
        ("Clusters", moved.clusters.len()),
        ("Components", moved.components.len()),
        ("Secrets", moved.secrets.len() + moved.given.len()),
    ];
    let counts = counts.map(|(what, count)| format!("{count} {what}")).join(", ");
    let _ = writeln!(std::io::stderr(), "moved: {counts}");
}
