//! A backup that a user names, opened with the key of its recipient.

use std::{collections::BTreeSet, fs, io::Write, path::Path};

use keelway_api::{Documents, snapshots::SnapshotSinkSpec};
use keelway_backup::{BackupContents, BackupHeader, BackupIdentities, open};
use keelway_planner::Recovery;
use zeroize::Zeroizing;

use crate::{exit::CommandFailure, input::Input, table::TextTable};

/// A backup with its documents.
pub(crate) struct OpenedBackup {
    header: BackupHeader,
    documents: Documents,
}

/// Opens a backup. Every failure names the file and what to do.
pub(crate) fn open_backup(backup: &Path, identity: &Path) -> Result<OpenedBackup, CommandFailure> {
    let named = |path: &Path, error: &dyn std::fmt::Display| {
        CommandFailure::usage(format!("{} cannot be used", path.display()), error.to_string())
    };
    let keys = fs::read_to_string(identity).map(Zeroizing::new).map_err(|error| named(identity, &error))?;
    let keys = BackupIdentities::parse(&keys).map_err(|error| named(identity, &error))?;
    let sealed = fs::read(backup).map_err(|error| named(backup, &error))?;
    let contents = open(&keys, &sealed).map_err(|error| named(backup, &error))?;
    let contents = BackupContents::parse(&contents).map_err(|error| named(backup, &error))?;
    let input = Input::of_file(backup, contents.documents.as_bytes().to_vec());
    Ok(OpenedBackup { header: contents.header, documents: input.documents()? })
}

impl OpenedBackup {
    pub(crate) fn documents(&self) -> &Documents {
        &self.documents
    }

    /// Documents of two installations must not be mixed: a machine obeys one of them.
    pub(crate) fn refuse_other_installation(&self, documents: &Documents) -> Result<(), CommandFailure> {
        match (documents.installation(), self.documents.installation()) {
            (Some(own), Some(other)) if own != other => Err(CommandFailure::usage(
                format!("the backup is of installation {other}, and the documents are of installation {own}"),
                "use a backup of the same installation, or recover into an empty store",
            )),
            _ => Ok(()),
        }
    }

    /// Returns the documents as they are.
    pub(crate) fn taken(&self, documents: &Documents) -> Result<Recovery, CommandFailure> {
        if !documents.is_empty() {
            return Err(CommandFailure::usage(
                "there are documents already, and --offline asks no machine which of them are newer",
                "leave --offline out, or recover into an empty store",
            ));
        }
        Ok(Recovery { documents: self.documents.clone(), differences: Vec::new(), unobserved_stores: BTreeSet::new() })
    }

    /// Prints the age of the backup, and the newest snapshot of each cluster.
    pub(crate) fn report(&self) {
        let mut stderr = std::io::stderr();
        let BackupHeader { keelway, taken_at, clusters, .. } = &self.header;
        let _ = writeln!(stderr, "the backup was taken at {} by keelway {keelway}", taken_at.0);
        let mut table = TextTable::new(&["CLUSTER", "LAST SNAPSHOT", "REVISION", "SINK"]);
        for cluster in clusters {
            let name = format!("{}/{}", cluster.namespace, cluster.name);
            let last = cluster.snapshots.last();
            let snapshot = last.map_or_else(|| "<none>".to_owned(), |last| last.name.clone());
            let revision = last.map(|last| last.revision.to_string()).unwrap_or_default();
            table.row(vec![name, snapshot, revision, place(&cluster.sink)]);
        }
        if !clusters.is_empty() {
            let _ = stderr.write_all(table.render(None).as_bytes());
        }
    }
}

fn place(sink: &SnapshotSinkSpec) -> String {
    match (&sink.directory, &sink.s3) {
        (Some(directory), _) => directory.path.clone(),
        (None, Some(bucket)) => [&*bucket.endpoint, &*bucket.bucket, &*bucket.prefix].join("/"),
        (None, None) => String::new(),
    }
}
