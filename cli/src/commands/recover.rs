//! `keelway recover`.

use std::{collections::BTreeMap, io::Write, path::PathBuf, sync::Arc};

use clap::Args;
use keelway_api::{Documents, jiff::Timestamp, name::ClusterRef};
use keelway_planner::{Recovery, Remedy};
use keelway_reconciler::{ConnectedMachines, Machines, StoreError, recover};
use keelway_stores::pivot::{PipeStore, PivotError, PivotStore};

use super::{claimed_store::ClaimedStore, print_documents, session::runtime_of_passes};
use crate::{
    args::{GlobalArguments, PivotStoreArgument, parse_store},
    backup_file::{OpenedBackup, open_backup},
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
    /// A backup that `keelway backup` wrote. Without other documents, all of it is recovered. Otherwise, only what the documents or the machines
    /// name and the documents lack. Stdin is not read; name a file of documents with -f
    #[arg(long, value_name = "FILE", requires = "identity")]
    pub(crate) backup: Option<PathBuf>,
    /// The file with the secret key of the backup, as `age-keygen` writes it
    #[arg(long, value_name = "FILE", requires = "backup")]
    pub(crate) identity: Option<PathBuf>,
    /// Write the documents of the backup as they are, and connect to no machine. The machines accept configs of these documents only after a
    /// recovery that reached them
    #[arg(long, requires = "backup", conflicts_with = "dry_run")]
    pub(crate) offline: bool,
    /// Report the differences without changing or writing documents
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// The namespace of Keelway's managers in a management cluster
    #[arg(long, value_name = "NAMESPACE", default_value = "keelway-system")]
    pub(crate) namespace: String,
}

pub(super) fn run(global: &GlobalArguments, arguments: &RecoverArguments) -> Result<Code, CommandFailure> {
    let RecoverArguments { from, backup, identity, offline, dry_run, namespace } = arguments;
    let backup = backup.as_deref().zip(identity.as_deref()).map(|(backup, identity)| open_backup(backup, identity));
    let backup = backup.transpose()?;
    let input = match from {
        PivotStoreArgument::Stream if backup.is_some() && global.files.is_empty() => None,
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
        let recovery = recovered(taken.as_end(), backup.as_ref(), (*dry_run, *offline)).await;
        taken.end().await;
        recovery
    });
    let recovery = recovery.map_err(echo)?;
    if *from == PivotStoreArgument::Stream && !dry_run {
        print_documents(&recovery.documents)?;
    }
    report(global, &recovery, *offline);
    if let Some(backup) = backup.filter(|_| !global.quiet) {
        backup.report();
    }
    Ok(if recovery.needs_attention() { Code::SomethingToDo } else { Code::Done })
}

async fn recovered(
    store: &dyn PivotStore,
    backup: Option<&OpenedBackup>,
    (dry_run, offline): (bool, bool),
) -> Result<Recovery, CommandFailure> {
    if let Some(target) = store.pivot_target().await.map_err(CommandFailure::other)? {
        return Err(CommandFailure::other(PivotError::Left { from: store.title(), target }));
    }
    let documents = store.load().await.map_err(CommandFailure::other)?;
    if documents.is_empty() && backup.is_none() {
        return Err(CommandFailure::other(PivotError::Empty(store.title())));
    }
    if let Some(backup) = backup {
        backup.refuse_other_installation(&documents)?;
    }
    let recovery = match backup {
        Some(backup) if offline => backup.taken(&documents)?,
        _ => {
            let machines: Arc<dyn Machines> = Arc::new(ConnectedMachines::new(cache_directory().join("images")));
            recover(&machines, &documents, backup.map(OpenedBackup::documents), Timestamp::now()).await
        }
    };
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
    store.prepare(recovered).await?;
    store.save(recovered).await
}

fn report(global: &GlobalArguments, recovery: &Recovery, offline: bool) {
    let mut stderr = std::io::stderr();
    if !global.quiet && !recovery.differences.is_empty() {
        let mut table = TextTable::new(&["SUBJECT", "RESULT", "DIFFERENCE"]);
        for difference in &recovery.differences {
            let kind = &difference.kind;
            table.row(vec![difference.subject.clone(), kind.remedy().to_string(), kind.to_string()]);
        }
        let _ = stderr.write_all(table.render(None).as_bytes());
    }
    if offline {
        if !global.quiet {
            let _ = writeln!(stderr, "no machine was asked: run keelway recover again once the machines respond");
        }
        return;
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
        Remedy::Restored => "restored",
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
