//! The documents that an interrupted command leaves.

use std::{fs, os::unix::fs::PermissionsExt, path::PathBuf};

use keelway_api::{Documents, name::ClusterId};
use rustix::process::Signal;

use crate::{
    cut::Cut,
    world::{Ended, World},
};

/// How an interrupted command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum End {
    Terminated,
    Killed,
    /// The command had settled before the signal.
    Settled,
}

/// Documents of an interrupted command. `file` is the file that contains them, if they are not on stdout.
pub(crate) struct Kept {
    pub(crate) text: String,
    pub(crate) file: Option<PathBuf>,
    pub(crate) end: End,
}

impl Kept {
    /// Reads the documents from the place that the command reported.
    pub(crate) fn of(ended: &Ended, cut: Cut, input: &str, world: &World) -> Self {
        let named = named_file(&ended.stderr);
        if ended.killed() && cut.signal == Signal::KILL {
            assert_eq!(ended.stdout, "", "stdout holds all documents or none");
            // The command saved nothing, so the input is still current.
            let text = named.as_ref().map_or_else(|| input.to_owned(), read);
            return Self { text, file: named, end: End::Killed };
        }
        let text = ended.stdout.clone();
        match ended.status.code() {
            Some(143) => {
                assert!(ended.stderr.contains("run the command again"), "{}", ended.stderr);
                if let Some(file) = named {
                    assert_eq!(text, read(&file), "stdout and the file differ");
                }
                Self { text, file: None, end: End::Terminated }
            }
            Some(0) => {
                assert!(world.left().is_empty(), "a command that settled leaves no file");
                Self { text, file: None, end: End::Settled }
            }
            _ => panic!("{:?}: {}", ended.status, ended.stderr),
        }
    }

    /// Runs the same command on these documents.
    pub(crate) async fn go_on(&self, world: &World) -> String {
        match &self.file {
            Some(file) => world.keelway(&["reconcile", "-f", file.to_str().unwrap()], "").await.done(),
            None => world.settle(&self.text).await,
        }
    }

    /// Asserts that ids, keys and placements did not change until `end`: nothing was created a second time.
    pub(crate) fn assert_part_of(&self, end: &str) {
        if self.end == End::Killed && self.file.is_none() {
            // Nothing was saved, so nothing was done.
            return;
        }
        let (kept, end) = (documents(&self.text), documents(end));
        assert_eq!(only_cluster(&kept), only_cluster(&end));
        assert!(!kept.secrets.is_empty() && !kept.components.is_empty());
        for (name, secret) in &kept.secrets {
            // Not compared as a whole, because a failure would print keys.
            assert!(end.secrets[name].data == secret.data, "{name:?} changed");
        }
        for (name, component) in &kept.components {
            assert_eq!(end.components[name].spec, component.spec, "{name:?}");
        }
        for (name, machine) in &kept.hypervisors {
            let installation = |machine: &keelway_api::Hypervisor| machine.status.as_ref()?.installation.clone();
            assert_eq!(installation(machine), installation(&end.hypervisors[name]));
            assert!(installation(machine).is_some());
        }
    }
}

pub(crate) fn documents(text: &str) -> Documents {
    Documents::read(text.as_bytes()).unwrap()
}

pub(crate) fn only_cluster(documents: &Documents) -> &ClusterId {
    let mut ids = documents.clusters.values().map(|cluster| cluster.id().expect("a cluster without an id"));
    let id = ids.next().expect("there is no cluster");
    assert_eq!(ids.next(), None);
    id
}

/// Returns the file named in `documents are kept in FILE until they are written`.
fn named_file(stderr: &str) -> Option<PathBuf> {
    let (_, rest) = stderr.split_once("documents are kept in ")?;
    let (file, _) = rest.split_once(" until they are written")?;
    Some(file.into())
}

fn read(file: &PathBuf) -> String {
    let mode = fs::metadata(file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "{}", file.display());
    fs::read_to_string(file).unwrap()
}
