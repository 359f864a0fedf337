//! `keelway pivot`.

use std::io::Write;

use clap::Args;
use keelway_api::Documents;
use keelway_stores::pivot::{PipeStore, PivotError, pivot};

use super::{claimed_store::ClaimedStore, session::runtime_of_passes};
use crate::{
    args::{GlobalArguments, PivotStoreArgument, parse_store},
    directories::state_directory,
    exit::{Code, CommandFailure},
    input::Input,
    pipe::Pipe,
};

#[derive(Args)]
pub(crate) struct PivotArguments {
    /// The source of the documents: dir:PATH, kubernetes[:KUBECONFIG], or - for stdin
    #[arg(long, value_name = "STORE", default_value = "-", value_parser = parse_store)]
    pub(crate) from: PivotStoreArgument,
    /// The destination of the documents: dir:PATH, kubernetes[:KUBECONFIG], or - for stdout
    #[arg(long, value_name = "STORE", default_value = "-", value_parser = parse_store)]
    pub(crate) to: PivotStoreArgument,
    /// The namespace of Keelway's managers in a management cluster
    #[arg(long, value_name = "NAMESPACE", default_value = "keelway-system")]
    pub(crate) namespace: String,
}

pub(super) fn run(global: &GlobalArguments, arguments: &PivotArguments) -> Result<Code, CommandFailure> {
    let PivotArguments { from, to, namespace } = arguments;
    if from == to {
        let problem = "--from and --to are the same store";
        return Err(CommandFailure::usage(problem, "set --from, --to, or both to two different stores"));
    }
    let input = match from {
        PivotStoreArgument::Stream => Some(Input::read(&global.files)?),
        PivotStoreArgument::Directory(_) | PivotStoreArgument::Kubernetes(_) => None,
    };
    let documents = input.as_ref().map(Input::documents).transpose()?.unwrap_or_default();
    let moved = runtime_of_passes()?.block_on(async {
        let from = ClaimedStore::begin(from, ClaimedStore::Stdin(PipeStore::of(documents)), namespace).await?;
        let stdout = Pipe::new(Documents::default(), &state_directory(), global.quiet);
        let to = match ClaimedStore::begin(to, ClaimedStore::Stdout(stdout), namespace).await {
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
    print_result(global, &moved);
    Ok(Code::Done)
}

/// Converts an error. Faults of the documents are listed one by one.
fn failed(error: PivotError) -> CommandFailure {
    match error {
        PivotError::Faults { faults, .. } => CommandFailure::faults(faults, &Input::flags()),
        error @ (PivotError::Store(_) | PivotError::Empty(_) | PivotError::Left { .. } | PivotError::Lost { .. }) => {
            CommandFailure::other(error)
        }
    }
}

fn print_result(global: &GlobalArguments, moved: &Documents) {
    if global.quiet {
        return;
    }
    let classes = Some(("ClusterClasses", moved.classes.len())).filter(|(_, count)| *count > 0);
    let counts = [
        ("Hypervisors", moved.hypervisors.len()),
        ("Clusters", moved.clusters.len()),
        ("Components", moved.components.len()),
        ("Secrets", moved.secrets.len() + moved.user_secrets.len()),
    ];
    let counts = classes.into_iter().chain(counts).map(|(what, count)| format!("{count} {what}"));
    let _ = writeln!(std::io::stderr(), "moved: {}", counts.collect::<Vec<_>>().join(", "));
}
