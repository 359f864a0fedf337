//! The documents of a manager are lost: the commands of docs/operations.md bring them back from a backup.

use std::{collections::BTreeMap, fs};

use age::{secrecy::ExposeSecret, x25519::Identity};
use keelway_e2e::{
    RunningComponent, TestControlPlane, deadline, host, machine::millis, manager::Manager, transcript::shell_commands,
};

const PAGE: &str = "docs/operations.md";
const SECTION: &str = ".. the documents are lost";

/// The manager continues with the documents of the backup, and nothing is restarted.
pub(crate) fn documents_are_recovered(
    manager: &mut Manager,
    plane: &TestControlPlane<'_>,
    before: &BTreeMap<String, RunningComponent>,
) {
    let directory = host::directory("lost");
    let identity = Identity::generate();
    fs::write(directory.join("backup.agekey"), identity.to_string().expose_secret()).unwrap();
    fs::write(directory.join("backup.pub"), format!("{}\n", identity.to_public())).unwrap();
    let store = manager.store().to_owned();
    let run = |command: &str| {
        let command = command.replace("/var/lib/keelway-manager", &store.display().to_string());
        println!("$ {command}");
        let ran = plane.keelway.shell(&format!("cd {} && {command}", directory.display())).succeeded();
        println!("{}", ran.stderr);
    };
    let commands = shell_commands(PAGE, SECTION);
    let (backups, others): (Vec<&String>, Vec<&String>) =
        commands.iter().partition(|command| command.starts_with("keelway backup"));
    assert_eq!(backups.len(), 1);
    run(backups[0]);
    for command in others {
        match command.as_str() {
            "systemctl stop keelway-manager" => {
                manager.kill();
                fs::remove_dir_all(&store).unwrap();
            }
            "systemctl start keelway-manager" => begins_anew(manager),
            _ => run(command),
        }
    }
    assert_eq!(plane.running(), *before, "nothing was restarted");
}

fn begins_anew(manager: &mut Manager) {
    let settled = manager.log().matches("\"settled\"").count();
    manager.start_again();
    let took = deadline::until("it is settled again", deadline::READ, || {
        manager.log().matches("\"settled\"").count() > settled
    });
    println!("{}  until the manager settled with recovered documents", millis(took));
}
