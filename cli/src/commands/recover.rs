//! `keelway recover`.

use std::{collections::BTreeMap, io::Write};

use clap::Args;
use keelway_api::{Documents, jiff::Timestamp, name::ClusterRef};
use keelway_planner::{Recovery, Remedy};
use keelway_reconciler::{ConnectedMachines, StoreError, recover};
use keelway_stores::pivot::{PipeStore, PivotError, PivotStore};

use super::{claimed_store::ClaimedStore, print_documents, session::runtime_of_passes};
use crate::{
    args::{GlobalArguments, PivotStoreArgument, parse_store},
    directories::cache_directory,
    exit::{Code, CommandFailure},
    input::Input,
    table::TextTable,
};

#[derive(Args)]
pub(crate) struct RecoverArguments {
    /// The store of the documents: dir:PATH, kubernetes[:KUBECONFIG], or - for stdin and stdout
    #[arg(long, value_name = "STORE", default_value = "-", value_parser = parse_store)]
    pub(crate) from: PivotStoreArgument,
    /// Report the differences without changing or writing documents
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// The namespace of Keelway's managers in a management cluster
    #[arg(long, value_name = "NAMESPACE", default_value = "keelway-system")]
    pub(crate) namespace: String,
}

pub(super) fn run(global: &GlobalArguments, arguments: &RecoverArguments) -> Result<Code, CommandFailure> {
    let RecoverArguments { from, dry_run, namespace } = arguments;
    let input = match from {
        PivotStoreArgument::Stream => Some(Input::read_some(&global.files)?),
        PivotStoreArgument::Directory(_) | PivotStoreArgument::Kubernetes(_) => None,
    };
    // A dry run writes no documents, so that a failure does not write the input back.
    let echoed = input.as_ref().filter(|_| !dry_run);
    let echo = |failure: CommandFailure| match echoed {
        Some(input) => failure.with_echo(input),
        None => failure,
    };
    let documents = input.as_ref().map(Input::documents).transpose().map_err(echo)?.unwrap_or_default();
    let recovery = runtime_of_passes()?.block_on(async {
        let taken = ClaimedStore::begin(from, ClaimedStore::Stdin(PipeStore::of(documents)), namespace).await?;
        let recovery = recovered(taken.as_end(), *dry_run).await;
        taken.end().await;
        recovery
    });
    let recovery = recovery.map_err(echo)?;
    if *from == PivotStoreArgument::Stream && !dry_run {
        print_documents(&recovery.documents)?;
    }
    report(global, &recovery);
    Ok(if recovery.needs_attention() { Code::SomethingToDo } else { Code::Done })
}

async fn recovered(store: &dyn PivotStore, dry_run: bool) -> Result<Recovery, CommandFailure> {
    if let Some(target) = store.pivot_target().await.map_err(CommandFailure::other)? {
        return Err(CommandFailure::other(PivotError::Left { from: store.title(), target }));
    }
    let documents = store.load().await.map_err(CommandFailure::other)?;
    if documents.is_empty() {
        return Err(CommandFailure::other(PivotError::Empty(store.title())));
    }
    let machines = ConnectedMachines::new(cache_directory().join("images"));
    let recovery = recover(&machines, &documents, Timestamp::now()).await;
    if !dry_run && recovery.documents != *documents {
        save(store, &documents, &recovery.documents).await.map_err(CommandFailure::other)?;
    }
    Ok(recovery)
}

/// Saves the recovered documents. Pauses clusters first, so that no driver works on the documents in between.
async fn save(store: &dyn PivotStore, before: &Documents, recovered: &Documents) -> Result<(), StoreError> {
    let is_running = |name: &ClusterRef| before.clusters.get(name).is_some_and(|cluster| !cluster.spec.paused);
    let paused = recovered.clusters.iter().filter(|(name, cluster)| cluster.spec.paused && is_running(name));
    let paused: Vec<ClusterRef> = paused.map(|(name, _)| name.clone()).collect();
    if !paused.is_empty() {
        store.pause(&paused).await?;
        store.load().await?;
    }
    store.save(recovered).await
}

fn report(global: &GlobalArguments, recovery: &Recovery) {
    let mut stderr = std::io::stderr();
    if !global.quiet && !recovery.differences.is_empty() {
        let mut table = TextTable::new(&["SUBJECT", "RESULT", "DIFFERENCE"]);
        for difference in &recovery.differences {
            let kind = &difference.kind;
            table.row(vec![difference.subject.clone(), kind.remedy().to_string(), kind.to_string()]);
        }
        let _ = stderr.write_all(table.render(None).as_bytes());
    }
    if !global.quiet || recovery.needs_attention() {
        let _ = writeln!(stderr, "{}", summary(recovery));
    }
}

fn summary(recovery: &Recovery) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    let word = |remedy| match remedy {
        Remedy::Realigned => "realigned",
        Remedy::Adopted => "adopted",
        Remedy::Unchanged => "unchanged",
        Remedy::NeedsAttention => "needing attention",
    };
    for difference in &recovery.differences {
        *counts.entry(word(difference.kind.remedy())).or_default() += 1;
    }
    let counts: Vec<String> = counts.iter().map(|(word, count)| format!("{count} {word}")).collect();
    match recovery.differences.len() {
        0 => "no differences: the documents are current".to_owned(),
        1 => format!("1 difference: {}", counts.join(", ")),
        number => format!("{number} differences: {}", counts.join(", ")),
    }
}
