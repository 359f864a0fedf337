//! A management cluster is restored from an older backup: `keelway recover` updates its documents to what the machines hold.

use std::process::Command;

use rustix::process::Signal;

use crate::{
    managers::Manager,
    moves::{keelway, pivot},
    plane::path,
    world::World,
};

/// Stops the manager that leads. Returns another one that leads at the end.
pub(crate) async fn from_a_backup(world: &World, mut manager: Manager) -> Manager {
    stop(&mut manager).await;
    let (cluster, backup) = (world.as_store(), format!("dir:{}", path("backup").display()));
    let (elsewhere, newer) =
        (format!("dir:{}", path("elsewhere").display()), format!("dir:{}", path("newer").display()));
    pivot(&cluster, &elsewhere).unwrap();
    let copied = Command::new("cp").arg("-a").args([path("elsewhere"), path("backup")]).status().unwrap();
    assert!(copied.success());
    pivot(&elsewhere, &cluster).unwrap();

    let mut manager = world.manager("changes");
    manager.leads().await;
    world.scale("c0", 2);
    world.has_another_api_server().await;
    manager.settles().await;
    stop(&mut manager).await;
    let (before, documents) = (world.calls(), world.documents());

    pivot(&cluster, &newer).unwrap();
    pivot(&backup, &cluster).unwrap();
    world.scale("c0", 2);
    assert_ne!(world.documents(), documents, "the backup is older");
    let looked = keelway(&["recover", "--from", &cluster, "--namespace", "default", "--dry-run"]).unwrap();
    assert_ne!(world.documents(), documents, "a dry run writes nothing");
    let output = keelway(&["recover", "--from", &cluster, "--namespace", "default"]).unwrap();
    println!("{output}");
    assert_eq!(output, looked);
    assert_eq!(world.documents(), documents, "all that machines hold has its documents again");

    let mut manager = world.manager("recovered");
    manager.leads().await;
    manager.settles().await;
    assert_eq!(world.calls(), before, "nothing happens on any machine");
    manager
}

async fn stop(manager: &mut Manager) {
    manager.signal(Signal::TERM);
    assert!(manager.ends().await);
}
