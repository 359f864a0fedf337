//! One round for a cluster of some size.

use std::{
    fs,
    net::SocketAddr,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use keelway_api::role::SECURE;
use keelway_e2e::{
    ControlPlane, World,
    https::Https,
    machine::{Running as Container, find},
    process,
};

use crate::{
    Figures,
    born::born,
    memory::{anonymous, used_beside},
    plain::{Plain, Running, ready},
};

/// Passes with nothing to do in each round.
const PASSES: usize = 5;
/// After this long all controllers have filled their caches, and agents have asked every component.
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
        let (ran, took) = born(keelway, &wanted);
        figures.ready[0].push(took);
        figures.settled.push(ran.took.as_secs_f64());
        let kubeconfig = keelway.run(&["cluster", "kubeconfig", "--name", "c1"], &ran.stdout).succeeded().stdout;
        fs::write(keelway.directory().join("c1.kubeconfig"), kubeconfig).unwrap();
        let plane = ControlPlane::new(keelway, ran.stdout, "c1.kubeconfig");
        let plain = Plain::of(&plane, directory);
        fs::write(keelway.directory().join("c1.yaml"), &plane.text).unwrap();
        pause(CALM);
        (0..PASSES).for_each(|_| settled(&plane, figures));
        if self.replicas == 1 {
            take(&plane, figures);
            figures.again[0].push(killed(&plane));
        }
        let deleted = keelway.run(&["cluster", "delete", "--name", "c1"], &plane.text).succeeded().stdout;
        let _ = keelway.run(&["reconcile"], &deleted).succeeded();

        let mut running = plain.start(&plane.machines);
        figures.ready[1].push(running.took.as_secs_f64());
        if self.replicas == 1 {
            pause(CALM);
            take_plain(&running, figures);
            figures.again[1].push(killed_plain(&plane, &plain, &mut running));
        }
    }
}

/// A pass that does nothing, by the shell's clocks.
fn settled(plane: &ControlPlane<'_>, figures: &mut Figures) {
    let keelway = plane.keelway;
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
pub(crate) fn pause(time: Duration) {
    let end = Instant::now() + time;
    while let Some(left) = end.checked_duration_since(Instant::now()) {
        thread::park_timeout(left);
    }
}

/// Whether this is etcd or one of Kubernetes' own.
fn is_of_kubernetes(component: &str) -> bool {
    component.starts_with("etcd") || component.starts_with("kube-")
}

/// A machine's runtime and agent are there for all clusters, and count for none.
fn take(plane: &ControlPlane<'_>, figures: &mut Figures) {
    let (mut components, mut total) = (0.0, 0.0);
    for machine in &plane.machines {
        let of_machine = [machine.pid(), machine.agent_pid()];
        let mut counted = Vec::new();
        let mut count = |running: &Container| {
            let pid = machine.container_pid(&running.container);
            let used = used_beside(pid);
            total += used;
            counted.push(fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap());
            used
        };
        for (name, running) in machine.running() {
            let used = count(&running);
            if is_of_kubernetes(&name) {
                components += used;
            }
        }
        for running in machine.running_beside().values() {
            count(running);
        }
        let others = machine.processes().into_iter().filter(|pid| {
            let group = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
            !of_machine.contains(pid) && !counted.contains(&group)
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
    figures.memory[1].push(of(is_of_kubernetes));
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

fn killed_plain(plane: &ControlPlane<'_>, plain: &Plain, running: &mut Running) -> f64 {
    let (address, https) = api_server(plane);
    running.kill("kube-apiserver-0");
    let started = Instant::now();
    plain.start_again("kube-apiserver-0", &plane.machines, running);
    let machine = plane.machines.iter().find(|machine| machine.addresses().contains(&address.ip())).unwrap();
    machine.within(|| ready(&https, address));
    started.elapsed().as_secs_f64()
}
