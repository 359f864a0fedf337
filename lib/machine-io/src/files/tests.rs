//! A temporary directory is the machine's root. Only root can set owners, so these tests need root.

mod confined;

use std::{
    fs,
    os::{
        fd::AsFd,
        unix::fs::{MetadataExt, PermissionsExt, symlink},
    },
    path::PathBuf,
    sync::atomic::{AtomicBool, Ordering},
};

use keelway_api::machine::{DataState, FileState, OnChange, sha256_hex};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tempfile::TempDir;

use super::*;

const USER: u32 = 20017;

struct Machine {
    directory: TempDir,
    root: fs::File,
}

impl Machine {
    fn new() -> Self {
        let directory = tempfile::Builder::new().prefix("keelway-files-").tempdir().unwrap();
        let root = fs::File::open(directory.path()).unwrap();
        Self { directory, root }
    }

    /// A machine with the directories of a pod.
    fn with_pod() -> Self {
        let machine = Self::new();
        for directory in [
            MachineDirectory::of_cluster(&pod().cluster),
            MachineDirectory::of_files(layout::pod_directory(&pod()), USER),
            MachineDirectory::of_files(layout::file_path(&pod(), "").trim_end_matches('/').to_owned(), USER),
            MachineDirectory::of_data(format!("{}/data", layout::pod_directory(&pod())), USER),
        ] {
            machine.files().make_directory(&directory).unwrap();
        }
        machine
    }

    fn files(&self) -> MachineFiles<'_> {
        MachineFiles::new(self.root.as_fd())
    }

    fn path(&self, path: &str) -> PathBuf {
        self.directory.path().join(path.trim_start_matches('/'))
    }

    fn in_pod(&self, path: &str) -> PathBuf {
        self.path(&layout::on_machine(&pod(), path))
    }
}

/// Limits the descriptors of the process to the usual number until it is dropped.
struct FewDescriptors(Rlimit);

impl FewDescriptors {
    fn set() -> Self {
        let before = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: Some(1024), ..before }).unwrap();
        Self(before)
    }
}

impl Drop for FewDescriptors {
    fn drop(&mut self) {
        setrlimit(Resource::Nofile, self.0).unwrap();
    }
}

fn pod() -> PodName {
    PodName { cluster: "0123456789abcdef".parse().unwrap(), component: "etcd-0".parse().unwrap() }
}

fn file(path: &str, content: &[u8]) -> PodFile {
    PodFile { path: path.to_owned(), content: content.to_vec(), on_change: OnChange::Restart }
}

fn owner_and_mode(path: PathBuf) -> (u32, u32, u32) {
    let found = fs::symlink_metadata(path).unwrap();
    (found.uid(), found.gid(), found.mode() & 0o7777)
}

fn names_in(path: PathBuf) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_component_can_read_its_files_and_replace_none() {
    let machine = Machine::with_pod();
    machine.files().write_file(&pod(), USER, &file("key", b"secret")).unwrap();
    assert_eq!(owner_and_mode(machine.in_pod("files/key")), (USER, USER, 0o600));
    assert_eq!(owner_and_mode(machine.in_pod("files")), (0, USER, 0o750));
    assert_eq!(owner_and_mode(machine.in_pod("data")), (USER, USER, 0o700));
    assert_eq!(owner_and_mode(machine.in_pod("")), (0, USER, 0o750));
    assert_eq!(owner_and_mode(machine.path("/var/lib/keelway/0123456789abcdef")), (0, 0, 0o711));
}

#[test]
fn a_file_is_replaced_whole_and_never_through_a_link() {
    let machine = Machine::with_pod();
    let outside = machine.path("outside");
    fs::write(&outside, "theirs").unwrap();
    symlink(&outside, machine.in_pod("files/config")).unwrap();
    machine.files().write_file(&pod(), USER, &file("config", b"ours")).unwrap();
    assert_eq!(fs::read(&outside).unwrap(), b"theirs");
    assert_eq!(fs::read(machine.in_pod("files/config")).unwrap(), b"ours");
    assert_eq!(names_in(machine.in_pod("files")), ["config"]);
}

