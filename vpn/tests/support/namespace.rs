//! Network namespaces, and links between them.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::process::{Process, run};

pub struct Namespace {
    name: String,
}

impl Namespace {
    pub fn new() -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("n{}", COUNT.fetch_add(1, Ordering::Relaxed));
        run("ip", &["netns", "add", &name]);
        let namespace = Self { name };
        namespace.ip(&["link", "set", "lo", "up"]);
        namespace
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn ip(&self, args: &[&str]) -> String {
        run("ip", &[&["-n", &self.name], args].concat())
    }

    /// Runs a closure in a thread of the namespace.
    pub fn run<T: Send + 'static>(&self, act: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
        let handle = File::open(Path::new("/run/netns").join(&self.name)).unwrap();
        std::thread::spawn(move || {
            move_into_link_name_space(handle.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            act()
        })
    }

    /// Runs a closure in a thread of the namespace, and waits for its result.
    pub fn within<T: Send + 'static>(&self, act: impl FnOnce() -> T + Send + 'static) -> T {
        self.run(act).join().unwrap()
    }

    pub fn spawn(&self, program: &Path, args: &[&str], environment: &[(&str, &str)]) -> Process {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name]).arg(program).args(args);
        command.envs(environment.iter().copied());
        Process::spawn(command)
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.name]).status();
    }
}

/// Creates namespaces in a row, each linked to the next. Towards the next one, number `i` has 10.231.i.1, and the next one has 10.231.i.2.
pub fn chain<const N: usize>(mtu: u32) -> [Namespace; N] {
    let namespaces: [Namespace; N] = std::array::from_fn(|_| Namespace::new());
    for (number, pair) in namespaces.windows(2).enumerate() {
        let (one, other) = (&pair[0], &pair[1]);
        let veth = format!(
            "link add right mtu {mtu} netns {} type veth peer name left mtu {mtu} netns {}",
            one.name, other.name
        );
        run("ip", &veth.split(' ').collect::<Vec<_>>());
        one.ip(&["addr", "add", &format!("10.231.{number}.1/24"), "dev", "right"]);
        other.ip(&["addr", "add", &format!("10.231.{number}.2/24"), "dev", "left"]);
        one.ip(&["addr", "add", &format!("fd31:{number}::1/64"), "dev", "right", "nodad"]);
        other.ip(&["addr", "add", &format!("fd31:{number}::2/64"), "dev", "left", "nodad"]);
        one.ip(&["link", "set", "right", "up"]);
        other.ip(&["link", "set", "left", "up"]);
    }
    namespaces
}
