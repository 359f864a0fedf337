//! Transcripts of sessions, also those of docs/documents.md: each `transcripts/NAME.md` is a session in the working directory `NAME.in/`.
//!
//! `TRYCMD=overwrite cargo test -p keelway-cli --test transcripts` writes the output into the transcripts.

#![expect(clippy::unwrap_used, reason = "a test fails by it")]

use std::{
    env, fs,
    path::{Path, PathBuf},
};

#[test]
fn transcripts() {
    let program = Path::new(env!("CARGO_BIN_EXE_keelway"));
    // A session with redirections runs in a shell, which also finds the program on this path.
    let folder = program.parent().map(Path::display);
    let path = [folder.map(|folder| folder.to_string()), env::var("PATH").ok()];
    let path = path.into_iter().flatten().collect::<Vec<_>>().join(":");
    for session in sessions() {
        // Commands store their last output there, and later ones refer to it. No other session and no earlier run has a part in it.
        let state = tempfile::tempdir().unwrap();
        trycmd::TestCases::new()
            .register_bins([("sh", Path::new("/bin/sh")), ("rm", Path::new("/bin/rm"))])
            .env("PATH", &path)
            .env("XDG_STATE_HOME", state.path().display().to_string())
            .case(session);
    }
}

/// The files of all sessions.
fn sessions() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/transcripts");
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let own = files.filter(|file| file.extension().is_some_and(|extension| extension == "md"));
    own.chain(["../docs/documents.md".into()]).collect()
}
