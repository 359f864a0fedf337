use std::os::unix::fs::symlink;

use super::*;
use crate::isolated::{in_own_mounts, run};

#[test]
fn a_directory_is_deleted_and_links_are_not_followed() {
    let directory = tempfile::tempdir().unwrap();
    let [tree, outside] = ["tree", "outside"].map(|name| directory.path().join(name));
    fs::create_dir_all(tree.join("a/b")).unwrap();
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("data"), "data").unwrap();
    fs::write(tree.join("a/file"), "").unwrap();
    symlink(&outside, tree.join("a/link")).unwrap();
    symlink(outside.join("data"), tree.join("link")).unwrap();
    delete_tree(&tree).unwrap();
    delete_tree(&tree).unwrap();
    assert!(!tree.exists());
    assert_eq!(fs::read_to_string(outside.join("data")).unwrap(), "data");
    symlink(&outside, &tree).unwrap();
    assert!(matches!(delete_tree(&tree), Err(RemovalError::File(_))));
    assert_eq!(fs::read_to_string(outside.join("data")).unwrap(), "data");
}

#[test]
fn entries_with_kept_names_stay() {
    let directory = tempfile::tempdir().unwrap();
    for name in ["kept/below", "new/kept"] {
        fs::create_dir_all(directory.path().join(name)).unwrap();
    }
    delete_content(directory.path(), &[b"kept".to_vec()].into()).unwrap();
    assert!(directory.path().join("kept/below").exists());
    assert!(!directory.path().join("new").exists());
}

/// Mounts something at `tree/volume`, and returns the error of the deletion of `tree`. `data/file` must survive.
fn refusal(root: &Path, mount: &[&str], is_file: bool) -> String {
    let [data, tree] = ["data", "tree"].map(|name| root.join(name));
    fs::create_dir_all(&data).unwrap();
    fs::create_dir_all(&tree).unwrap();
    fs::write(data.join("file"), "data").unwrap();
    let volume = tree.join("volume");
    if is_file {
        fs::write(&volume, "").unwrap();
    } else {
        fs::create_dir_all(&volume).unwrap();
    }
    let target = volume.to_str().unwrap();
    run("mount", &[mount, &[target]].concat());
    let error = delete_tree(&tree).unwrap_err();
    assert!(matches!(&error, RemovalError::Mounted { mount, directory } if *mount == volume && *directory == tree));
    run("umount", &[target]);
    assert_eq!(fs::read_to_string(data.join("file")).unwrap(), "data");
    delete_tree(&tree).unwrap();
    assert_eq!(fs::read_to_string(data.join("file")).unwrap(), "data");
    error.to_string()
}

#[test]
fn a_deletion_stops_at_any_mount_and_names_it() {
    in_own_mounts(|root| {
        let at = |name: &str| root.join(name).to_str().unwrap().to_owned();
        // Both are mounts of the same file system as the directory.
        refusal(root, &["--bind", &at("data")], false);
        refusal(root, &["--bind", &at("data/file")], true);
        let error = refusal(root, &["-t", "tmpfs", "tmpfs"], false);
        assert!(error.contains(&format!("{} is a mount point; unmount it", at("tree/volume"))), "{error}");
    });
}
