//! A join with a bad token or on an unsuitable machine reports one clear error and changes nothing.

use std::{fs, net::TcpListener, process::Output};

use k8s_openapi::{
    api::core::v1::{ConfigMap, Secret},
    jiff::SignedDuration,
};
use keelway_cri::{
    CriRuntime, Deadlines,
    fake::{Fake, serve},
    testing::cache,
};
use keelway_pki::{AuthorityHash, BootstrapToken, JoinToken};
use kube::{
    Api,
    api::{DeleteParams, ListParams},
};
use rand::{SeedableRng, rngs::ChaCha8Rng};
use tokio::net::UnixListener;

use crate::{built, endpoint::Endpoint, found, machine::join, wait, world::World};

pub(crate) async fn table(world: &World) {
    let before = found::look(&world.machine);
    let good = world.token(SignedDuration::from_hours(1)).await;
    tokens(world, &good).await;
    machines(world, &good.encode()).await;
    let output = world.machine.node(&["status"], "").await;
    assert!(String::from_utf8_lossy(&output.stderr).contains("is not a worker"));
    found::same(&before, &world.machine);
}

async fn tokens(world: &World, good: &JoinToken) {
    let text = good.encode();
    let ingress = &world.ingresses[0];
    let asked = ingress.connections();
    refused(world, &text[..text.len() - 9], 2, &["damaged"]).await;
    refused(world, "kwj1.!", 2, &["damaged"]).await;
    assert_eq!(ingress.connections(), asked, "a token that cannot be read was used");

    // The token has the hash of another authority. The join connects to the endpoint to see its authority, and sends nothing more.
    let mut wrong = good.clone();
    wrong.authorities = vec![format!("sha256:{}", "0".repeat(64)).parse::<AuthorityHash>().unwrap()];
    refused(world, &wrong.encode(), 2, &["the token was not sent", "presented no authority of the token"]).await;
    assert_eq!(ingress.connections(), asked + 1);

    // The endpoint of another cluster receives no request.
    let stranger = Endpoint::of_another().await;
    let mut astray = good.clone();
    astray.endpoints = vec![stranger.address];
    refused(world, &astray.encode(), 2, &["the token was not sent", "presented no authority of the token"]).await;
    assert_eq!((stranger.connections(), stranger.heard().as_str()), (1, ""));

    let mut silent = good.clone();
    silent.endpoints = vec!["203.0.113.1:9".parse().unwrap()];
    refused(world, &silent.encode(), 2, &["the token was not sent", "203.0.113.1:9 is unreachable"]).await;

    let expired = world.token(-SignedDuration::from_hours(1)).await;
    refused(world, &expired.encode(), 2, &["rejected the token", "expired"]).await;
    let mut another = good.clone();
    another.bootstrap = BootstrapToken::mint(&mut ChaCha8Rng::from_rng(&mut rand::rng()));
    refused(world, &another.encode(), 2, &["rejected the token"]).await;
    let revoked = world.token(SignedDuration::from_hours(1)).await;
    revoke(world, &revoked).await;
    refused(world, &revoked.encode(), 2, &["rejected the token", "was revoked"]).await;

    // The clock is read from an endpoint that shows an authority of the token. Here it is another member of the same cluster.
    let clock = Endpoint::of_cluster(&world.plane, SignedDuration::from_mins(30)).await;
    let mut late = good.clone();
    late.endpoints = vec![clock.address];
    // It closes two connections first, as an ingress without a ready API server does.
    clock.close_next(2);
    refused(world, &late.encode(), 2, &["this machine's clock is", "synchronize the clock"]).await;
    let heard = clock.heard();
    assert_eq!(clock.connections(), 3);
    assert!(heard.contains("GET /readyz") && !heard.to_lowercase().contains("authorization"), "{heard}");
}

