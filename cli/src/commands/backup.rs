//! `keelway backup`.

use std::{
    fs,
    io::{IsTerminal, Write},
    path::PathBuf,
};

use clap::Args;
use futures::{StreamExt, stream};
use keelway_api::{
    Cluster, Documents, Time,
    jiff::Timestamp,
    name::{ClusterId, ClusterRef},
    snapshots::SnapshotSinkSpec,
};
use keelway_backup::{BackupHeader, BackupRecipient, ClusterSnapshots, ListedSnapshot, recipients_of_file, seal};
use keelway_base::{durable_file, error_chain::chain_text};
use keelway_reconciler::snapshot_repository;
use keelway_snapshot::StoredSnapshots;
use keelway_stores::directory::copy_documents;

use super::session::runtime_of_passes;
use crate::{
    args::{GlobalArguments, PivotStoreArgument, parse_store},
    exit::{Code, CommandFailure},
    input::Input,
};

/// How many sinks are listed at the same time.
const SINKS_AT_ONCE: usize = 8;

/// How the documents of a management cluster are backed up.
const KUBECTL: &str = "read its documents with kubectl, which also works while a manager runs: kubectl get \
    clusterclasses,hypervisors,clusters.keelway.dev,components,secrets --all-namespaces -o yaml | keelway backup --recipient age1.. --to FILE";

#[derive(Args)]
pub(crate) struct BackupArguments {
    /// A public key that the backup is sealed to: age1... Repeat it for more; each opens the backup alone
    #[arg(long = "recipient", value_name = "KEY")]
    recipients: Vec<String>,
    /// A file of public keys, one in each line, as for `age --recipients-file`
    #[arg(long, value_name = "FILE")]
    recipients_file: Option<PathBuf>,
    /// The file to write. It is replaced only by a whole backup. The default is stdout
    #[arg(long, value_name = "FILE")]
    to: Option<PathBuf>,
    /// The documents: dir:PATH, the directory of a manager, which may be running, or - for stdin
    #[arg(long, value_name = "STORE", default_value = "-", value_parser = parse_store)]
    from: PivotStoreArgument,
}

pub(super) fn run(global: &GlobalArguments, arguments: &BackupArguments) -> Result<Code, CommandFailure> {
    let recipients = recipients(arguments)?;
    if arguments.to.is_none() && std::io::stdout().is_terminal() {
        return Err(CommandFailure::usage("a backup is not text for a terminal", "name a file: --to c1.backup"));
    }
    let input = match &arguments.from {
        PivotStoreArgument::Stream => Input::read_some(&global.files)?,
        PivotStoreArgument::Directory(path) => {
            let text = copy_documents(path).map_err(CommandFailure::other)?;
            Input::of_file(path, text)
        }
        PivotStoreArgument::Kubernetes(_) => {
            return Err(CommandFailure::usage("--from kubernetes cannot be backed up", KUBECTL));
        }
    };
    let documents = input.documents()?;
    if documents.names().next().is_none() {
        let help = "name their directory with --from dir:PATH, or pipe them to stdin";
        return Err(CommandFailure::usage("there are no documents to back up", help));
    }
    let runtime = runtime_of_passes()?;
    let clusters = runtime.block_on(snapshots(&documents));
    let header = BackupHeader::new(env!("CARGO_PKG_VERSION"), Time(Timestamp::now()), clusters);
    let contents = header.with_documents(&input.text()).map_err(CommandFailure::other)?;
    let sealed = seal(&recipients, contents.as_bytes()).map_err(CommandFailure::other)?;
    write(arguments, &sealed)?;
    Ok(report(global, &documents, &header))
}

