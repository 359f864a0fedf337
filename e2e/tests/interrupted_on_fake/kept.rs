//! What is left of an interrupted command.

use std::{fs, os::unix::fs::PermissionsExt, path::PathBuf};

use keelway_api::{Documents, name::ClusterId};
use rustix::process::Signal;

use crate::{
    cut::Cut,
    world::{Ended, World},
};

/// How a command ended that was to be interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum End {
    Terminated,
    Killed,
    /// It had settled before the signal came.
    Settled,
}

/// Documents that were kept, as text and where they are if in a file.
pub(crate) struct Kept {
    pub(crate) text: String,
    pub(crate) file: Option<PathBuf>,
    pub(crate) end: End,
}

impl Kept {
    /// Looks for the documents where the command says that they are.
    pub(crate) fn of(ended: &Ended, cut: Cut, input: &str, world: &World) -> Self {
        let named = named_file(&ended.stderr);
        if ended.killed() && cut.signal == Signal::KILL {
            assert_eq!(ended.stdout, "", "stdout holds all documents or none");
            // Without a save there was nothing new to keep.
            let text = named.as_ref().map_or_else(|| input.to_owned(), read);
            return Self { text, file: named, end: End::Killed };
        }
        let text = ended.stdout.clone();
        match ended.status.code() {
            Some(143) => {
                assert!(ended.stderr.contains("run the same command"), "{}", ended.stderr);
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

    /// The same command on what was kept.
    pub(crate) async fn go_on(&self, world: &World) -> String {
        match &self.file {
            Some(file) => world.keelway(&["reconcile", "-f", file.to_str().unwrap()], "").await.done(),
            None => world.settle(&self.text).await,
        }
    }

    /// Ids, keys and places are those that were kept: nothing was made anew.
    pub(crate) fn assert_part_of(&self, end: &str) {
        if self.end == End::Killed && self.file.is_none() {
            // Nothing had been saved, so nothing had been done.
            return;
        }
        let (kept, end) = (documents(&self.text), documents(end));
        assert_eq!(only_cluster(&kept), only_cluster(&end));
        assert!(!kept.secrets.is_empty() && !kept.components.is_empty());
        for (name, secret) in &kept.secrets {
            // Not compared as a whole: a failure would print keys.
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

/// `documents are kept in FILE until they are written`
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