#[test]
fn a_reader_sees_the_old_content_or_the_new() {
    let machine = Machine::with_pod();
    let contents = [vec![b'a'; 100_000], vec![b'b'; 50_000]];
    machine.files().write_file(&pod(), USER, &file("config", &contents[0])).unwrap();
    let written = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            while !written.load(Ordering::Relaxed) {
                let seen = fs::read(machine.in_pod("files/config")).unwrap();
                assert!(contents.contains(&seen), "{} bytes", seen.len());
            }
        });
        for round in 0..100 {
            machine.files().write_file(&pod(), USER, &file("config", &contents[round % 2])).unwrap();
        }
        written.store(true, Ordering::Relaxed);
        reader.join().unwrap();
    });
}

#[test]
fn a_failed_write_leaves_nothing_behind() {
    let machine = Machine::with_pod();
    fs::create_dir(machine.in_pod("files/config")).unwrap();
    let error = machine.files().write_file(&pod(), USER, &file("config", b"x")).unwrap_err();
    assert!(matches!(error, MachineFileError::Write { .. }), "{error:?}");
    assert_eq!(names_in(machine.in_pod("files")), ["config"]);
}

#[test]
fn no_link_on_the_way_is_followed() {
    let machine = Machine::with_pod();
    let outside = machine.path("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("kept"), "").unwrap();
    symlink(&outside, machine.in_pod("files/pki")).unwrap();
    assert!(machine.files().write_file(&pod(), USER, &file("pki/key", b"x")).is_err());
    machine.files().remove(&layout::file_path(&pod(), "pki/kept")).unwrap_err();
    machine.files().remove(&layout::file_path(&pod(), "pki")).unwrap();
    assert_eq!(names_in(outside), ["kept"]);
}

#[test]
fn links_above_our_directory_stay_on_the_machine() {
    let machine = Machine::new();
    // A machine whose /var/lib is on another disk, through an absolute link.
    fs::create_dir_all(machine.path("disk/lib")).unwrap();
    fs::create_dir(machine.path("var")).unwrap();
    symlink("/disk/lib", machine.path("var/lib")).unwrap();
    machine.files().write_owner(&"00000000000000ff".parse().unwrap()).unwrap();
    assert_eq!(fs::read_to_string(machine.path("disk/lib/keelway/owner")).unwrap(), "00000000000000ff\n");
    assert_eq!(owner_and_mode(machine.path("disk/lib/keelway/owner")), (0, 0, 0o600));
}

#[test]
fn written_records_are_observed() {
    let machine = Machine::with_pod();
    let (installation, applied) =
        ("00000000000000ff".parse().unwrap(), Applied { term: 1, generation: 2, digest: "d".to_owned() });
    machine.files().write_owner(&installation).unwrap();
    machine.files().record_applied(&applied).unwrap();
    machine.files().make_directory(&MachineDirectory::of_files(layout::file_path(&pod(), "pki"), USER)).unwrap();
    machine.files().write_file(&pod(), USER, &file("pki/ca.crt", b"certificate")).unwrap();
    fs::write(machine.in_pod("data/wal"), "not looked at").unwrap();
    symlink("/etc/passwd", machine.in_pod("files/link")).unwrap();
    fs::write(machine.path("/var/lib/keelway/not-ours"), "").unwrap();

    let seen = machine.files().observe(&Digests::default()).unwrap();
    assert_eq!((seen.owner, seen.applied), (Some(installation), Some(applied)));
    let own = layout::pod_directory(&pod());
    let paths: Vec<&str> = seen.files.keys().map(String::as_str).collect();
    let expected = ["", "/data", "/files", "/files/link", "/files/pki", "/files/pki/ca.crt"];
    let expected: Vec<String> = expected.iter().map(|path| format!("{own}{path}")).collect();
    assert_eq!(paths[..2], ["", pod().cluster.as_str()]);
    assert_eq!(paths[2..], expected);
    let sha256 = Some(sha256_hex(b"certificate"));
    assert_eq!(seen.files[&expected[5]], FileState { user: USER, group: USER, mode: 0o600, sha256 });
    assert_eq!(seen.files[&expected[3]].sha256.as_deref(), Some(""));
    assert_eq!(seen.files[&expected[2]].sha256, None);
}

#[test]
fn a_file_is_read_again_if_it_may_have_changed() {
    let machine = Machine::with_pod();
    let path = layout::file_path(&pod(), "key");
    let digests = Digests::default();
    let seen = || machine.files().observe(&digests).unwrap().files.get(&path).cloned();
    let at_rest = || {
        let started = std::time::Instant::now();
        while digests.count() == 0 {
            assert!(started.elapsed().as_secs() < 10, "a file that nobody changes is never at rest");
            seen();
        }
    };
    for content in ["one", "two", "six"] {
        machine.files().write_file(&pod(), USER, &file("key", content.as_bytes())).unwrap();
        assert_eq!(seen().unwrap().sha256, Some(sha256_hex(content.as_bytes())), "another file of its name");
        at_rest();
        assert_eq!(seen().unwrap().sha256, Some(sha256_hex(content.as_bytes())));
        let content = content.to_uppercase();
        fs::write(machine.in_pod("files/key"), &content).unwrap();
        assert_eq!(seen().unwrap().sha256, Some(sha256_hex(content.as_bytes())), "the same file, as long as before");
        at_rest();
    }
    fs::set_permissions(machine.in_pod("files/key"), fs::Permissions::from_mode(0o644)).unwrap();
    assert_eq!(seen().unwrap().mode, 0o644);
    fs::remove_file(machine.in_pod("files/key")).unwrap();
    assert_eq!((seen(), digests.count()), (None, 0));
}

#[test]
fn the_state_of_data_is_its_mark_and_other_content() {
    let machine = Machine::with_pod();
    let path = format!("{}/data", layout::pod_directory(&pod()));
    let seen = || machine.files().observe(&Digests::default()).unwrap().data[&path];
    let is = |marked, used| DataState { marked, used };
    assert_eq!(seen(), is(false, false));
    fs::create_dir(machine.in_pod("data/member")).unwrap();
    assert_eq!(seen(), is(false, true));
    machine.files().mark_data(&pod(), &path).unwrap();
    machine.files().mark_data(&pod(), &path).unwrap();
    assert_eq!(seen(), is(true, true));
    fs::remove_dir(machine.in_pod("data/member")).unwrap();
    assert_eq!(seen(), is(true, false));

    // First the mark of another pod, then a mark that is no regular file.
    let mark = machine.in_pod(&format!("data/{DATA_MARK}"));
    fs::write(&mark, fs::read_to_string(&mark).unwrap().replace("etcd-0", "etcd-1")).unwrap();
    assert_eq!(seen(), is(false, false));
    fs::remove_file(&mark).unwrap();
    symlink("/etc/passwd", &mark).unwrap();
    assert_eq!(seen(), is(false, false));
}

#[test]
fn a_machine_without_anything_is_observed_as_such() {
    assert_eq!(Machine::new().files().observe(&Digests::default()).unwrap(), ObservedFiles::default());
}

#[test]
fn an_owner_that_cannot_be_read_is_an_error() {
    let machine = Machine::new();
    machine.files().write_owner(&"00000000000000ff".parse().unwrap()).unwrap();
    fs::write(machine.path("/var/lib/keelway/owner"), "nobody").unwrap();
    assert!(matches!(machine.files().observe(&Digests::default()), Err(MachineFileError::Read { .. })));
}

#[test]
fn a_tree_of_any_depth_is_removed() {
    let machine = Machine::with_pod();
    let outside = machine.path("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("kept"), "").unwrap();
    // The tree is deeper than a path can be long, and than there are descriptors.
    let _limit = FewDescriptors::set();
    let mut deep = machine.in_pod("data");
    for level in 0..3000 {
        let next = machine.in_pod("wrap");
        fs::create_dir(&next).unwrap();
        fs::rename(&deep, next.join("inner")).unwrap();
        fs::write(next.join(format!("file-{level}")), "").unwrap();
        symlink(&outside, next.join("link")).unwrap();
        deep = machine.in_pod(&format!("level-{level}"));
        fs::rename(next, &deep).unwrap();
    }
    machine.files().remove_pod(&pod()).unwrap();
    assert!(!machine.in_pod("").exists());
    assert_eq!(names_in(outside), ["kept"]);
}

#[test]
fn a_tree_is_removed_while_another_process_writes_into_it() {
    let machine = Machine::with_pod();
    let data = machine.in_pod("data");
    let removed = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0_u64.. {
                let inner = data.join(format!("{}", round % 7));
                // All of these fail once the directory is gone.
                let _ = fs::create_dir(&inner);
                let _ = fs::write(inner.join("file"), "x");
                let _ = symlink("/", data.join("link"));
                let _ = fs::rename(&inner, data.join("other"));
                if removed.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        let outcome = machine.files().remove_pod(&pod());
        removed.store(true, Ordering::Relaxed);
        outcome.unwrap();
    });
    assert!(!machine.in_pod("").exists());
}

#[test]
fn leaving_removes_only_what_keelway_created() {
    let machine = Machine::new();
    let installation = "00000000000000ff".parse().unwrap();
    fs::create_dir_all(machine.path("var/lib")).unwrap();
    machine.files().write_owner(&installation).unwrap();
    machine.files().make_log_directory(&pod()).unwrap();
    fs::write(machine.path("/var/lib/keelway/.keelway-new-0"), "left by a crash").unwrap();
    machine.files().forget_cluster(&pod().cluster).unwrap();
    machine.files().leave().unwrap();
    assert_eq!(names_in(machine.path("var/lib")), [""; 0]);
    assert!(!machine.path("var/log/keelway").exists());
    machine.files().leave().unwrap();
}

/// Each record has its own writer, and the writers do not coordinate.
#[test]
fn records_that_are_written_at_once_are_all_kept() {
    const TIMES: u64 = 200;
    let machine = Machine::new();
    machine.files().write_config(b"0").unwrap();
    let installation: InstallationId = "00000000000000ff".parse().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for term in 0..TIMES {
                machine.files().record_leader(&Leader { installation: installation.clone(), term }).unwrap();
            }
        });
        scope.spawn(|| {
            for number in 0..TIMES {
                machine.files().write_config(number.to_string().as_bytes()).unwrap();
            }
        });
    });
    assert_eq!(machine.files().read_config().unwrap(), Some((TIMES - 1).to_string().into_bytes()));
    assert_eq!(machine.files().records().unwrap().leader.map(|leader| leader.term), Some(TIMES - 1));
}

