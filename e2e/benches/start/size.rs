//! One round for a cluster of one size.

use std::{
    fs,
    net::SocketAddr,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use keelway_api::role::SECURE;
use keelway_e2e::{TestControlPlane, TestFleet, https::HttpsClient, machine::find, process};

use crate::{
    Figures,
    bindings::bind,
    footprint::Side,
    plain::{Plain, Running, ready},
    started_cluster::{start_cluster, wake_cluster},
    store::Keys,
};

/// The number of passes with nothing to do in each round.
const PASSES: usize = 5;
/// After this time, all controllers have filled their caches, and agents have probed every component.
const CALM: Duration = Duration::from_secs(10);
/// How long API servers have been ready when memory is measured. kube-controller-manager looks for new kinds to watch every 30 s.
pub(crate) const AGE: Duration = Duration::from_secs(45);

/// The replicas of each role.
#[derive(Debug)]
pub(crate) struct Size {
    pub(crate) replicas: usize,
    pub(crate) ingresses: usize,
}

impl Size {
    /// Measures the cluster of Keelway, then the plain processes, on the same machines and ports.
    pub(crate) fn round(&self, world: &TestFleet, made: &[u8], directory: &Path, figures: &mut Figures) {
        let keelway = &world.keelway;
        let (replicas, ingresses) = (self.replicas.to_string(), self.ingresses.to_string());
        let inject = ["cluster", "inject", "--name", "c1"];
        let numbers =
            ["--etcd-replicas", &replicas, "--control-plane-replicas", &replicas, "--ingress-replicas", &ingresses];
        let wanted = keelway.run(&[&inject[..], &numbers].concat(), made).succeeded().stdout;
        let created = start_cluster(keelway, &wanted);
        figures.ready[0].push(created.took.as_secs_f64());
        figures.settled.push(created.finished.took.as_secs_f64());
        let kubeconfig =
            keelway.run(&["cluster", "kubeconfig", "--name", "c1"], &created.finished.stdout).succeeded().stdout;
        fs::write(keelway.directory().join("c1.kubeconfig"), kubeconfig).unwrap();
        let plane = TestControlPlane::new(keelway, created.finished.stdout, "c1.kubeconfig");
        let plain = Plain::of(&plane, directory);
        let held = if self.replicas == 1 {
            Some(take(&plane, created.ready, figures))
        } else {
            pass(&plane, figures);
            None
        };
        let woken = wake_cluster(keelway, &plane.text);
        figures.woken[0].push(woken.took.as_secs_f64());
        figures.woken[1].push(created.took.as_secs_f64());
        let deleted = keelway.run(&["cluster", "delete", "--name", "c1"], &woken.finished.stdout).succeeded().stdout;
        let _ = keelway.run(&["reconcile"], &deleted).succeeded();

        let mut running = plain.start(&plane.machines);
        figures.ready[1].push(running.took.as_secs_f64());
        if let Some(held) = held {
            take_plain(&plane, &held, &running, figures);
            figures.again[1].push(killed_plain(&plane, &plain, &mut running));
        }
    }
}

/// Runs passes over a cluster in which nothing happens.
fn pass(plane: &TestControlPlane<'_>, figures: &mut Figures) {
    fs::write(plane.keelway.directory().join("c1.yaml"), &plane.text).unwrap();
    pause(CALM);
    (0..PASSES).for_each(|_| settled(plane, figures));
}

/// Runs one pass with nothing to do, and takes its times from the shell.
fn settled(plane: &TestControlPlane<'_>, figures: &mut Figures) {
    let keelway = plane.keelway;
    let finished = keelway.shell("TIMEFORMAT='%R %U %S'; time keelway reconcile < c1.yaml > again.yaml").succeeded();
    let last = finished.stderr.lines().last().unwrap();
    let [real, user, system] = last.split(' ').map(|word| word.parse::<f64>().unwrap() * 1e3).collect::<Vec<_>>()[..]
    else {
        unreachable!("the shell's own format");
    };
    figures.pass.push(real);
    figures.processor.push(user + system);
}

/// A fixed wait, because a controller does not report when it has finished. Both sides wait for the same time.
pub(crate) fn pause(time: Duration) {
    let end = Instant::now() + time;
    while let Some(left) = end.checked_duration_since(Instant::now()) {
        thread::park_timeout(left);
    }
}

/// Measures the memory of the cluster and the restart of its API server. Returns the keys of its store.
fn take(plane: &TestControlPlane<'_>, ready: Instant, figures: &mut Figures) -> Keys {
    pause(AGE.saturating_sub(ready.elapsed()));
    let held = Keys::of(plane);
    let footprint = Side::ours(plane).footprint();
    println!("ours, in MiB: {footprint}");
    figures.memory[0].push(footprint.of_kubernetes());
    figures.total[0].push(footprint.total());
    figures.again[0].push(killed(plane));
    held
}

/// Measures the memory of plain processes that do the same work. The same bindings let their cluster-controller and gateway work. The memory of
/// these two, of haproxy and of the egress is not counted, because they are what Keelway adds.
fn take_plain(plane: &TestControlPlane<'_>, held: &Keys, running: &Running, figures: &mut Figures) {
    bind(plane);
    pause(AGE.saturating_sub(running.ready.elapsed()));
    held.awaited_in(plane);
    let footprint = Side::plain(running).footprint();
    println!("plain, {:.0} s after it was ready, in MiB: {footprint}", running.ready.elapsed().as_secs_f32());
    figures.memory[1].push(footprint.of_kubernetes());
    figures.total[1].push(footprint.of_kubernetes());
}

/// Returns the address of the API server itself, and a client for it.
fn api_server(plane: &TestControlPlane<'_>) -> (SocketAddr, HttpsClient) {
    let component = plane.components()["kube-apiserver-0"];
    let machine = plane.machines.iter().find(|machine| machine.name() == component.spec.hypervisor.as_str()).unwrap();
    let address = SocketAddr::new(machine.addresses()[0], component.spec.port(SECURE));
    (address, HttpsClient::new(&plane.secret("kubernetes-ca", "bundle.crt"), "kubernetes", None))
}

fn killed(plane: &TestControlPlane<'_>) -> f64 {
    let (machine, seen) = find(&plane.machines, "kube-apiserver-0");
    let (address, https) = api_server(plane);
    process::kill(machine.container_pid(&seen.container));
    let started = Instant::now();
    machine.within(|| ready(&https, address));
    started.elapsed().as_secs_f64()
}

fn killed_plain(plane: &TestControlPlane<'_>, plain: &Plain, running: &mut Running) -> f64 {
    let (address, https) = api_server(plane);
    running.kill("kube-apiserver-0");
    let started = Instant::now();
    plain.start_again("kube-apiserver-0", &plane.machines, running);
    let machine = plane.machines.iter().find(|machine| machine.addresses().contains(&address.ip())).unwrap();
    machine.within(|| ready(&https, address));
    started.elapsed().as_secs_f64()
}
