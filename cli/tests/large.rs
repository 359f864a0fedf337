//! The program reads or refuses large input in bounded memory, and prints a bounded number of faults.

#![expect(clippy::unwrap_used, reason = "a test fails by it")]

use std::{fs, path::Path, process::Command};

/// The size of the input, in bytes.
const LARGE: usize = 50 << 20;
/// The memory that the process can use, in KiB: several times the input.
const MEMORY: usize = 1_500_000;
const MOST_SAID: usize = 256 << 10;

fn refused(name: &str, input: &[u8]) {
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::write(&file, input).unwrap();
    let line = format!("ulimit -v {MEMORY}; exec \"$0\" validate -f \"$1\"");
    let program = env!("CARGO_BIN_EXE_keelway");
    let output = Command::new("bash").args(["-c", &line, program]).arg(&file).output().unwrap();
    fs::remove_file(&file).unwrap();
    assert_eq!(output.status.code(), Some(2), "{name}");
    assert!(!output.stderr.is_empty() && output.stderr.len() < MOST_SAID, "{name}: {} bytes", output.stderr.len());
}

#[test]
fn one_document() {
    refused("one-line", &[b"kind: ".to_vec(), vec![b'x'; LARGE]].concat());
    refused("brackets", &vec![b'['; LARGE]);
    refused("anchors", &b"a: &a x\n".repeat(LARGE / 8));
}

#[test]
fn many_faults() {
    let document = b"apiVersion: keelway.dev/v1alpha1\nkind: Hypervisor\nmetadata: {name: hv-1}\nspec: {rle: x}\n---\n";
    refused("faults", &document.repeat(2_000));
}
