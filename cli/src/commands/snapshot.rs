//! `keelway snapshot`.

use std::{io::Write, sync::Arc};

use clap::{Args, Subcommand};
use keelway_api::{
    Cluster, Documents,
    jiff::Timestamp,
    name::{ClusterId, ClusterRef},
};
use keelway_base::error_chain::chain_text;
use keelway_reconciler::{
    ConnectedMachines, DialledComponents, Machines, SnapshotError, TakenSnapshot, snapshot_key, snapshot_repository,
};
use keelway_snapshot::{SnapshotName, StoredSnapshots};

use super::{named::missing_document_error, print, session::runtime_of_passes};
use crate::{
    args::{GlobalArguments, OutputFormat},
    directories::cache_directory,
    exit::{Code, CommandFailure},
    input::Input,
    view::{SnapshotView, list, table},
};

/// `keelway snapshot`.
#[derive(Subcommand)]
pub(crate) enum SnapshotCommand {
    /// Take a snapshot of a cluster's etcd now, and print its name. Then deletes the snapshots that spec.etcd.snapshots.retention does not
    /// keep
    #[command(
        after_help = "Example:\n  keelway snapshot create c1 < c1.yaml\n  keelway snapshot create c1 --quiet -f c1.yaml"
    )]
    Create(SnapshotClusterArgument),
    /// List the snapshots of a cluster
    #[command(
        after_help = "Example:\n  keelway snapshot list c1 < c1.yaml\n  keelway snapshot list c1 -o wide -f c1.yaml"
    )]
    List(ListSnapshotsArguments),
    /// Delete snapshots of a cluster
    #[command(after_help = "Example:\n  keelway snapshot delete c1 20261127T115200Z-48213 < c1.yaml")]
    Delete(DeleteSnapshotsArguments),
    /// Print the key that a cluster's snapshots are sealed to, for a copy outside of the documents: without it, no snapshot can be opened. The
    /// program `age` reads it
    #[command(
        after_help = "Example:\n  (umask 077; keelway snapshot key c1 < c1.yaml > c1.agekey)\n  age --decrypt -i c1.agekey 20261127T115200Z-48213.db.age > c1.db"
    )]
    Key(SnapshotClusterArgument),
}

/// The cluster that the command is about.
#[derive(Args)]
pub(crate) struct SnapshotClusterArgument {
    /// The cluster's name
    #[arg(value_name = "CLUSTER")]
    cluster: String,
    /// The cluster's namespace
    #[arg(short, long, default_value = "default")]
    namespace: String,
}

#[derive(Args)]
pub(crate) struct ListSnapshotsArguments {
    #[command(flatten)]
    cluster: SnapshotClusterArgument,
    /// The output format
    #[arg(short, long, value_enum, default_value = "table")]
    output: OutputFormat,
}

#[derive(Args)]
pub(crate) struct DeleteSnapshotsArguments {
    #[command(flatten)]
    cluster: SnapshotClusterArgument,
    /// The names of snapshots, as `snapshot list` shows them
    #[arg(value_name = "NAME", required = true)]
    names: Vec<String>,
}

impl SnapshotClusterArgument {
    fn reference(&self) -> ClusterRef {
        ClusterRef { namespace: self.namespace.clone(), name: self.cluster.clone() }
    }

    fn find<'a>(&self, documents: &'a Documents) -> Result<&'a Cluster, CommandFailure> {
        let name = self.reference();
        documents.clusters.get(&name).map(|cluster| &**cluster).ok_or_else(|| {
            let there = documents.clusters.keys().map(ToString::to_string).collect();
            missing_document_error("Cluster", &name.to_string(), &there)
        })
    }

    /// Converts an error. Errors of usage exit with 2, all others with 1.
    fn failure(&self, error: SnapshotError) -> CommandFailure {
        let cluster = self.reference();
        match error {
            SnapshotError::NotMade => CommandFailure::usage(
                format!("cluster {cluster} has not been created yet"),
                "create it first: keelway reconcile",
            ),
            SnapshotError::Asleep => CommandFailure::usage(
                error.to_string(),
                "wake it first: `keelway cluster wake`; snapshots that exist can be used as ever",
            ),
            SnapshotError::NoSink => CommandFailure::usage(
                format!("cluster {cluster} has no place for snapshots: spec.etcd.snapshots is not set"),
                "set spec.etcd.snapshots.sink, and run `keelway reconcile`; docs/backup.md has examples",
            ),
            SnapshotError::NoKey(_) => CommandFailure::usage(
                format!("cluster {cluster} has no key for snapshots yet"),
                "create it: keelway reconcile",
            ),
            other @ (SnapshotError::Credentials { .. }
            | SnapshotError::Keyring(_)
            | SnapshotError::Key(_)
            | SnapshotError::NoMember(_)
            | SnapshotError::Refused { .. }
            | SnapshotError::Receive { .. }
            | SnapshotError::TimedOut { .. }
            | SnapshotError::NoRequest
            | SnapshotError::Name(_)
            | SnapshotError::SourceKeys { .. }
            | SnapshotError::Open { .. }
            | SnapshotError::EncryptionKeys(_)
            | SnapshotError::Sink(_)
            | SnapshotError::Repository(_)) => CommandFailure::other(other),
        }
    }
}

