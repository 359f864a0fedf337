//! Transcripts of sessions, also those of docs/documents.md: each `transcripts/NAME.md` is a session in the working directory `NAME.in/`.
//!
//! `TRYCMD=overwrite cargo test -p keelway-cli --test transcripts` writes the output into the transcripts.

#[test]
fn transcripts() {
    let program = std::path::Path::new(env!("CARGO_BIN_EXE_keelway"));
    // A session with redirections runs in a shell, which also finds the program on this path.
    let folder = program.parent().map(std::path::Path::display);
    let path = [folder.map(|folder| folder.to_string()), std::env::var("PATH").ok()];
    let path = path.into_iter().flatten().collect::<Vec<_>>().join(":");
    trycmd::TestCases::new()
        .register_bins([("sh", std::path::Path::new("/bin/sh")), ("rm", std::path::Path::new("/bin/rm"))])
        .env("PATH", path)
        // No session finds documents that somebody's commands left on this machine.
        .env("XDG_STATE_HOME", concat!(env!("CARGO_TARGET_TMPDIR"), "/transcripts"))
        .case(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/transcripts/*.md"))
        .case("../docs/documents.md");
}
