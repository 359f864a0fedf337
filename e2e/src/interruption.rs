//! Passes that a signal ends at a failpoint, and the documents to continue from.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use keelway_api::Documents;
use rustix::process::Signal;

use crate::{
    FinishedCommand, Keelway,
    failpoint::{FailpointSelector, FailpointSignal},
};

/// Runs `reconcile` until a failpoint, and returns the documents to continue from.
pub fn cut_off(keelway: &Keelway, (signal, at): (Signal, &str), text: Vec<u8>) -> Vec<u8> {
    let ran = keelway.interrupt(
        &["reconcile"],
        &text,
        &FailpointSignal { signal, at: FailpointSelector::First(at.to_owned()) },
    );
    println!("            {signal:?} at {at:?}");
    if signal == Signal::KILL { killed(&ran, text, &keelway.state()) } else { terminated(&ran, &text) }
}

/// After SIGTERM, stdout has documents with all keys of the input.
fn terminated(ran: &FinishedCommand, before: &[u8]) -> Vec<u8> {
    assert_eq!(ran.code(), 143, "{}", ran.stderr);
    assert!(ran.stderr.contains("stopped; to continue, run the command again on the documents"), "{}", ran.stderr);
    let (before, after) = (Documents::read(before).unwrap(), Documents::read(&ran.stdout).unwrap());
    assert!(keeps_keys(&before, &after));
    ran.stdout.clone()
}

/// After SIGKILL, the file that the program named is complete. If the program named no file, it had saved and done nothing.
fn killed(ran: &FinishedCommand, before: Vec<u8>, state: &Path) -> Vec<u8> {
    assert_eq!((ran.code(), ran.stdout.len()), (137, 0));
    let named = ran.stderr.lines().find_map(|line| {
        line.strip_prefix("documents are kept in ")?.strip_suffix(" until they are written").map(PathBuf::from)
    });
    let Some(file) = named else {
        println!("            it had saved nothing yet");
        return before;
    };
    assert!(file.starts_with(state), "{}", file.display());
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let text = fs::read(&file).unwrap();
    let documents = Documents::read(&text).unwrap();
    let known = Documents::read(&before).unwrap();
    assert!(keeps_keys(&known, &documents));
    text
}

/// No key changes. Those of components that were removed meanwhile may be gone.
fn keeps_keys(before: &Documents, after: &Documents) -> bool {
    let is_whole = before.components.keys().all(|pod| after.components.contains_key(pod));
    !is_whole || before.secrets.iter().all(|(name, secret)| after.secrets.get(name) == Some(secret))
}
