//! A machine with containerd and nothing else joins as a worker and leaves, with a real control plane, gateway and kubelet.

#![expect(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, reason = "a step that fails fails the test")]

#[path = "../../../cluster-controller/tests/live/controller.rs"]
#[expect(dead_code, reason = "its own test uses more")]
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
#[expect(dead_code, reason = "its own test uses more")]
mod plane;
mod refusals;
mod repairs;
mod systemd;
mod upgraded;
#[path = "../../../cluster-controller/tests/live/wait.rs"]
mod wait;
mod world;

use std::{env, path::PathBuf, process::Command, sync::OnceLock};

/// All cases use one control plane, because its start takes longer than any of them.
#[test]
fn a_machine_joins_and_leaves() {
    build();
    let _settings = machine::Settings::kept();
    host::on_own_host("a_machine_joins_and_leaves", || {
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

/// Builds the programs. They belong to other packages, so that cargo does not build them for this test. This builds them as programs of the
/// workspace, so that after `cargo build --workspace` there is nothing left to build.
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

/// Returns the path of a program of the workspace. The test itself is `deps/live-HASH` in the same directory.
fn built(name: &str) -> PathBuf {
    static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();
    DIRECTORY.get_or_init(|| env::current_exe().unwrap().ancestors().nth(2).unwrap().to_owned()).join(name)
}

/// Returns the path of the cluster-controller, which is also the gateway.
fn program() -> PathBuf {
    built("keelway-cluster-controller")
}
