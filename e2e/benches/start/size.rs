//! One round for a cluster of some size.

use std::{
    fs,
    net::SocketAddr,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use keelway_api::role::SECURE;
use keelway_e2e::{ControlPlane, World, https::Https, machine::find, process};

use crate::{
    Figures,
    memory::{anonymous, used_beside},
    plain::{Plain, Running, ready},
};

/// After this long all controllers have filled their caches.
const CALM: Duration = Duration::from_secs(10);

/// How many of everything.
#[derive(Debug)]
pub(crate) struct Size {
    pub(crate) replicas: usize,
    pub(crate) ingresses: usize,
}

impl Size {
    /// Ours and then the plain processes, on the same machines and ports.
    pub(crate) fn round(&self, world: &World, made: &[u8], directory: &Path, figures: &mut Figures) {
        let keelway = &world.keelway;
        let (replicas, ingresses) = (self.replicas.to_string(), self.ingresses.to_string());
        let inject = ["cluster", "inject", "--name", "c1"];
        let numbers =
            ["--etcd-replicas", &replicas, "--control-plane-replicas", &replicas, "--ingress-replicas", &ingresses];
        let wanted = keelway.run(&[&inject[..], &numbers].concat(), made).succeeded().stdout;
        let ran = keelway.run(&["reconcile"], &wanted).succeeded();
        figures.start[0].push(ran.took.as_secs_f64());
        let kubeconfig = keelway.run(&["cluster", "kubeconfig", "--name", "c1"], &ran.stdout).succeeded().stdout;
        fs::write(keelway.directory().join("c1.kubeconfig"), kubeconfig).unwrap();
        let plane = ControlPlane::new(keelway, ran.stdout, "c1.kubeconfig");
        let plain = Plain::of(&plane, directory);
        settled(&plane, figures);
        if self.replicas == 1 {
            calm();
            take(&plane, figures);
            figures.again[0].push(killed(&plane));
        }
        let deleted = keelway.run(&["cluster", "delete", "--name", "c1"], &plane.text).succeeded().stdout;
        let _ = keelway.run(&["reconcile"], &deleted).succeeded();

        let mut running = plain.start(&plane.machines, directory);
        figures.start[1].push(running.took.as_secs_f64());
        if self.replicas == 1 {
            calm();
            take_plain(&running, figures);
            figures.again[1].push(killed_plain(&plane, &plain, &mut running, directory));
        }
    }
}

/// A pass that does nothing, by the shell's clocks.
fn settled(plane: &ControlPlane<'_>, figures: &mut Figures) {
    let keelway = plane.keelway;
    fs::write(keelway.directory().join("c1.yaml"), &plane.text).unwrap();
    let ran = keelway.shell("TIMEFORMAT='%R %U %S'; time keelway reconcile < c1.yaml > again.yaml").succeeded();
    let last = ran.stderr.lines().last().unwrap();
    let [real, user, system] = last.split(' ').map(|word| word.parse::<f64>().unwrap() * 1e3).collect::<Vec<_>>()[..]
    else {
        unreachable!("the shell's own format");
    };
    figures.pass.push(real);
    figures.processor.push(user + system);
}

/// Nothing tells when a controller is done; both sides get the same time.
fn calm() {
    thread::park_timeout(CALM);
}

fn take(plane: &ControlPlane<'_>, figures: &mut Figures) {
    let (mut components, mut total) = (0.0, 0.0);
    for machine in &plane.machines {
        let containerd = machine.pid();
        let mut counted = Vec::new();
        for (name, running) in machine.running() {
            let pid = machine.container_pid(&running.container);
            let used = used_beside(pid);
            total += used;
            counted.push(fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap());
            if !name.starts_with("ingress") {
                components += used;
            }
        }
        let others = machine.processes().into_iter().filter(|pid| {
            let group = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
            *pid != containerd && !counted.contains(&group)
        });
        total += anonymous(&others.collect::<Vec<_>>());
    }
    figures.memory[0].push(components);
    figures.total[0].push(total);
}

fn take_plain(running: &Running, figures: &mut Figures) {
    let of = |with: fn(&str) -> bool| {
        running.groups.iter().filter(|(name, _)| with(name)).map(|(_, group)| group.used()).sum::<f64>()
    };
    figures.memory[1].push(of(|name| !name.starts_with("ingress")));
    figures.total[1].push(of(|_| true));
}

/// Where the API server itself answers, and who asks.
fn api_server(plane: &ControlPlane<'_>) -> (SocketAddr, Https) {
    let component = plane.components()["kube-apiserver-0"];
    let machine = plane.machines.iter().find(|machine| machine.name() == component.spec.hypervisor.as_str()).unwrap();
    let address = SocketAddr::new(machine.addresses()[0], component.spec.port(SECURE));
    (address, Https::new(&plane.secret("kubernetes-ca", "bundle.crt"), "kubernetes", None))
}

fn killed(plane: &ControlPlane<'_>) -> f64 {
    let (machine, seen) = find(&plane.machines, "kube-apiserver-0");
    let (address, https) = api_server(plane);
    process::kill(machine.container_pid(&seen.container));
    let started = Instant::now();
    machine.within(|| ready(&https, address));
    started.elapsed().as_secs_f64()
}

fn killed_plain(plane: &ControlPlane<'_>, plain: &Plain, running: &mut Running, directory: &Path) -> f64 {
    let (address, https) = api_server(plane);
    running.kill("kube-apiserver-0");
    let started = Instant::now();
    plain.start_again("kube-apiserver-0", &plane.machines, running, directory);
    let machine = plane.machines.iter().find(|machine| machine.addresses().contains(&address.ip())).unwrap();
    machine.within(|| ready(&https, address));
    started.elapsed().as_secs_f64()
}
