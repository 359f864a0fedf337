//! A machine whose disk is full.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::Command,
};

use keelway_api::{hypervisor::Applied, role::Role};
use keelway_e2e::{Plane, command::run, deadline, load::Load};
use rustix::fs::statvfs;

use crate::unseen::{hypervisor, reason};

/// The machine in the fleet.
const MACHINE: &str = "private-3";
/// More than all images and data need. A page of tmpfs uses memory only once it is written.
const SIZE: &str = "8g";

fn path(fleet: &str) -> PathBuf {
    Path::new("/var/lib/keelway-local").join(fleet).join(MACHINE).join("lib")
}

/// Mounts a file system of its own at the machine's `/var/lib`. Called before the machine is created.
pub(crate) fn of_its_own(fleet: &str) {
    let path = path(fleet);
    fs::create_dir_all(&path).unwrap();
    mount(&format!("mode=755,size={SIZE}"), &path);
}

fn mount(options: &str, path: &Path) {
    let _ = run(Command::new("mount").args(["-t", "tmpfs", "-o", options, "tmpfs"]).arg(path), &[], deadline::READ)
        .succeeded();
}

/// If the agent cannot store a config, the driver reports the reason and the remedy. The previous config stays in effect, and no data is deleted.
pub(crate) fn is_full(plane: &mut Plane<'_>, load: &Load) {
    let disk = path(plane.fleet);
    let name = format!("{}-{MACHINE}", plane.fleet);
    let member = {
        let mut members = plane.of_role(Role::Etcd).into_iter();
        members.find(|member| member.spec.hypervisor.as_str() == name).unwrap().clone()
    };
    let data = plane.directory(&member, "data/member").metadata().unwrap().ino();

    let seen = statvfs(&disk).unwrap();
    let used = (seen.f_blocks - seen.f_bfree) * seen.f_frsize;
    mount(&format!("remount,size={used}"), &disk);
    let changed = plane.changed(|spec| spec.control_plane.kube_api_server.extra_sans.push("c1.example".to_owned()));
    let finished = plane.keelway.run(&["reconcile", "--timeout", "5s"], &changed);
    assert_eq!(finished.code(), 3, "{}", finished.stderr);
    for line in [&format!("{name} waits for room on its disk: less than 128 MiB"), "cannot store the config on disk"] {
        assert!(finished.stderr.contains(line), "{line}\n{}", finished.stderr);
    }
    plane.take(finished.stdout);
    assert_eq!(reason(plane, &name, "DiskPressure"), Some("DiskFull".to_owned()));
    let status = status(plane, &name);
    assert!(status.applied < status.issued, "it has the config of before");
    load.wait_for_requests(100);
    load.lap("a disk was full").assert_good();

    mount(&format!("remount,size={SIZE}"), &disk);
    let settled = plane.keelway.run(&["reconcile"], &plane.text).succeeded();
    plane.take(settled.stdout);
    assert_eq!(reason(plane, &name, "DiskPressure"), None);
    let status = self::status(plane, &name);
    assert_eq!(status.applied, status.issued);
    assert_eq!(plane.directory(&member, "data/member").metadata().unwrap().ino(), data, "nothing was thrown away");
    load.wait_for_requests(20);
    load.lap("it had room again").assert_good();
}

/// The generations of the config that was issued last and of the config that was applied last.
struct Configs {
    issued: u64,
    applied: u64,
}

fn status(plane: &Plane<'_>, machine: &str) -> Configs {
    let status = hypervisor(&plane.documents, machine).status.as_ref().unwrap();
    let number = |config: &Option<Applied>| config.as_ref().unwrap().generation;
    Configs { issued: number(&status.issued), applied: number(&status.applied) }
}
