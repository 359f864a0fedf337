//! A copy of the documents that a command wrote last, one file for each installation.
//!
//! A shell empties the file of stdout before it starts a command. If that file is also the input, the keys of a fleet are lost. This copy
//! restores them.

use std::{
    fmt::Write,
    fs,
    path::{Path, PathBuf},
    time::SystemTime,
};

use anyhow::Context;
use keelway_api::Documents;

use crate::pipe::{SUFFIX, write_durably};

/// The prefix of a file's name, before the id of its installation.
const PREFIX: &str = "documents-";

/// Replaces the copy of the installation, with mode 0600. Documents that no machine obeys yet belong to no installation, and are not copied:
/// the user can create them again.
pub(crate) fn store(directory: &Path, documents: &Documents) -> anyhow::Result<()> {
    let Some(file) = file_of(directory, documents) else { return Ok(()) };
    // Two commands of one pipeline can run this at the same time.
    let next = file.with_extension(format!("{}.next", std::process::id()));
    write_durably(&file, &next, documents).inspect_err(|_| drop(fs::remove_file(&next)))
}

/// Removes the copy of the installation. Called when nothing is left of the installation.
pub(crate) fn forget(directory: &Path, documents: &Documents) -> anyhow::Result<()> {
    match file_of(directory, documents) {
        Some(file) if file.exists() => {
            fs::remove_file(&file).with_context(|| format!("could not remove {}", file.display()))
        }
        Some(_) | None => Ok(()),
    }
}

fn file_of(directory: &Path, documents: &Documents) -> Option<PathBuf> {
    Some(directory.join(format!("{PREFIX}{}{SUFFIX}", documents.installation()?)))
}

/// Returns the help that restores the documents of a file, with the commands to run, or `None` if there is no copy.
pub(crate) fn restore_help(directory: &Path, lost: Option<&Path>) -> Option<String> {
    let files = files(directory);
    let target = lost.map_or_else(|| "FILE".to_owned(), shell_word);
    let copy = |kept: &PathBuf| format!("cp {} {target}", shell_word(kept));
    match files.as_slice() {
        [] => None,
        [kept] => Some(format!("restore the last output: {}", copy(kept))),
        several => {
            let mut text = "restore the last output of one of these installations, the newest first:".to_owned();
            for kept in several {
                // Writing to a String cannot fail.
                let _ = write!(text, "\n    {}  # {}", copy(kept), content(kept));
            }
            Some(text)
        }
    }
}

/// Returns the copies, newest first.
fn files(directory: &Path) -> Vec<PathBuf> {
    let is_kept = |file: &PathBuf| {
        let name = file.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.starts_with(PREFIX) && name.ends_with(SUFFIX))
    };
    let written =
        |file: &PathBuf| fs::metadata(file).and_then(|found| found.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(is_kept).collect();
    files.sort_by_key(|file| (std::cmp::Reverse(written(file)), file.clone()));
    files
}

/// Describes the documents of an installation, so that a user can distinguish it from others.
fn content(file: &Path) -> String {
    let documents = fs::read(file).ok().and_then(|bytes| Documents::read(&bytes).ok());
    let Some(documents) = documents else { return "cannot be read".to_owned() };
    let list = |names: Vec<String>| if names.is_empty() { "none".to_owned() } else { names.join(", ") };
    let clusters = list(documents.clusters.keys().map(ToString::to_string).collect());
    let machines = list(documents.hypervisors.keys().map(ToString::to_string).collect());
    format!("clusters: {clusters}; hypervisors: {machines}")
}

/// Quotes a path as one word of a shell command.
pub(crate) fn shell_word(path: &Path) -> String {
    let text = path.display().to_string();
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+@:,".contains(c);
    if text.chars().all(plain) && !text.is_empty() { text } else { format!("'{}'", text.replace('\'', r"'\''")) }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn documents(machine: &str, installation: &str) -> Documents {
        let text = format!(
            "apiVersion: keelway.dev/v1alpha1\nkind: Hypervisor\nmetadata:\n  name: {machine}\nspec:\n  role: Private\n  endpoint:\n    \
             unix:\n      path: /run/{machine}.sock\n  addresses:\n    private: [10.0.0.1]\nstatus:\n  installation: {installation}\n"
        );
        Documents::read(text.as_bytes()).unwrap()
    }

    #[test]
    fn copies_of_each_installation_are_readable_by_their_owner_only() {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().join("keelway");
        let (one, other) = ("aaaaaaaaaaaaaaaa", "bbbbbbbbbbbbbbbb");
        store(&place, &documents("hv-1", one)).unwrap();
        store(&place, &documents("hv-2", other)).unwrap();
        store(&place, &documents("hv-3", one)).unwrap();
        let kept = files(&place);
        assert_eq!(kept.len(), 2, "{kept:?}");
        for file in &kept {
            assert_eq!(fs::metadata(file).unwrap().permissions().mode() & 0o777, 0o600, "there are keys in it");
        }
        let newest = Documents::read(&fs::read(place.join("documents-aaaaaaaaaaaaaaaa.yaml")).unwrap()).unwrap();
        assert_eq!(newest, documents("hv-3", one));
        let advice = restore_help(&place, Some(Path::new("my c1.yaml"))).unwrap();
        assert!(
            advice.contains("documents-aaaaaaaaaaaaaaaa.yaml 'my c1.yaml'  # clusters: none; hypervisors: hv-3"),
            "{advice}"
        );

        forget(&place, &documents("hv-3", one)).unwrap();
        assert_eq!(files(&place).len(), 1);
    }

    #[test]
    fn documents_without_an_installation_are_not_copied() {
        let directory = tempfile::tempdir().unwrap();
        store(directory.path(), &Documents::default()).unwrap();
        assert!(files(directory.path()).is_empty());
        assert_eq!(restore_help(directory.path(), None), None);
    }
}
