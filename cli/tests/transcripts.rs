//! What people see, also as docs/documents.md tells it: each `transcripts/NAME.md` is a session in which `NAME.in/` is the working directory.
//!
//! `TRYCMD=overwrite cargo test -p keelway-cli --test transcripts` writes what is seen anew.

#[test]
fn transcripts() {
    let program = std::path::Path::new(env!("CARGO_BIN_EXE_keelway"));
    // Where a session needs redirections it runs in a shell, which finds the program, too.
    let folder = program.parent().map(std::path::Path::display);
    let path = [folder.map(|folder| folder.to_string()), std::env::var("PATH").ok()];
    let path = path.into_iter().flatten().collect::<Vec<_>>().join(":");
    trycmd::TestCases::new()
        .register_bins([("sh", std::path::Path::new("/bin/sh")), ("rm", std::path::Path::new("/bin/rm"))])
        .env("PATH", path)
        .case(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/transcripts/*.md"))
        .case("../docs/documents.md");
}
