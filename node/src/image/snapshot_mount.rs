//! Mounts a view of a snapshot.

use std::{
    ffi::CString,
    io,
    path::Path,
    process::{Command, Stdio},
};

use containerd_client::types::Mount;
use rustix::mount::{MountFlags, mount};

use crate::process;

/// Mounts read-only, with the options that containerd returned.
pub(super) fn mount_at(wanted: &Mount, target: &Path) -> io::Result<()> {
    if needs_program(wanted) {
        return mount_by_program(wanted, target);
    }
    let (flags, data): (Vec<&str>, Vec<&str>) =
        wanted.options.iter().map(String::as_str).partition(|option| matches!(*option, "bind" | "rbind" | "ro" | "rw"));
    let data = CString::new(data.join(","))?;
    let is_bind = flags.iter().any(|flag| flag.ends_with("bind"));
    let flags = if is_bind { MountFlags::BIND } else { MountFlags::RDONLY };
    mount(wanted.source.as_str(), target, wanted.r#type.as_str(), flags, data.as_c_str())?;
    Ok(())
}

/// Whether only the program `mount` can mount it: a file of the snapshotters `blockfile` and `erofs` needs a loop device, and `fuse-overlayfs` a
/// program that serves the files.
fn needs_program(wanted: &Mount) -> bool {
    wanted.r#type.starts_with("fuse") || wanted.options.iter().any(|option| option == "loop")
}

fn mount_by_program(wanted: &Mount, target: &Path) -> io::Result<()> {
    let kept = wanted.options.iter().map(String::as_str).filter(|option| !matches!(*option, "ro" | "rw"));
    let options = std::iter::once("ro").chain(kept).collect::<Vec<_>>().join(",");
    let mut command = Command::new("mount");
    process::clear_environment(&mut command);
    command.args(["-t", &wanted.r#type, "-o", &options, "--", &wanted.source]).arg(target);
    let output = command.stdin(Stdio::null()).output()?;
    if output.status.success() {
        return Ok(());
    }
    Err(io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::isolated::{in_own_mounts, run};

    fn view(kind: &str, source: &Path, options: &[&str]) -> Mount {
        Mount {
            r#type: kind.to_owned(),
            source: source.to_str().unwrap().to_owned(),
            options: options.iter().map(|option| (*option).to_owned()).collect(),
            ..Mount::default()
        }
    }

    /// The mounts of the snapshotters `native`, `overlayfs` and `blockfile` of containerd 2.4.2.
    #[test]
    fn views_of_each_snapshotter_are_mounted() {
        in_own_mounts(|root| {
            let [one, two, target, file] = ["one", "two", "target", "file"].map(|name| root.join(name));
            for directory in [&one, &two, &target] {
                fs::create_dir(directory).unwrap();
            }
            fs::write(one.join("program"), "program").unwrap();
            run("truncate", &["-s", "2M", file.to_str().unwrap()]);
            run("mkfs.ext4", &["-q", "-d", one.to_str().unwrap(), file.to_str().unwrap()]);
            let layers = format!("lowerdir={}:{}", two.display(), one.display());
            for view in [
                view("bind", &one, &["ro", "rbind"]),
                view("overlay", Path::new("overlay"), &[&layers]),
                view("ext4", &file, &["ro", "loop"]),
            ] {
                mount_at(&view, &target).unwrap();
                assert_eq!(fs::read_to_string(target.join("program")).unwrap(), "program", "{view:?}");
                run("umount", &[target.to_str().unwrap()]);
            }
            let error = mount_at(&view("ext4", &one.join("program"), &["loop"]), &target).unwrap_err();
            assert!(error.to_string().contains("mount"), "{error}");
        });
    }
}
