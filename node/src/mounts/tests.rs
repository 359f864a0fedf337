use std::os::unix::fs::symlink;

use super::*;
use crate::{
    changes::Changes,
    files,
    isolated::{in_own_mounts, run},
    settings::Layout,
    undo::forget,
};

#[test]
fn paths_are_read_as_the_kernel_writes_them() {
    assert_eq!(unescaped(br"/a\040b\011\134\012c"), Path::new("/a b\t\\\nc"));
    assert_eq!(unescaped(br"/a\9z\77"), Path::new(r"/a\9z\77"));
    assert_eq!(unescaped(b"/\xff\\040").as_os_str().as_bytes(), b"/\xff ");
}

#[test]
fn the_root_is_mounted_and_nothing_is_below_a_new_directory() {
    assert!(below(Path::new("/")).unwrap().contains(&PathBuf::from("/")));
    let directory = tempfile::tempdir().unwrap();
    assert_eq!(below(directory.path()).unwrap(), Vec::<PathBuf>::new());
}

#[test]
fn new_entries_are_removed() {
    let directory = tempfile::tempdir().unwrap();
    let [old, new] = ["old", "new"].map(|name| directory.path().join(name));
    fs::create_dir_all(old.join("others")).unwrap();
    let directories = [(old.clone(), names(&old).unwrap())].into();
    for path in [&old, &new] {
        fs::create_dir_all(path.join("pods")).unwrap();
        fs::write(path.join("file"), "").unwrap();
    }
    let before = MountBaseline { directories, mounts: BTreeSet::new() };
    remove(&old, &before).unwrap();
    remove(&new, &before).unwrap();
    assert_eq!(names(&old).unwrap(), [b"others".to_vec()].into());
    assert!(!new.exists());
    remove(&new, &before).unwrap();
}

/// A worker in a mount namespace of its own. Its kubelet's directory is `lib/kubelet`, and `data` has data of the machine's owner.
struct MountedWorker<'a> {
    root: &'a Path,
    layout: Layout,
}

impl<'a> MountedWorker<'a> {
    /// Records the machine as a join does.
    fn join(root: &'a Path) -> Self {
        let worker = Self { root, layout: Layout::new(root.join("state")) };
        fs::create_dir_all(root.join("data/directory")).unwrap();
        fs::write(root.join("data/file"), "data").unwrap();
        fs::write(root.join("data/directory/file"), "data").unwrap();
        fs::create_dir_all(worker.layout.root()).unwrap();
        let mut changes = Changes::default();
        changes.note_tree(worker.kubelet()).unwrap();
        files::write_json(&worker.layout.changes(), &changes).unwrap();
        fs::create_dir_all(worker.kubelet().join("pods/p1/volumes")).unwrap();
        worker
    }

    fn kubelet(&self) -> PathBuf {
        self.root.join("lib/kubelet")
    }

    /// Mounts something at a new volume of a pod. With `--bind`, `source` is below `root`.
    fn mount(&self, options: &[&str], source: &str, name: &str) -> PathBuf {
        let volume = self.kubelet().join("pods/p1/volumes").join(name);
        let source = self.root.join(source);
        if source.is_file() {
            fs::write(&volume, "").unwrap();
        } else {
            fs::create_dir_all(&volume).unwrap();
        }
        let paths = [source.to_str().unwrap(), volume.to_str().unwrap()];
        run("mount", &[options, &paths].concat());
        volume
    }

    fn forget(&self) -> Result<(), String> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(forget(&self.layout)).map(drop).map_err(|error| error.to_string())
    }

    /// Forgets the worker. Its own files are gone then, and the data of the machine's owner is there.
    fn forget_well(&self) {
        self.forget().unwrap();
        self.keeps_data();
        assert!(!self.layout.root().exists());
        assert!(!self.kubelet().join("pods").exists());
    }

    fn keeps_data(&self) {
        for file in ["data/file", "data/directory/file"] {
            assert_eq!(fs::read_to_string(self.root.join(file)).unwrap(), "data", "{file}");
        }
    }
}