pub(super) fn run(global: &GlobalArguments, command: &SnapshotCommand) -> Result<Code, CommandFailure> {
    let documents = Input::read(&global.files)?.documents()?;
    match command {
        SnapshotCommand::Create(arguments) => create(global, &documents, arguments),
        SnapshotCommand::List(arguments) => show(&documents, arguments),
        SnapshotCommand::Delete(arguments) => delete(global, &documents, arguments),
        SnapshotCommand::Key(arguments) => key(&documents, arguments),
    }
}

fn create(
    global: &GlobalArguments,
    documents: &Documents,
    arguments: &SnapshotClusterArgument,
) -> Result<Code, CommandFailure> {
    let cluster = arguments.find(documents)?;
    let taken = runtime_of_passes()?.block_on(async {
        let machines = Arc::new(ConnectedMachines::new(cache_directory().join("images")));
        machines.load_credentials(documents);
        DialledComponents::new(machines).snapshot(documents, cluster, Timestamp::now()).await
    });
    let taken = taken.map_err(|error| arguments.failure(error))?;
    print(&format!("{}\n", taken.name))?;
    report(global, &taken);
    Ok(if taken.retention_failure.is_none() { Code::Done } else { Code::Failed })
}

/// Reports what was deleted, and what could not be deleted. The snapshot itself is stored in any case.
fn report(global: &GlobalArguments, taken: &TakenSnapshot) {
    let mut stderr = std::io::stderr();
    if !global.quiet {
        let _ = writeln!(stderr, "took the snapshot from {}", taken.member);
        for (name, reason) in &taken.expired {
            let _ = writeln!(stderr, "deleted snapshot {name}: {reason}");
        }
    }
    if let Some(error) = &taken.retention_failure {
        let _ = writeln!(stderr, "error: cannot delete old snapshots: {}", chain_text(error));
    }
}

fn stored(documents: &Documents, arguments: &SnapshotClusterArgument) -> Result<StoredSnapshots, CommandFailure> {
    let repository = snapshot_repository(documents, arguments.find(documents)?);
    let repository = repository.map_err(|error| arguments.failure(error))?;
    runtime_of_passes()?.block_on(repository.list()).map_err(CommandFailure::other)
}

fn show(documents: &Documents, arguments: &ListSnapshotsArguments) -> Result<Code, CommandFailure> {
    let found = stored(documents, &arguments.cluster)?;
    let (cluster, now) = (arguments.cluster.reference().to_string(), Timestamp::now());
    for unreadable in &found.unreadable {
        let (name, error) = (unreadable.name, chain_text(&unreadable.error));
        let _ = writeln!(std::io::stderr(), "warning: snapshot {name} cannot be used: {error}");
    }
    let view = |(name, manifest)| SnapshotView { name, manifest, now };
    let views: Vec<SnapshotView> = found.complete.into_iter().map(view).collect();
    let list = || list(&views.iter().map(SnapshotView::json).collect::<Vec<_>>());
    let text = match arguments.output {
        OutputFormat::Table | OutputFormat::Wide if views.is_empty() => {
            let _ = writeln!(std::io::stderr(), "cluster {cluster} has no snapshots");
            String::new()
        }
        OutputFormat::Table => table(&views, false),
        OutputFormat::Wide => table(&views, true),
        OutputFormat::Json => serde_json::to_string_pretty(&list()).map_err(CommandFailure::other)? + "\n",
        OutputFormat::Yaml => serde_saphyr::to_string(&list()).map_err(CommandFailure::other)?,
        OutputFormat::Name => views.iter().map(|view| format!("snapshot/{}\n", view.name)).collect::<Vec<_>>().concat(),
    };
    print(&text)?;
    Ok(Code::Done)
}

fn delete(
    global: &GlobalArguments,
    documents: &Documents,
    arguments: &DeleteSnapshotsArguments,
) -> Result<Code, CommandFailure> {
    let cluster = &arguments.cluster;
    let repository = snapshot_repository(documents, cluster.find(documents)?);
    let repository = repository.map_err(|error| cluster.failure(error))?;
    runtime_of_passes()?.block_on(async {
        let there = repository.names().await.map_err(CommandFailure::other)?;
        // All names are checked before the first snapshot is deleted.
        let names: Vec<SnapshotName> =
            arguments.names.iter().map(|name| known(name, &there)).collect::<Result<_, _>>()?;
        for name in names {
            repository.delete(&name).await.map_err(CommandFailure::other)?;
            if !global.quiet {
                let _ = writeln!(std::io::stderr(), "deleted snapshot {name} of cluster {}", cluster.reference());
            }
        }
        Ok(Code::Done)
    })
}

fn known(name: &str, there: &[SnapshotName]) -> Result<SnapshotName, CommandFailure> {
    let found = there.iter().find(|known| known.to_string() == name).copied();
    found.ok_or_else(|| {
        let all = there.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let help = if all.is_empty() { "the cluster has none".to_owned() } else { format!("the cluster has {all}") };
        CommandFailure::usage(format!("snapshot {name} not found"), help)
    })
}

fn key(documents: &Documents, arguments: &SnapshotClusterArgument) -> Result<Code, CommandFailure> {
    let cluster = arguments.find(documents)?;
    let key = id(cluster).and_then(|id| snapshot_key(documents, id)).map_err(|error| arguments.failure(error))?;
    print(&format!("{}\n", *key.expose_text()))?;
    Ok(Code::Done)
}

fn id(cluster: &Cluster) -> Result<&ClusterId, SnapshotError> {
    cluster.id().ok_or(SnapshotError::NotMade)
}