#[test]
fn leftovers_of_a_crashed_write_are_removed_by_the_next_one() {
    let machine = Machine::new();
    machine.files().write_config(b"1").unwrap();
    let of = |record: &str| machine.path(&format!("/var/lib/keelway/.keelway-new-{record}-0123456789abcdef"));
    for record in ["config", "leader"] {
        fs::write(of(record), "half").unwrap();
    }
    machine.files().write_config(b"2").unwrap();
    assert_eq!((of("config").exists(), of("leader").exists()), (false, true));
}

#[test]
fn a_foreign_directory_stays() {
    let machine = Machine::new();
    fs::create_dir_all(machine.path("/var/lib/keelway")).unwrap();
    fs::set_permissions(machine.path("/var/lib/keelway"), fs::Permissions::from_mode(0o755)).unwrap();
    machine.files().write_owner(&"00000000000000ff".parse().unwrap()).unwrap();
    machine.files().leave().unwrap();
    assert_eq!(names_in(machine.path("/var/lib/keelway")), [""; 0]);
    assert_eq!(owner_and_mode(machine.path("/var/lib/keelway")).2, 0o755);
}

#[test]
fn a_used_directory_becomes_foreign() {
    let machine = Machine::new();
    machine.files().write_owner(&"00000000000000ff".parse().unwrap()).unwrap();
    fs::write(machine.path("/var/lib/keelway/notes"), "").unwrap();
    machine.files().leave().unwrap();
    assert_eq!(names_in(machine.path("/var/lib/keelway")), ["notes"]);
    let top = &machine.files().observe(&Digests::default()).unwrap().files[""];
    assert!(!keelway_machine::layout::is_ours(top.mode), "it would be left again and again");
}