/// Revokes a token, and waits until the API server refuses it.
async fn revoke(world: &World, token: &JoinToken) {
    let secrets: Api<Secret> = Api::namespaced(world.admin.clone(), "kube-system");
    let name = format!("bootstrap-token-{}", token.bootstrap.id());
    secrets.delete(&name, &DeleteParams::default()).await.unwrap();
    let client = world.plane.bearer(&token.bootstrap.expose()).await;
    let maps: Api<ConfigMap> = Api::namespaced(client, "kube-system");
    wait::until(
        "the token is not taken",
        async || matches!(maps.list(&ListParams::default()).await, Err(kube::Error::Api(status)) if status.code == 401),
    )
    .await;
}

async fn machines(world: &World, text: &str) {
    let machine = &world.machine;
    let output = machine.node(&["join", "-", "--containerd-socket", "/run/none.sock"], text).await;
    let words = ["no container runtime responds on /run/none.sock", "--containerd-socket", "--allow-cgroup-v1"];
    fails_with(&output, 2, if has_cgroup_v1() { &words } else { &words[..2] });

    old_containerd(world, text).await;

    // A network of the machine overlaps one of the cluster.
    machine.output_of("ip", &["addr", "add", "10.96.7.7/24", "dev", "lo"]);
    refused(world, text, 2, &["(10.96.0.0/16) overlaps this machine's network 10.96.7.7/32"]).await;
    machine.output_of("ip", &["addr", "del", "10.96.7.7/24", "dev", "lo"]);

    // The port at which the worker serves the API is in use.
    let taken = machine.within(|| TcpListener::bind("0.0.0.0:6443").unwrap());
    refused(world, text, 2, &["0.0.0.0:6443 is in use"]).await;
    drop(taken);

    fs::create_dir_all(machine.file("/var/lib/kubelet/pki")).unwrap();
    refused(world, text, 2, &["contains the state of another kubelet"]).await;
    fs::remove_dir_all(machine.file("/var/lib/kubelet")).unwrap();

    no_sandbox_image(world, text).await;
    nobody(world, text).await;
    all_at_once(world, text).await;
}

/// A containerd that is too old responds, but the join refuses it.
async fn old_containerd(world: &World, text: &str) {
    let (fake, socket) = (Fake::new(), world.machine.file("/run/old.sock"));
    fake.set_version("containerd", "1.6.20~ds1");
    let served = tokio::spawn(serve(UnixListener::bind(&socket).unwrap(), fake));
    let output = world.machine.node(&[&join()[..], &["--containerd-socket", "/run/old.sock"]].concat(), text).await;
    fails_with(
        &output,
        2,
        &["the container runtime on /run/old.sock is containerd 1.6.20~ds1", "install containerd 1.7 or newer"],
    );
    served.abort();
    fs::remove_file(&socket).unwrap();
}

/// A containerd that can neither find nor pull its image of sandboxes is refused. No port 1 of this machine serves a registry.
async fn no_sandbox_image(world: &World, text: &str) {
    const START: &str = "
mkdir /run/other
sed -e 's#/var/lib/containerd#/run/other/root#; s#/run/containerd#/run/other#; s#registry.k8s.io/pause:3.10.2#localhost:1/pause:1#' \
  /run/containerd/config.toml > /run/other/config.toml
\"$1\" --config /run/other/config.toml > /run/other/log 2>&1 < /dev/null &
echo $! > /run/other/pid";
    const END: &str = "
kill $(cat /run/other/pid)
while grep -qs . /proc/$(cat /run/other/pid)/cmdline; do sleep 0.05; done
rm -r --one-file-system /run/other";
    let machine = &world.machine;
    let containerd = cache().unwrap().join("bin/containerd").display().to_string();
    machine.output_of("sh", &["-ec", START, "sh", &containerd]);
    let other = CriRuntime::on_socket(machine.file("/run/other/containerd.sock"), Deadlines::default()).unwrap();
    wait::until("the other containerd responds", async || other.version().await.is_ok()).await;
    let socket = ["--containerd-socket", "/run/other/containerd.sock"];
    let output = machine.node(&[&join()[..], &socket].concat(), text).await;
    machine.output_of("sh", &["-ec", END]);
    fails_with(&output, 2, &["cannot pull localhost:1/pause:1", "connection refused", "pinned_images"]);
}

