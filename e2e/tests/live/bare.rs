//! Machines without agents, whose runtimes are behind proxies of the user's; driven by who has no right on any of them.

use std::{
    collections::BTreeSet,
    fs,
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use keelway_api::{Documents, release};
use keelway_e2e::{
    ControlPlane, Keelway, Machine, World, found::tree, host::on_own_host, keys::Keys, machine::find, process,
    proxy::Proxies,
};

use crate::{files, look, settled, workload};

#[test]
fn runtimes_behind_proxies() {
    on_own_host("bare::runtimes_behind_proxies", scenario);
}

fn scenario() {
    let mut world = World::new("e2ebare");
    let made = world.create_two_without_agents();
    let mut proxies = Proxies::new(world.keelway.directory().join("proxies"));
    let machines = world.machines();
    for machine in &machines {
        for image in images() {
            machine.load(&image);
        }
        proxies.before(machine);
    }
    let text = proxies.documents(Documents::read(&made).unwrap());
    let public = machines.iter().find(|machine| machine.is_public()).unwrap();
    let driver = world.keelway.of_nobody_within(&public.network());

    // Looking leaves nothing behind.
    let planned = driver.run(&["plan"], &text).succeeded();
    assert!(planned.stderr.is_empty(), "{}", planned.stderr);
    machines.iter().for_each(holds_nothing);

    let injected = driver.run(&["cluster", "inject", "--name", "c1"], &text).succeeded().stdout;
    let (text, handed) = watched(|| driver.run(&["reconcile"], &injected).succeeded().stdout);
    let kubeconfig = driver.run(&["cluster", "kubeconfig", "--name", "c1"], &text).succeeded().stdout;
    fs::write(driver.directory().join("c1.kubeconfig"), kubeconfig).unwrap();
    let plane = ControlPlane::new(&driver, text, "c1.kubeconfig");

    settled::a_second_pass_does_nothing(&plane);
    workload::write(&plane);
    workload::secret_is_there(&plane);
    look::logs(&plane);
    commands(&plane);
    files::files_are_private(&plane);
    files::keys_are_nowhere_else(&plane);
    keys_are_not_in(&plane, &handed);
    comes_back_with_the_next_pass(&plane, "kube-scheduler-0");
    let log = look::follow(&plane);
    ends(&driver, &plane);
    look::ended(&driver, log);
    machines.iter().for_each(holds_nothing);
}

/// What a registry would have.
fn images() -> Vec<String> {
    let newest = release::newest();
    let kubernetes = ["kube-apiserver", "kube-controller-manager", "kube-scheduler"];
    let own = [newest.pause_image(None), newest.etcd_image(None), release::haproxy_image(None)];
    let keelway = [release::cluster_controller_image(None), release::helper_image(None)];
    let kubernetes = kubernetes.map(|name| newest.kubernetes_image(name, None));
    own.into_iter().chain(keelway).chain(kubernetes).collect()
}

/// Nothing of Keelway's is on a machine.
fn holds_nothing(machine: &Machine) {
    assert_eq!(machine.ids(), BTreeSet::new(), "{}", machine.name());
    for path in ["/var/lib/keelway", "/var/log/keelway"] {
        assert!(!machine.path(path).exists(), "{path} of {}", machine.name());
    }
}

fn ends(driver: &Keelway, plane: &ControlPlane<'_>) {
    let deleted = driver.run(&["cluster", "delete", "--name", "c1"], &plane.text).succeeded().stdout;
    let empty = driver.run(&["reconcile"], &deleted).succeeded().stdout;
    assert!(Documents::read(&empty).unwrap().clusters.is_empty());
}

/// A command ends as it would on the machine; streams are the machine's own.
fn commands(plane: &ControlPlane<'_>) {
    let ran = plane.keelway.run(&["exec", "c1/etcd-0", "--", "etcdctl", "version"], &plane.text).succeeded();
    assert!(ran.text().starts_with("etcdctl version: "), "{}", ran.text());
    let ran = plane.keelway.run(&["exec", "c1/etcd-0", "--", "etcdutl", "no-such-command"], &plane.text);
    assert!(ran.code() == 1 && ran.stderr.contains("no-such-command"), "{}: {}", ran.code(), ran.stderr);
    let ran = plane.keelway.run(&["exec", "c1/etcd-0", "--", "no-such-program"], &plane.text);
    assert!(ran.code() == 1 && ran.stderr.contains("no-such-program"), "{}: {}", ran.code(), ran.stderr);
    fs::write(plane.keelway.directory().join("bare.yaml"), &plane.text).unwrap();
    let reads = ["exec", "c1/etcd-0", "-i", "-f", "bare.yaml", "--", "etcdctl", "version"];
    let ran = plane.keelway.run(&reads, b"nobody reads this");
    assert!(ran.code() == 1 && ran.stderr.contains("keelway-hypervisor-agent"), "{}", ran.stderr);
}

/// Not by itself: nobody is there to see it.
fn comes_back_with_the_next_pass(plane: &ControlPlane<'_>, component: &str) {
    let (machine, before) = find(&plane.machines, component);
    process::kill(machine.container_pid(&before.container));
    let again = plane.keelway.run(&["reconcile"], &plane.text).succeeded();
    assert!(Documents::read(&again.stdout).is_ok());
    assert_ne!(plane.running()[component].container, before.container);
}

/// Runs something while the arguments of every process are read, and returns those that a helper was handed.
fn watched<T>(run: impl FnOnce() -> T) -> (T, BTreeSet<Vec<u8>>) {
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        let watch = scope.spawn(|| {
            let mut seen = BTreeSet::new();
            while !ended.load(Ordering::Relaxed) {
                let lines = process::all().into_iter().filter_map(|pid| process::file(pid, "cmdline").ok());
                seen.extend(lines.filter(|line| line.starts_with(b"/keelway-helper\0do\0")));
            }
            seen
        });
        let done = run();
        ended.store(true, Ordering::Relaxed);
        (done, watch.join().unwrap())
    })
}

/// Nor in what a helper is handed, nor in what a runtime keeps.
fn keys_are_not_in(plane: &ControlPlane<'_>, handed: &BTreeSet<Vec<u8>>) {
    let keys = Keys::of(&plane.documents);
    assert!(handed.iter().any(|line| line.windows(5).any(|word| word == b"file ")), "a file was handed over");
    for line in handed {
        assert_eq!(keys.found_in(line), 0, "a key is in arguments");
    }
    for machine in &plane.machines {
        assert_eq!(keys.found_in(machine.inspect().as_bytes()), 0, "{} tells a key", machine.name());
        let kept = tree(&machine.path("/var/lib/containerd")).into_iter().chain(tree(&machine.path("/run/containerd")));
        let is_its_own = |path: &Path| {
            let name = path.display().to_string();
            // Images, and the file systems of containers: of those that write into them, none has keys.
            !name.contains("containerd.content.")
                && !name.contains("containerd.snapshotter.")
                && !name.contains("/rootfs")
        };
        let kept: Vec<_> = kept.filter(|path| is_its_own(path) && path.is_file()).collect();
        assert!(kept.iter().any(|path| path.ends_with("meta.db")), "{kept:?}");
        for path in kept {
            let bytes = fs::read(&path).unwrap_or_default();
            assert_eq!(keys.found_in(&bytes), 0, "a key is in {}", path.display());
        }
    }
}