#[test]
fn empty_cgroups_are_removed_and_used_ones_stay() {
    let machine = Machine::new();
    // Two hierarchies of version 1, and a second name for one of them.
    for path in ["cpu/keelway/0123456789abcdef", "memory/keelway/0123456789abcdef/used", "pids/other"] {
        fs::create_dir_all(machine.path("sys/fs/cgroup").join(path)).unwrap();
    }
    symlink("cpu", machine.path("sys/fs/cgroup/cpuacct")).unwrap();
    machine.files().forget_cluster(&pod().cluster).unwrap();
    assert_eq!(names_in(machine.path("sys/fs/cgroup/cpu")), [""; 0]);
    assert_eq!(names_in(machine.path("sys/fs/cgroup/memory/keelway")), ["0123456789abcdef"]);
    assert_eq!(names_in(machine.path("sys/fs/cgroup/pids")), ["other"]);
}

#[test]
fn only_logs_of_ours_are_removed() {
    let machine = Machine::with_pod();
    machine.files().make_log_directory(&pod()).unwrap();
    let logs = machine.path(&layout::log_directory(&pod()));
    for name in ["etcd-0.log", "etcd-1.log"] {
        fs::write(logs.join(name), "").unwrap();
    }
    machine.files().remove_log(&pod(), "etcd-0.log").unwrap();
    machine.files().remove_log(&pod(), "etcd-7.log").unwrap();
    assert_eq!(names_in(logs.clone()), ["etcd-1.log"]);
    machine.files().remove_pod(&pod()).unwrap();
    assert!(!logs.exists());
}

