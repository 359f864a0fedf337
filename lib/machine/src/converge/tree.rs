//! The directories and files of one pod.

use std::{collections::BTreeSet, ops::Bound};

use keelway_api::{
    machine::{FileState, MachineState, Pod, PodDigests, Start, copy_name},
    name::PodName,
};

use crate::{
    action::PodAction,
    layout::{FILE_MODE, FILES, MachineDirectory, file_path, pod_directory},
};

/// Creates missing directories and files, and first removes what is in their place.
pub(super) fn plan_present(
    name: &PodName,
    (pod, digests): (&Pod, &PodDigests),
    state: &MachineState,
) -> Vec<PodAction> {
    let directories = directories_of(name, pod);
    let blocked_directories =
        directories.iter().map(|directory| directory.path.clone()).filter(|path| is_other_than_directory(path, state));
    let blocked_files =
        pod.files.iter().map(|file| file_path(name, &file.path)).filter(|path| is_directory(path, state));
    let mut steps: Vec<_> =
        blocked_directories.chain(blocked_files).map(|path| PodAction::RemovePath { path }).collect();

    let missing: Vec<_> =
        directories.into_iter().filter(|directory| !holds(directory, state.files.get(&directory.path))).collect();
    if !missing.is_empty() {
        steps.push(PodAction::MakeDirectories(missing));
    }
    for (file, digest) in pod.files.iter().zip(&digests.files) {
        let found = state.files.get(&file_path(name, &file.path));
        if !found.is_some_and(|found| is_written(found, digest, pod.user)) {
            steps.push(PodAction::WriteFile { file: file.clone(), user: pod.user });
        }
    }
    steps
}

/// Marks the data directories that have no mark yet.
pub(super) fn plan_marks(name: &PodName, pod: &Pod, state: &MachineState) -> Vec<PodAction> {
    let unmarked = pod.data.iter().filter(|data| !state.data_of(name, data).marked);
    unmarked.map(|data| PodAction::MarkData { path: format!("{}/{data}", pod_directory(name)) }).collect()
}

/// Copies the data directories that have no complete copy of this number. A directory that lost its data is not copied.
pub(super) fn plan_copies(name: &PodName, pod: &Pod, copy: u32, state: &MachineState) -> Vec<PodAction> {
    let is_whole = |data: &str| state.data_of(name, data).allows(Start::OnUsedData);
    let copied = pod.data.iter().map(|data| (data, copy_name(data, copy)));
    let missing = copied.filter(|(data, copy)| is_whole(data) && !is_whole(copy));
    let own = pod_directory(name);
    missing
        .map(|(data, copy)| PodAction::CopyData { from: format!("{own}/{data}"), to: format!("{own}/{copy}") })
        .collect()
}

/// Returns whether every data directory allows the pod to start.
pub(super) fn allows_start(name: &PodName, pod: &Pod, state: &MachineState) -> bool {
    pod.start == Start::Always || pod.data.iter().all(|data| state.data_of(name, data).allows(pod.start))
}

/// Removes files that the config no longer has. Only below `files`: the agent never removes single files of data directories.
pub(super) fn plan_absent(name: &PodName, pod: &Pod, state: &MachineState) -> Vec<PodAction> {
    let wanted: BTreeSet<String> = pod
        .files
        .iter()
        .map(|file| file_path(name, &file.path))
        .chain(directories_of(name, pod).into_iter().map(|directory| directory.path))
        .collect();
    let below = file_path(name, "");
    let mut steps = Vec::new();
    let mut removed: Option<&str> = None;
    let from = (Bound::Included(below.as_str()), Bound::Unbounded);
    let own = state.files.range::<str, _>(from).map(|(path, _)| path).take_while(|path| path.starts_with(&below));
    for path in own {
        let goes_along = removed.is_some_and(|above| is_below(path, above));
        if !goes_along && !wanted.contains(path) && !has_blocked_parent(path, pod, name) {
            removed = Some(path);
            steps.push(PodAction::RemovePath { path: path.clone() });
        }
    }
    steps
}

/// Returns whether [`plan_present`] already removes a path, because it is in a directory where a file belongs.
fn has_blocked_parent(path: &str, pod: &Pod, name: &PodName) -> bool {
    pod.files.iter().any(|file| is_below(path, &file_path(name, &file.path)))
}

fn is_below(path: &str, above: &str) -> bool {
    path.strip_prefix(above).is_some_and(|rest| rest.starts_with('/'))
}

/// Returns the directories of a pod, parents first.
fn directories_of(name: &PodName, pod: &Pod) -> Vec<MachineDirectory> {
    let own = pod_directory(name);
    let of_files = |path: String| MachineDirectory::of_files(path, pod.user);
    let inner: BTreeSet<&str> =
        pod.files.iter().flat_map(|file| file.path.match_indices('/').map(|(end, _)| &file.path[..end])).collect();
    let mut directories =
        vec![MachineDirectory::of_cluster(&name.cluster), of_files(own.clone()), of_files(format!("{own}/{FILES}"))];
    directories.extend(inner.into_iter().map(|path| of_files(file_path(name, path))));
    directories.extend(pod.data.iter().map(|path| MachineDirectory::of_data(format!("{own}/{path}"), pod.user)));
    directories
}

fn holds(wanted: &MachineDirectory, found: Option<&FileState>) -> bool {
    found.is_some_and(|found| {
        found.sha256.is_none() && (found.user, found.group, found.mode) == (wanted.user, wanted.group, wanted.mode)
    })
}

fn is_written(found: &FileState, digest: &String, user: u32) -> bool {
    let FileState { user: owner, group, mode, sha256 } = found;
    (*owner, *group, *mode) == (user, user, FILE_MODE) && sha256.as_ref() == Some(digest)
}

fn is_directory(path: &str, state: &MachineState) -> bool {
    state.files.get(path).is_some_and(|found| found.sha256.is_none())
}

fn is_other_than_directory(path: &str, state: &MachineState) -> bool {
    state.files.get(path).is_some_and(|found| found.sha256.is_some())
}