/// A user that is not root cannot join. The program is mounted where that user can run it.
async fn nobody(world: &World, text: &str) {
    let machine = &world.machine;
    machine.output_of("touch", &["/run/keelway"]);
    machine.output_of("mount", &["--bind", &built("keelway").display().to_string(), "/run/keelway"]);
    let nobody = ["--reuid=65534", "--regid=65534", "--clear-groups", "/run/keelway", "node"];
    let output = machine.run_with_input("setpriv", &[&nobody[..], &join()].concat(), text).await;
    fails_with(&output, 2, &["joining a cluster requires root", "sudo"]);
    machine.output_of("umount", &["/run/keelway"]);
    fs::remove_file(machine.file("/run/keelway")).unwrap();
}

/// If many things are wrong with a machine, one join reports all of them, also what the cluster does not accept.
async fn all_at_once(world: &World, text: &str) {
    /// Each becomes empty.
    const HIDDEN: &str = "/dev /etc /proc/sys/net/bridge /sys/fs/cgroup /sys/module";
    let machine = &world.machine;
    let busy = machine.within(|| ["127.0.0.1:10248", "0.0.0.0:10250"].map(|at| TcpListener::bind(at).unwrap()));
    let spoil = "
mkdir /var/lib/keelway && touch /var/lib/keelway/owner
cp /bin/sleep /run/kubelet
/run/kubelet 1000 > /dev/null 2>&1 < /dev/null &
echo $! > /run/kubelet.pid
ip addr add 10.96.7.7/24 dev lo
mount -o remount,noexec /var/lib
for directory in $1; do mount -t tmpfs tmpfs $directory; done
mknod /dev/null c 1 3
echo cpuset cpu io > /sys/fs/cgroup/cgroup.controllers";
    machine.output_of("sh", &["-ec", spoil, "sh", HIDDEN]);
    let output = machine.node(&join(), text).await;
    let help = "
for directory in $1; do umount $directory; done
mount -o remount,exec /var/lib
ip addr del 10.96.7.7/24 dev lo
kill $(cat /run/kubelet.pid)
rm -r /var/lib/keelway /run/kubelet /run/kubelet.pid";
    machine.output_of("sh", &["-ec", help, "sh", HIDDEN]);
    drop(busy);
    let words = [
        "this machine is a Keelway hypervisor",
        "a kubelet is already running",
        "port 10248 is in use",
        "port 10250 is in use",
        "the memory controller of cgroups is off",
        "programs in /var/lib/keelway-node cannot be executed",
        "programs in /var/lib/kubelet cannot be executed",
        "programs in /var/lib/cni-plugins/bin cannot be executed",
        "/dev/kmsg does not exist",
        "neither /dev/net/tun nor WireGuard",
        "bridged packets bypass the firewall",
        "/etc/resolv.conf does not exist",
        "(10.96.0.0/16) overlaps this machine's network 10.96.7.7/32",
    ];
    fails_with(&output, 2, &words);
}

fn has_cgroup_v1() -> bool {
    std::path::Path::new("/sys/fs/cgroup/memory").is_dir()
}

fn fails_with(output: &Output, code: i32, words: &[&str]) {
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{stderr}");
    for word in words {
        assert!(stderr.contains(word), "{word}: {stderr}");
    }
}

async fn refused(world: &World, token: &str, code: i32, words: &[&str]) {
    let output = world.machine.node(&join(), token).await;
    fails_with(&output, code, words);
    let stderr = String::from_utf8_lossy(&output.stderr);
    let secret = token.get(5..).filter(|secret| !secret.is_empty()).unwrap_or("none");
    assert!(!stderr.contains(secret), "{stderr}");
}
