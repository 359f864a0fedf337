//! The generated parts of the documentation match this program.

#![expect(clippy::unwrap_used, reason = "a test fails by it")]

use std::{fs, path::Path, process::Command};

fn keelway(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_keelway")).args(arguments).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn docs_are_up_to_date() {
    for name in ["arguments", "fields", "ports", "reasons"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs").join(name).with_extension("md");
        let written = fs::read_to_string(&path).unwrap_or_default();
        assert!(written == keelway(&["reference", name]), "docs/{name}.md is old: cargo xtask docs");
    }
}

#[test]
fn every_command_has_a_man_page() {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("man");
    keelway(&["reference", "man", directory.to_str().unwrap()]);
    let commands = keelway(&["reference", "commands"]);
    assert!(commands.lines().count() > 25, "{commands}");
    for command in commands.lines() {
        let name = format!("keelway-{}", command.replace(' ', "-"));
        let page = fs::read_to_string(directory.join(&name).with_extension("1")).unwrap();
        for part in [".SH NAME", ".SH SYNOPSIS", ".SH OPTIONS", ".SH \"EXIT STATUS\"", ".SH EXAMPLES"] {
            assert!(page.contains(part), "{name} has no {part}");
        }
        // roff escapes a hyphen.
        let first = command.split(' ').next().unwrap().replace('-', "\\-");
        assert!(page.contains(&format!("keelway {first}")), "{name}:\n{page}");
    }
}