#[test]
fn volumes_of_pods_survive() {
    in_own_mounts(|root| {
        let worker = MountedWorker::join(root);
        // A file system of its own, such as NFS.
        let share = root.join("share");
        fs::create_dir(&share).unwrap();
        run("mount", &["-t", "tmpfs", "tmpfs", share.to_str().unwrap()]);
        fs::write(share.join("file"), "data").unwrap();
        worker.mount(&["--bind"], "data", "host-path");
        worker.mount(&["--bind"], "data/file", "sub-path-file");
        worker.mount(&["--bind"], "data/directory", "sub-path-directory");
        worker.mount(&["--bind"], "share", "nfs");
        let token = worker.mount(&["-t", "tmpfs"], "token", "token");
        fs::write(token.join("token"), "").unwrap();
        // A disk for local volumes, and a volume of it that is mounted twice at the same place.
        for _ in 0..2 {
            worker.mount(&["--bind"], "share", "local");
        }
        worker.forget_well();
        assert_eq!(fs::read_to_string(share.join("file")).unwrap(), "data");
        assert!(!worker.kubelet().exists());
        assert_eq!(below(root).unwrap(), [root.to_owned(), share], "a volume is still mounted");
    });
}

#[test]
fn a_mount_below_the_source_of_a_volume_stays() {
    in_own_mounts(|root| {
        let worker = MountedWorker::join(root);
        let disk = root.join("data/disk");
        fs::create_dir(&disk).unwrap();
        run("mount", &["--make-shared", root.to_str().unwrap()]);
        run("mount", &["-t", "tmpfs", "tmpfs", disk.to_str().unwrap()]);
        fs::write(disk.join("file"), "data").unwrap();
        worker.mount(&["--rbind"], "data", "host-path");
        worker.forget_well();
        assert_eq!(fs::read_to_string(disk.join("file")).unwrap(), "data");
    });
}

#[test]
fn volumes_below_a_linked_directory_survive() {
    in_own_mounts(|root| {
        // The directory itself is a link. It was empty before the join, except for a directory of the machine's owner with a mount.
        let target = root.join("disk/kubelet");
        let others = target.join("others");
        fs::create_dir_all(&others).unwrap();
        fs::create_dir(root.join("lib")).unwrap();
        symlink(&target, root.join("lib/kubelet")).unwrap();
        run("mount", &["-t", "tmpfs", "tmpfs", others.to_str().unwrap()]);
        let worker = MountedWorker::join(root);
        worker.mount(&["--bind"], "data", "host-path");
        worker.mount(&["--bind"], "data/file", "sub-path");
        worker.forget_well();
        assert_eq!(fs::read_link(worker.kubelet()).unwrap(), target);
        assert_eq!(below(root).unwrap(), [root.to_owned(), others]);
    });
    in_own_mounts(|root| {
        // A directory above is a link.
        fs::create_dir(root.join("disk")).unwrap();
        symlink(root.join("disk"), root.join("lib")).unwrap();
        let worker = MountedWorker::join(root);
        worker.mount(&["--bind"], "data", "host-path");
        worker.forget_well();
        assert!(!worker.kubelet().exists());
    });
}

#[test]
fn a_directory_that_became_a_link_is_refused() {
    in_own_mounts(|root| {
        let worker = MountedWorker::join(root);
        fs::remove_dir_all(worker.kubelet()).unwrap();
        symlink(root.join("data"), worker.kubelet()).unwrap();
        let error = worker.forget().unwrap_err();
        assert!(error.contains("replaced by a symbolic link to") && error.contains("data;"), "{error}");
        worker.keeps_data();
        fs::remove_file(worker.kubelet()).unwrap();
        worker.forget_well();
    });
}

#[test]
fn a_state_directory_of_its_own_file_system_is_emptied() {
    in_own_mounts(|root| {
        let state = root.join("state");
        fs::create_dir(&state).unwrap();
        run("mount", &["-t", "tmpfs", "tmpfs", state.to_str().unwrap()]);
        let worker = MountedWorker::join(root);
        fs::create_dir(state.join("volume")).unwrap();
        run("mount", &["--bind", root.join("data").to_str().unwrap(), state.join("volume").to_str().unwrap()]);
        worker.forget().unwrap();
        worker.keeps_data();
        assert_eq!(names(&state).unwrap(), BTreeSet::new());
        assert_eq!(below(&state).unwrap(), [state]);
    });
}
