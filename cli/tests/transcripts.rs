//! What people see, also as docs/documents.md tells it: each `transcripts/NAME.md` is a session in which `NAME.in/` is the working directory.
//!
//! `TRYCMD=overwrite cargo test -p keelway-cli --test transcripts` writes what is seen anew.

#[test]
fn transcripts() {
    trycmd::TestCases::new().case("tests/transcripts/*.md").case("../docs/documents.md");
}
