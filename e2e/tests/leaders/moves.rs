//! The documents move into a directory and back, without effects on any machine.

use std::{path::Path, process::Command};

use rustix::process::Signal;

use crate::{managers::Manager, plane::path, world::World};

/// Stops the manager that leads over the API server. Returns another one that leads at the end.
pub(crate) async fn there_and_back(world: &World, mut manager: Manager) -> Manager {
    world.allow("any");
    manager.settles().await;
    let (before, documents) = (world.calls(), world.documents());
    let (cluster, directory) = (world.as_store(), format!("dir:{}", path("moved").display()));
    let refused = pivot(&cluster, &directory).unwrap_err();
    assert!(refused.contains("a manager holds the Lease default/keelway-manager; stop it first"), "{refused}");

    manager.signal(Signal::TERM);
    assert!(manager.ends().await);
    let output = pivot(&cluster, &directory).unwrap();
    assert!(output.contains("moved: 1 ClusterClasses, 4 Hypervisors, 3 Clusters, "), "{output}");
    assert_eq!(world.documents(), "", "all of them have left");
    let mut alone = Manager::over_directory("alone", &path("moved"));
    alone.settles().await;
    let refused = pivot(&directory, &cluster).unwrap_err();
    assert!(refused.contains("is in use by process"), "{refused}");

    alone.signal(Signal::TERM);
    assert!(alone.ends().await);
    pivot(&directory, &cluster).unwrap();
    let mut manager = world.manager("back");
    manager.leads().await;
    manager.settles().await;
    assert_eq!(world.calls(), before, "nothing happens on any machine");
    assert_eq!(world.documents(), documents);
    manager
}

pub(crate) fn pivot(from: &str, to: &str) -> Result<String, String> {
    keelway(&["pivot", "--from", from, "--to", to, "--namespace", "default"])
}

/// Runs `keelway`, and returns its stderr, as an error if it failed.
pub(crate) fn keelway(arguments: &[&str]) -> Result<String, String> {
    let program = Path::new(env!("CARGO_BIN_EXE_fake-machine")).with_file_name("keelway");
    let mut command = Command::new(program);
    command.args(arguments).env_clear().env("XDG_CACHE_HOME", path("cache")).env("NO_COLOR", "1");
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    if output.status.success() { Ok(text) } else { Err(text) }
}
