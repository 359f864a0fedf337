//! Bad input: reading each `bad/NAME.yaml` fails with the faults of `bad/NAME.fault`.
//!
//! `INSTA_UPDATE=always cargo test -p keelway-api --test bad` writes the `.fault` files.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by them")]

use std::{
    collections::BTreeSet,
    env, fs,
    path::{Path, PathBuf},
};

use keelway_api::Documents;

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/bad")
}

fn names(extension: &str) -> BTreeSet<String> {
    fs::read_dir(directory())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|found| found == extension))
        .map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned())
        .collect()
}

fn faults(name: &str, input: &[u8]) -> String {
    match Documents::read(input) {
        Ok(_) => panic!("{name}.yaml was read without a fault"),
        Err(faults) => format!("{faults}\n"),
    }
}

#[test]
fn each_bad_input_has_its_faults() {
    let update = env::var("INSTA_UPDATE").is_ok_and(|mode| mode == "always");
    let mut wrong = Vec::new();
    for name in names("yaml") {
        let path = directory().join(&name);
        let found = faults(&name, &fs::read(path.with_extension("yaml")).unwrap());
        let expected = path.with_extension("fault");
        if update {
            fs::write(expected, found).unwrap();
        } else if fs::read_to_string(expected).unwrap_or_default() != found {
            wrong.push(format!("{name}:\n{found}"));
        }
    }
    assert!(wrong.is_empty(), "{} differ:\n\n{}", wrong.len(), wrong.join("\n"));
    assert_eq!(names("yaml"), names("fault"), "every input has its faults, and no more");
}

#[test]
fn every_fault_has_a_place_and_a_correction() {
    for name in names("yaml") {
        let input = fs::read(directory().join(&name).with_extension("yaml")).unwrap();
        for fault in Documents::read(&input).unwrap_err().0 {
            assert!(fault.line > 0, "{name}: {fault}");
            // Input that is not text has no documents that a fault could name.
            assert!(fault.document.starts_with("document ") || name.starts_with("no-text-"), "{name}: {fault}");
            assert!(!fault.problem.is_empty() && !fault.help.is_empty(), "{name}: {fault}");
        }
    }
}
