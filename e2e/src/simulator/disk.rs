//! The part of a simulated machine's disk that Keelway may write to.

use std::collections::{BTreeMap, BTreeSet};

use keelway_api::{
    hypervisor::Applied,
    machine::{DataState, FileState, sha256_hex},
    name::{InstallationId, PodName},
};
use keelway_machine::layout::{FILES, MachineDirectory, file_path, pod_directory};

use super::{error::SimulatedRefusal, program::SimulatedMember};

/// The mode of the top directory, which identifies it as created by Keelway.
const TOP: u32 = 0o1711;
const FILE: u32 = 0o600;
/// The content with which interference overwrites files.
const OVERWRITTEN: &[u8] = b"changed by hand";

/// Everything below the state directory. The state directory itself is the empty path.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct SimulatedDisk {
    pub(super) owner: Option<InstallationId>,
    pub(super) applied: Option<Applied>,
    nodes: BTreeMap<String, DiskNode>,
    /// etcd members that have written to their data directories, as they were at the first write.
    pub(super) members: BTreeMap<PodName, SimulatedMember>,
    /// Data directories that carry the mark of their pod.
    marks: BTreeSet<String>,
    /// Copies of the data directories of members.
    copies: BTreeSet<String>,
    /// Members that did not change their data since it was copied.
    copied: BTreeSet<PodName>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct DiskNode {
    state: FileState,
    content: Vec<u8>,
}

impl SimulatedDisk {
    pub(super) fn write_owner(&mut self, installation: &InstallationId) {
        self.make_top();
        self.owner = Some(installation.clone());
    }

    pub(super) fn record_applied(&mut self, applied: &Applied) {
        self.make_top();
        self.applied = Some(applied.clone());
    }

    pub(super) fn make_directory(&mut self, directory: &MachineDirectory) -> Result<(), SimulatedRefusal> {
        let MachineDirectory { path, user, group, mode } = directory;
        self.make_top();
        self.check_parent(path)?;
        if self.nodes.get(path).is_some_and(|node| node.state.sha256.is_some()) {
            return Err(SimulatedRefusal(format!("{path} is no directory")));
        }
        self.nodes.insert(path.clone(), DiskNode::directory(*user, *group, *mode));
        Ok(())
    }

    pub(super) fn write_file(&mut self, path: &str, user: u32, content: &[u8]) -> Result<(), SimulatedRefusal> {
        self.check_parent(path)?;
        if self.nodes.get(path).is_some_and(|node| node.state.sha256.is_none()) {
            return Err(SimulatedRefusal(format!("{path} is a directory")));
        }
        let sha256 = Some(sha256_hex(content));
        let state = FileState { user, group: user, mode: FILE, sha256 };
        self.nodes.insert(path.to_owned(), DiskNode { state, content: content.to_vec() });
        Ok(())
    }

    /// Removes a path. A path that does not exist is not an error.
    pub(super) fn remove(&mut self, path: &str) {
        let below = format!("{path}/");
        self.nodes.retain(|name, _| name != path && !name.starts_with(&below));
        for found in [&mut self.marks, &mut self.copies] {
            found.retain(|data| data != path && !data.starts_with(&below));
        }
        self.members.retain(|pod, _| {
            let data = format!("{}/data", pod_directory(pod));
            data != path && !data.starts_with(&below)
        });
    }

    pub(super) fn mark(&mut self, path: &str) -> Result<(), SimulatedRefusal> {
        if !self.has_directory(path) {
            return Err(SimulatedRefusal(format!("{path}: no such directory")));
        }
        self.marks.insert(path.to_owned());
        Ok(())
    }

    /// Copies the data directory of a member, which must not run.
    pub(super) fn copy(&mut self, pod: &PodName, (from, to): (&str, &str)) -> Result<(), SimulatedRefusal> {
        let found = self.nodes.get(from).filter(|node| node.state.sha256.is_none()).cloned();
        let found = found.ok_or_else(|| SimulatedRefusal(format!("{from}: no such directory")))?;
        self.nodes.insert(to.to_owned(), found);
        if self.marks.contains(from) {
            self.marks.insert(to.to_owned());
        }
        if self.members.contains_key(pod) {
            self.copies.insert(to.to_owned());
            self.copied.insert(pod.clone());
        }
        Ok(())
    }

    /// Returns whether an etcd member has written data here, or a data directory is marked for one.
    pub(super) fn has_members(&self) -> bool {
        !self.members.is_empty() || self.marks.iter().any(|path| path.contains("/etcd-"))
    }

    /// Returns whether the data of a member is as it was copied.
    pub(super) fn is_copied(&self, pod: &PodName) -> bool {
        self.copied.contains(pod)
    }

    /// A member starts, and writes to its data from now on.
    pub(super) fn begin_writes(&mut self, pod: &PodName) {
        self.copied.remove(pod);
    }

