//! A machine with systemd: `join` writes the unit of the daemon, and `leave` removes it.

use std::{fs, os::unix::fs::MetadataExt, process::Command};

use k8s_openapi::jiff::SignedDuration;
use serde_json::Value;

use crate::{
    machine::{Machine, group, join},
    wait,
    world::World,
};

const UNIT: &str = "keelway-node.service";
/// A directory on another file system than containerd's, so that programs are copied and not linked. `%` has a meaning in units.
const STATE: [&str; 2] = ["--state-dir", "/run/keelway 100%"];
/// Starts systemd without the units of this host. It has only containerd and the targets that Keelway's unit names. Its cgroups have the test's
/// name. systemd would change the mount points of cgroups and mount further controllers. Here it does so to copies.
const SYSTEMD: &str = "
mkdir -p /run/units /run/lock /run/cgroups
mount -t tmpfs tmpfs /etc/systemd/system
for target in sysinit basic multi-user network-online shutdown; do
  printf '[Unit]\\nDefaultDependencies=no\\n' > /run/units/$target.target
done
cat > /run/units/containerd.service <<END
[Service]
Environment=PATH=$PATH
ExecStart=$2 --config /run/containerd/config.toml
Delegate=yes
KillMode=process
END
if [ ! -e /sys/fs/cgroup/cgroup.procs ]; then
  awk '$2 != 0' /proc/cgroups > /run/controllers
  mount --bind /run/controllers /proc/cgroups
  mount -t tmpfs -o mode=755 tmpfs /run/cgroups
  for hierarchy in /sys/fs/cgroup/*/; do
    [ -e ${hierarchy}cgroup.procs ] || continue
    mkdir /run/cgroups/$(basename $hierarchy)
    mount --bind $hierarchy /run/cgroups/$(basename $hierarchy)
  done
  mount --rbind /run/cgroups /sys/fs/cgroup
fi
for hierarchy in /sys/fs/cgroup /sys/fs/cgroup/systemd /sys/fs/cgroup/unified; do
  [ -e $hierarchy/cgroup.procs ] || continue
  mkdir -p $hierarchy$3-init
  echo $$ > $hierarchy$3-init/cgroup.procs
done
export container=test SYSTEMD_UNIT_PATH=/etc/systemd/system:/run/units
exec /lib/systemd/systemd --system --unit=containerd.service --log-target=console";
/// Removes the cgroups that are left.
const CLEAN: &str =
    "find /sys/fs/cgroup/*$1-init /sys/fs/cgroup$1-init -depth -type d -exec rmdir {} + 2>/dev/null || true";

/// systemd starts, restarts and stops the worker's daemon. The kubelet and the pods are not affected.
pub(crate) async fn unit(world: &World) {
    let machine = Machine::with_init(SYSTEMD).await;
    let systemctl = |words: &[&str]| machine.output_of("systemctl", words).trim().to_owned();
    assert_eq!(systemctl(&["is-active", "containerd"]), "active");
    let token = world.token(SignedDuration::from_hours(1)).await.encode();
    machine.node_well(&[&join()[..], &["--node-name", "booted"], &STATE].concat(), &token).await;
    let kubelet = machine.file(STATE[1]).join("programs/kubelet");
    assert_eq!(fs::metadata(kubelet).unwrap().nlink(), 1, "the kubelet is containerd's own file");
    assert_eq!(systemctl(&["is-active", UNIT]), "active");
    assert_eq!(systemctl(&["is-enabled", UNIT]), "enabled");
    let first = status(&machine).await;
    assert_eq!(systemctl(&["show", "--property=MainPID", "--value", UNIT]), first["pid"].to_string());

    machine.output_of("kill", &["-KILL", &first["pid"].to_string()]);
    wait::until("systemd starts it again", async || {
        machine.node(&[&["status"], &STATE[..]].concat(), "").await.status.success()
            && status(&machine).await["pid"] != first["pid"]
    })
    .await;
    let second = status(&machine).await;
    assert_eq!(first["kubelet"]["pid"], second["kubelet"]["pid"], "the kubelet was started again");

    // This is how the program is replaced by a newer one. The daemon is ready as soon as `systemctl restart` returns.
    systemctl(&["restart", UNIT]);
    let third = status(&machine).await;
    assert_ne!(second["pid"], third["pid"]);
    assert_eq!(first["kubelet"]["pid"], third["kubelet"]["pid"], "the kubelet was started again");

    machine.node_well(&[&["leave", "--drain-timeout", "60s"], &STATE[..]].concat(), "").await;
    assert!(!machine.run("systemctl", &["cat", UNIT]).status.success(), "systemd still knows the unit");
    assert!(!machine.file("/etc/systemd/system").join(UNIT).exists());
    assert!(fs::read_dir(machine.file("/etc/systemd/system/multi-user.target.wants")).is_err());
    machine.end();
    assert!(Command::new("sh").args(["-c", CLEAN, "sh", group()]).status().unwrap().success());
}

async fn status(machine: &Machine) -> Value {
    serde_json::from_str(&machine.node_well(&[&["status", "-o", "json"], &STATE[..]].concat(), "").await).unwrap()
}
