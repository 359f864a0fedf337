//! A machine with containerd and nothing else becomes a worker, and is none again: with a real control plane, gateway and kubelet.

#![expect(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, reason = "a step that fails fails the test")]

#[path = "../../../cluster-controller/tests/live/controller.rs"]
#[expect(dead_code, reason = "its own test asks for more")]
mod controller;
mod cuts;
mod endpoint;
mod found;
#[path = "../../../cluster-controller/tests/live/host.rs"]
mod host;
mod ingress;
mod life;
mod losses;
mod machine;
#[path = "../../../cluster-controller/tests/live/plane.rs"]
#[expect(dead_code, reason = "its own test asks for more")]
mod plane;
mod refusals;
mod repairs;
mod systemd;
#[path = "../../../cluster-controller/tests/live/wait.rs"]
mod wait;
mod world;

use std::{env, path::PathBuf, process::Command, sync::OnceLock};

/// One control plane for all: starting it takes longer than any of what is asked of it.
#[test]
fn a_machine_becomes_a_worker_and_is_none_again() {
    build();
    let _settings = machine::Settings::kept();
    host::on_own_host("a_machine_becomes_a_worker_and_is_none_again", || {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
            let world = world::World::start().await;
            refusals::table(&world).await;
            life::whole(&world).await;
            cuts::at_each_moment(&world).await;
            cuts::while_it_starts(&world).await;
            systemd::unit(&world).await;
        });
    });
}

/// Builds the programs, which are other packages', so that cargo does not build them for this test by itself. As programs of the whole
/// workspace, so that `cargo build --workspace` has done the same work already.
fn build() {
    let Some(cargo) = env::var_os("CARGO") else { return };
    let built = Command::new(cargo)
        .args(["build", "--quiet", "--workspace", "--bin", "keelway", "--bin", "keelway-cut"])
        .args(["--bin", "keelway-cluster-controller"])
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
        .status()
        .unwrap();
    assert!(built.success(), "the programs were not built: {built}");
}

/// A program of the workspace: beside `deps/live-HASH`.
fn built(name: &str) -> PathBuf {
    static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();
    DIRECTORY.get_or_init(|| env::current_exe().unwrap().ancestors().nth(2).unwrap().to_owned()).join(name)
}

/// The cluster-controller, which is the gateway, too.
fn program() -> PathBuf {
    built("keelway-cluster-controller")
}
