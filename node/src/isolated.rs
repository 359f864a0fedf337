//! Runs tests in namespaces of their own, which end with the test. They need root.

pub(crate) mod network;

use std::{path::Path, process::Command, thread};

use rustix::{
    mount::{MountPropagationFlags, mount_change},
    thread::UnshareFlags,
};

/// Runs a test in a mount namespace of its own, with a directory that is a file system of its own. Without root, it does nothing.
pub(crate) fn in_own_mounts(test: impl FnOnce(&Path) + Send) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().canonicalize().unwrap();
    within(UnshareFlags::NEWNS, || {
        mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC).unwrap();
        run("mount", &["-t", "tmpfs", "tmpfs", path.to_str().unwrap()]);
        test(&path);
    });
}

/// Runs a function, and the programs that it starts, in new namespaces.
pub(crate) fn within(namespaces: UnshareFlags, function: impl FnOnce() + Send) {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    thread::scope(|scope| {
        let inside = move || {
            #[expect(
                deprecated,
                reason = "its successor is unsafe for the sake of UnshareFlags::FILES, which no test passes"
            )]
            rustix::thread::unshare(namespaces).unwrap();
            function();
        };
        scope.spawn(inside).join().unwrap();
    });
}

/// Runs a program that must succeed, and returns its standard output.
pub(crate) fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap();
    assert!(output.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}
