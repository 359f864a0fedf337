//! What a pass would do, and why. Each `NAME.md` contains the question of a maintainer, the difference from the initial world, and the plan.
//!
//! Worlds come from the real planner, minter and machine model. The plan is the output of `keelway plan --offline`. The files contain no
//! keys. `TRYCMD=overwrite cargo test -p keelway-cli --test scenarios` writes them. A failure names the directory with the documents and the
//! observation of its scenario.
#![expect(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "this is all test")]

mod changes;
mod classes;
mod creations;
mod faults;
mod fleets;
mod operations;
mod owners;
mod quorum;
mod rotations;
mod scaling;
mod stores;
mod told;
#[expect(dead_code, unreachable_pub, reason = "a module of another crate's library, of which one part is used here")]
#[path = "../../../e2e/src/transcript.rs"]
mod transcript;
mod world;
mod worlds;

use std::{
    collections::BTreeSet,
    env, fs,
    path::{Path, PathBuf},
    process::Command,
    thread,
};

use base64::{Engine, engine::general_purpose::STANDARD};
use world::World;

pub(crate) struct Scenario {
    /// The name of the file without its extension.
    name: &'static str,
    question: &'static str,
    /// The initial world.
    from: fn() -> World,
    change: fn(&mut World),
}

fn all() -> Vec<&'static Scenario> {
    let all = [
        creations::ALL,
        quorum::ALL,
        scaling::ALL,
        changes::ALL,
        classes::ALL,
        faults::ALL,
        fleets::ALL,
        owners::ALL,
        rotations::ALL,
        stores::ALL,
    ];
    all.into_iter().flatten().collect()
}

#[test]
fn plans_match_their_files() {
    let scenarios = all();
    let names: BTreeSet<&str> = scenarios.iter().map(|scenario| scenario.name).collect();
    assert_eq!(names.len(), scenarios.len(), "two scenarios have one name");
    let half = scenarios.len().div_ceil(2);
    let wrong: Vec<String> = thread::scope(|scope| {
        let halves: Vec<_> = scenarios
            .chunks(half)
            .map(|some| scope.spawn(|| some.iter().filter_map(|scenario| check(scenario).err()).collect::<Vec<_>>()))
            .collect();
        halves.into_iter().flat_map(|half| half.join().unwrap()).collect()
    });
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    let files = fs::read_dir(directory()).unwrap().map(|entry| entry.unwrap().path());
    let files = files.filter(|path| path.extension().is_some_and(|end| end == "md"));
    let left: Vec<PathBuf> =
        files.filter(|path| !names.contains(path.file_stem().unwrap().to_str().unwrap())).collect();
    assert!(left.is_empty(), "no scenario has this name: {left:?}");
}

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scenarios")
}

/// Compares the file of a scenario with the plan. If they differ, returns the plan, or writes the file if `TRYCMD=overwrite` is set.
fn check(scenario: &Scenario) -> Result<(), String> {
    let before = (scenario.from)();
    let mut after = before.clone();
    (scenario.change)(&mut after);
    let files = Path::new(env!("CARGO_TARGET_TMPDIR")).join("scenarios").join(scenario.name);
    let plan = plan(&after, &files);
    let differs = told::difference(&before, &after);
    let found = format!(
        "# {}\n\n## What differs\n\n```text\n{differs}```\n\n## The plan\n\n```text\n{plan}```\n",
        scenario.question
    );
    let path = directory().join(format!("{}.md", scenario.name));
    let written = fs::read_to_string(&path).unwrap_or_default();
    if written == found {
        return Ok(());
    }
    if env::var("TRYCMD").is_ok_and(|wanted| wanted == "overwrite") {
        fs::write(&path, found).unwrap();
        return Ok(());
    }
    Err(format!("{} differs; its input is in {}. Found:\n{found}", path.display(), files.display()))
}

/// Returns the output of `keelway plan --offline`.
fn plan(world: &World, files: &Path) -> String {
    fs::create_dir_all(files).unwrap();
    let (documents, seen) = (files.join("documents.yaml"), files.join("observation.yaml"));
    let observation = world.look().write();
    fs::write(&documents, world.documents.write()).unwrap();
    fs::write(&seen, &observation).unwrap();
    let done = Command::new(env!("CARGO_BIN_EXE_keelway"))
        .args(["plan", "--offline"])
        .arg(&seen)
        .arg("--filename")
        .arg(&documents)
        .output()
        .unwrap();
    let (plan, messages) = (String::from_utf8(done.stdout).unwrap(), String::from_utf8(done.stderr).unwrap());
    if done.status.code() == Some(2) {
        assert!(plan.is_empty(), "{}: {plan}", files.display());
        return format!("Refused:\n{}", messages.replace(&format!("{}/", files.display()), ""));
    }
    assert!(done.status.success(), "{}: {messages}", files.display());
    for key in keys(world) {
        assert!(!observation.contains(&key) && !plan.contains(&key), "a key is shown in {}", files.display());
    }
    plan
}

/// Returns each form in which a private value of a Secret could appear.
fn keys(world: &World) -> BTreeSet<String> {
    const SHORTEST: usize = 16;
    let mut forms = BTreeSet::new();
    for (name, value) in world.documents.secrets.values().flat_map(|secret| secret.data.iter().flatten()) {
        if Path::new(name).extension().is_some_and(|kind| kind == "crt" || kind == "pub") {
            continue;
        }
        forms.insert(STANDARD.encode(&value.0));
        let text = String::from_utf8_lossy(&value.0).into_owned();
        let lines = text.lines().filter(|line| line.len() >= SHORTEST && !line.starts_with("-----"));
        forms.extend(lines.map(ToOwned::to_owned));
    }
    forms
}
