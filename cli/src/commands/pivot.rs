//! `keelway pivot`.

use std::io::Write;

use keelway_api::Documents;
use keelway_manager::pivot::{PivotError, Stream, pivot};

use super::{session::runtime_of_passes, taken::Taken};
use crate::{
    args::{EndArgument, Global, PivotArguments},
    directories::state_directory,
    exit::{Code, Failure},
    input::Input,
    pipe::Pipe,
};

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
        let from = Taken::begin(from, Taken::Stdin(Stream::of(documents)), namespace).await?;
        let stdout = Pipe::new(Documents::default(), &state_directory(), global.quiet);
        let to = match Taken::begin(to, Taken::Stdout(stdout), namespace).await {
            Ok(to) => to,
            Err(failure) => {
                from.end().await;
                return Err(failure);
            }
        };
        let moved = pivot(from.as_end(), to.as_end()).await.map_err(failed);
        let moved = moved.and_then(|moved| to.print(&moved).map(|()| moved));
        from.end().await;
        to.end().await;
        moved
    })?;
    tell(global, &moved);
    Ok(Code::Done)
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
    let classes = Some(("ClusterClasses", moved.classes.len())).filter(|(_, count)| *count > 0);
    let counts = [
        ("Hypervisors", moved.hypervisors.len()),
        ("Clusters", moved.clusters.len()),
        ("Components", moved.components.len()),
        ("Secrets", moved.secrets.len() + moved.given.len()),
    ];
    let counts = classes.into_iter().chain(counts).map(|(what, count)| format!("{count} {what}"));
    let _ = writeln!(std::io::stderr(), "moved: {}", counts.collect::<Vec<_>>().join(", "));
}