#[test]
fn a_copy_of_data_is_whole_and_keeps_owners_and_modes() {
    let machine = Machine::with_pod();
    machine.files().mark_data(&pod(), &format!("{}/data", layout::pod_directory(&pod()))).unwrap();
    fs::create_dir_all(machine.in_pod("data/member/wal")).unwrap();
    fs::write(machine.in_pod("data/member/wal/0.wal"), vec![7; 70_000]).unwrap();
    fs::set_permissions(machine.in_pod("data/member/wal/0.wal"), fs::Permissions::from_mode(0o640)).unwrap();
    // An attempt that was interrupted.
    fs::create_dir(machine.in_pod(".keelway-new-data.copy-1")).unwrap();
    fs::write(machine.in_pod(".keelway-new-data.copy-1/half"), "half").unwrap();

    let path = |name: &str| format!("{}/{name}", layout::pod_directory(&pod()));
    machine.files().copy_data(&path("data"), &path("data.copy-1")).unwrap();
    assert_eq!(fs::read(machine.in_pod("data.copy-1/member/wal/0.wal")).unwrap(), vec![7; 70_000]);
    let mode = |name: &str| machine.in_pod(name).metadata().unwrap().permissions().mode() & 0o7777;
    assert_eq!((mode("data.copy-1"), mode("data.copy-1/member/wal/0.wal")), (0o700, 0o640));
    let owner = |name: &str| machine.in_pod(name).metadata().unwrap().uid();
    assert_eq!(owner("data.copy-1"), USER);
    assert!(!machine.in_pod(".keelway-new-data.copy-1").exists());
    let seen = machine.files().observe(&Digests::default()).unwrap();
    assert_eq!(seen.data[&path("data.copy-1")], DataState { marked: true, used: true });
    // A copy is never written over.
    machine.files().copy_data(&path("data"), &path("data.copy-1")).unwrap_err();
}

#[test]
fn a_second_copy_waits_for_the_first() {
    let machine = Machine::with_pod();
    fs::create_dir_all(machine.in_pod("data")).unwrap();
    fs::write(machine.in_pod("data/wal"), vec![7; 70_000]).unwrap();
    let path = |name: &str| format!("{}/{name}", layout::pod_directory(&pod()));
    // An attempt holds this lock for as long as it runs.
    let first = fs::File::open(machine.in_pod("")).unwrap();
    first.lock().unwrap();
    std::thread::scope(|scope| {
        let second = scope.spawn(|| machine.files().copy_data(&path("data"), &path("data.copy-1")));
        let inode = format!(":{} ", first.metadata().unwrap().ino());
        let waits = |lock: &str| lock.contains("-> FLOCK") && lock.contains(&inode);
        while !fs::read_to_string("/proc/locks").unwrap().lines().any(waits) {
            assert!(!second.is_finished());
            std::thread::yield_now();
        }
        fs::create_dir(machine.in_pod("data.copy-1")).unwrap();
        fs::write(machine.in_pod("data.copy-1/wal"), "first").unwrap();
        first.unlock().unwrap();
        second.join().unwrap().unwrap_err();
    });
    assert_eq!(fs::read(machine.in_pod("data.copy-1/wal")).unwrap(), b"first");
}