    /// Returns whether the data directory of a member carries its mark.
    pub(super) fn is_marked(&self, pod: &PodName) -> bool {
        self.marks.contains(&format!("{}/data", pod_directory(pod)))
    }

    /// Returns the data directories of pods.
    pub(super) fn data(&self) -> BTreeMap<String, DataState> {
        let of_data = |path: &&String| {
            let names: Vec<&str> = path.split('/').collect();
            matches!(names.as_slice(), [_, _, name] if *name != FILES) && self.has_directory(path)
        };
        let written = self.members.keys().map(|pod| format!("{}/data", pod_directory(pod)));
        let used: BTreeSet<String> = written.chain(self.copies.iter().cloned()).collect();
        let state = |path: &String| DataState { marked: self.marks.contains(path), used: used.contains(path) };
        self.nodes.keys().filter(of_data).map(|path| (path.clone(), state(path))).collect()
    }

    /// Removes the records, and the top directory if it is empty.
    pub(super) fn leave(&mut self) {
        self.owner = None;
        self.applied = None;
        if self.nodes.keys().all(String::is_empty) {
            self.nodes.clear();
        }
    }

    pub(super) fn has_directory(&self, path: &str) -> bool {
        self.nodes.get(path).is_some_and(|node| node.state.sha256.is_none())
    }

    /// Returns the content of a pod's file.
    pub(super) fn read(&self, pod: &PodName, name: &str) -> Option<Vec<u8>> {
        self.content(pod, name).map(<[u8]>::to_vec)
    }

    /// Returns the content of a file of a pod.
    pub(super) fn content(&self, pod: &PodName, name: &str) -> Option<&[u8]> {
        let node = self.nodes.get(&file_path(pod, name)).filter(|node| node.state.sha256.is_some());
        node.map(|node| node.content.as_slice())
    }

    /// Returns the contents of all files of a pod, by path.
    pub(super) fn contents(&self, pod: &PodName) -> BTreeMap<String, Vec<u8>> {
        let directory = file_path(pod, "");
        let below = self.nodes.range(directory.clone()..).take_while(|(path, _)| path.starts_with(&directory));
        let files = below.filter(|(_, node)| node.state.sha256.is_some());
        files.map(|(path, node)| (path[directory.len()..].to_owned(), node.content.clone())).collect()
    }

    pub(super) fn files(&self) -> BTreeMap<String, FileState> {
        self.nodes.iter().map(|(path, node)| (path.clone(), node.state.clone())).collect()
    }

    /// Returns the paths of the files that pods read.
    pub(super) fn read_by_pods(&self) -> Vec<String> {
        let inside = format!("/{FILES}/");
        let of_files = self.nodes.iter().filter(|(path, node)| path.contains(&inside) && node.state.sha256.is_some());
        of_files.map(|(path, _)| path.clone()).collect()
    }

    /// Returns whether interference has overwritten a file of the same pod.
    pub(super) fn is_overwritten(&self, path: &str) -> bool {
        let of_pod = path.split_once(&format!("/{FILES}/")).map_or(path, |(pod, _)| pod);
        self.nodes.iter().any(|(name, node)| name.starts_with(of_pod) && node.content == OVERWRITTEN)
    }

    /// Overwrites a file, as interference.
    pub(super) fn overwrite(&mut self, path: &str) {
        if let Some(node) = self.nodes.get_mut(path) {
            node.content = OVERWRITTEN.to_vec();
            node.state.sha256 = Some(sha256_hex(&node.content));
        }
    }

    /// Adds a file beside another one, as interference.
    pub(super) fn add_stray_file(&mut self, path: &str) {
        let parent = path.rsplit_once('/').map_or("", |(parent, _)| parent);
        let content = b"a stray".to_vec();
        let state = FileState { user: 0, group: 0, mode: 0o644, sha256: Some(sha256_hex(&content)) };
        self.nodes.insert(format!("{parent}/stray"), DiskNode { state, content });
    }

    /// Replaces a file by a directory, as interference.
    pub(super) fn replace_by_directory(&mut self, path: &str) {
        self.nodes.insert(path.to_owned(), DiskNode::directory(0, 0, 0o755));
    }

    fn make_top(&mut self) {
        self.nodes.entry(String::new()).or_insert_with(|| DiskNode::directory(0, 0, TOP));
    }

    fn check_parent(&self, path: &str) -> Result<(), SimulatedRefusal> {
        let parent = path.rsplit_once('/').map_or("", |(parent, _)| parent);
        if self.has_directory(parent) { Ok(()) } else { Err(SimulatedRefusal(format!("{parent}: no such directory"))) }
    }
}

impl DiskNode {
    fn directory(user: u32, group: u32, mode: u32) -> Self {
        Self { state: FileState { user, group, mode, sha256: None }, content: Vec::new() }
    }
}