fn recipients(arguments: &BackupArguments) -> Result<Vec<BackupRecipient>, CommandFailure> {
    let mut found = Vec::new();
    for text in &arguments.recipients {
        let recipient = text.parse::<BackupRecipient>();
        found.push(recipient.map_err(|error| CommandFailure::usage("--recipient cannot be used", error.to_string()))?);
    }
    if let Some(file) = &arguments.recipients_file {
        let name = file.display();
        let text = fs::read_to_string(file)
            .map_err(|error| CommandFailure::usage(format!("cannot read {name}"), error.to_string()))?;
        let of_file = recipients_of_file(&text);
        found.extend(of_file.map_err(|(line, error)| {
            CommandFailure::usage(format!("{name}, line {line}, is not a recipient"), error.to_string())
        })?);
    }
    if found.is_empty() {
        let help = "seal it to a public key: --recipient age1..; `age-keygen -o backup.agekey` creates a key";
        return Err(CommandFailure::usage("a backup holds keys, and no recipient is given", help));
    }
    Ok(found)
}

/// Lists the snapshots of all clusters that have a sink.
async fn snapshots(documents: &Documents) -> Vec<ClusterSnapshots> {
    let of_clusters = documents.clusters.values().filter_map(|cluster| {
        let sink = cluster.spec.etcd.snapshots.as_ref()?.sink.clone();
        Some(snapshots_of(documents, cluster, cluster.id()?, sink))
    });
    stream::iter(of_clusters).buffered(SINKS_AT_ONCE).collect().await
}

async fn snapshots_of(
    documents: &Documents,
    cluster: &Cluster,
    id: &ClusterId,
    sink: SnapshotSinkSpec,
) -> ClusterSnapshots {
    let listed = match snapshot_repository(documents, cluster) {
        Ok(repository) => repository.list().await.map_err(|error| chain_text(&error)),
        Err(error) => Err(chain_text(&error)),
    };
    let (snapshots, problem) = match listed {
        Ok(stored) => (listed_snapshots(stored), None),
        Err(problem) => (recorded_snapshot(cluster), Some(problem)),
    };
    let ClusterRef { namespace, name } = cluster.reference();
    ClusterSnapshots { namespace, name, id: id.to_string(), sink, snapshots, problem }
}

fn listed_snapshots(stored: StoredSnapshots) -> Vec<ListedSnapshot> {
    let listed = stored.complete.into_iter().map(|(name, manifest)| ListedSnapshot {
        name: name.to_string(),
        time: Time(name.at()),
        revision: name.revision(),
        size: manifest.database.total_size,
    });
    listed.collect()
}

fn recorded_snapshot(cluster: &Cluster) -> Vec<ListedSnapshot> {
    let status = cluster.status.as_ref().and_then(|status| status.etcd.as_ref()?.snapshots.as_ref()?.last.clone());
    let listed = status.map(|last| ListedSnapshot {
        name: last.name,
        time: last.time,
        revision: last.revision,
        size: last.size,
    });
    listed.into_iter().collect()
}

fn write(arguments: &BackupArguments, sealed: &[u8]) -> Result<(), CommandFailure> {
    if let Some(file) = &arguments.to {
        durable_file::replace(file, sealed, 0o600).map_err(|error| {
            CommandFailure::other(anyhow::Error::new(error).context(format!("cannot write {}", file.display())))
        })
    } else {
        let mut stdout = std::io::stdout();
        stdout.write_all(sealed).and_then(|()| stdout.flush()).map_err(CommandFailure::other)
    }
}

/// A backup without the list of a sink is whole, but a person has to know.
fn report(global: &GlobalArguments, documents: &Documents, header: &BackupHeader) -> Code {
    let mut stderr = std::io::stderr();
    let mut code = Code::Done;
    for cluster in &header.clusters {
        if let Some(problem) = &cluster.problem {
            code = Code::SomethingToDo;
            let name = format!("{}/{}", cluster.namespace, cluster.name);
            let _ = writeln!(stderr, "warning: cannot list the snapshots of cluster {name}: {problem}");
        }
    }
    if !global.quiet {
        let secrets = documents.secrets.len() + documents.user_secrets.len();
        let snapshots: usize = header.clusters.iter().map(|cluster| cluster.snapshots.len()).sum();
        let _ = writeln!(
            stderr,
            "backed up {} Hypervisors, {} Clusters, {} Components and {secrets} Secrets; {snapshots} snapshots are listed",
            documents.hypervisors.len(),
            documents.clusters.len(),
            documents.components.len(),
        );
    }
    code
}
