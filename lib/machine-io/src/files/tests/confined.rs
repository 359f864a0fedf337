//! Whatever the caller requests, and whatever a component does to its own directories meanwhile: nothing outside of the component's directories is
//! created, changed, removed or read.

use std::{collections::BTreeMap, path::Path};

use proptest::prelude::*;

use super::*;

const OUTSIDE: &str = "not a component's";

/// Parts of paths, some of which lead elsewhere.
fn part() -> impl Strategy<Value = String> {
    const KNOWN: &[&str] =
        &["..", ".", "", "a", "data", "files", "link", "up", "owner", "etcd-0", "0123456789abcdef", "\0", "a\0b"];
    prop_oneof![
        8 => prop::sample::select(KNOWN).prop_map(str::to_owned),
        1 => Just("x".repeat(300)),
        1 => any::<String>(),
    ]
}

fn path() -> impl Strategy<Value = String> {
    let parts = prop::collection::vec(part(), 1..8).prop_map(|parts| parts.join("/"));
    (any::<bool>(), parts).prop_map(|(absolute, parts)| if absolute { format!("/{parts}") } else { parts })
}

/// A machine with foreign files at each level, and links to them from the directories that the component can write.
fn with_others() -> Machine {
    let machine = Machine::with_pod();
    for place in ["etc", "var/lib", "var/lib/keelway/0123456789abcdef", "var/lib/keelway/fedcba9876543210/etcd-0/files"]
    {
        fs::create_dir_all(machine.path(place)).unwrap();
        fs::write(machine.path(place).join("theirs"), OUTSIDE).unwrap();
    }
    for (name, target) in
        [("link", machine.path("etc")), ("up", PathBuf::from("../../..")), ("root", PathBuf::from("/"))]
    {
        symlink(&target, machine.in_pod("data").join(name)).unwrap();
        symlink(&target, machine.in_pod("files").join(name)).unwrap();
    }
    machine
}

/// Everything on the machine except the component's own files: by path, its mode and content.
fn outside(machine: &Machine) -> BTreeMap<PathBuf, (u32, Vec<u8>)> {
    let mut found = BTreeMap::new();
    look(machine.directory.path(), &machine.in_pod(""), &mut found);
    found
}

fn look(folder: &Path, but: &Path, found: &mut BTreeMap<PathBuf, (u32, Vec<u8>)>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let metadata = fs::symlink_metadata(&path).unwrap();
        if path == but.components().as_path() {
            continue;
        }
        let content = if metadata.is_file() { fs::read(&path).unwrap() } else { Vec::new() };
        if metadata.is_dir() {
            look(&path, but, found);
        }
        found.insert(path, (metadata.mode(), content));
    }
}

/// Calls every operation that accepts a path of a component. It does not matter here whether the operation fails.
fn ask(machine: &Machine, path: &str) {
    let files = machine.files();
    let directory = layout::pod_directory(&pod());
    let _ = files.write_file(&pod(), USER, &file(path, b"ours"));
    let _ = files.make_directory(&MachineDirectory::of_data(format!("{directory}/{path}"), USER));
    let _ = files.mark_data(&pod(), &format!("{directory}/{path}"));
    let read = files.read_file(&pod(), path).ok().flatten();
    assert!(read.is_none_or(|read| read != OUTSIDE.as_bytes()), "{path:?} reads what is another's");
    assert!(files.open_socket(&pod(), path).is_err(), "{path:?}");
    let _ = files.remove(&format!("{directory}/{path}"));
    let _ = files.remove_log(&pod(), path);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn no_path_leads_out(paths in prop::collection::vec(path(), 1..8)) {
        let machine = with_others();
        let before = outside(&machine);
        for path in paths {
            ask(&machine, &path);
            prop_assert_eq!(&outside(&machine), &before, "{:?}", path);
        }
    }
}

/// The component replaces its directories by links, and links by directories, while root works below.
#[test]
fn no_race_leads_out() {
    const PATHS: [&str; 4] = ["data/theirs", "data/a/theirs", "data/a", "data/a/b/theirs"];
    let machine = with_others();
    let before = outside(&machine);
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (own, aside) = (machine.in_pod("data/a"), machine.in_pod("data/aside"));
            while !ended.load(Ordering::Relaxed) {
                // Each of these fails if root was faster.
                let _ = fs::create_dir_all(own.join("b"));
                let _ = fs::rename(&own, &aside);
                let _ = symlink(machine.path("etc"), &own);
                let _ = fs::remove_file(&own);
                let _ = fs::remove_dir_all(&aside);
            }
        });
        for path in PATHS.iter().cycle().take(4_000) {
            let (files, below) = (machine.files(), format!("{}/{path}", layout::pod_directory(&pod())));
            let _ = files.mark_data(&pod(), &below);
            let _ = files.make_directory(&MachineDirectory::of_data(below.clone(), USER));
            let _ = files.remove(&below);
        }
        ended.store(true, Ordering::Relaxed);
    });
    assert_eq!(outside(&machine), before);
}
