//! The life of a fleet: create, create again, break, grow, remove.

use std::{collections::BTreeMap, env, fs, os::unix::process::ExitStatusExt, process::Command};

use keelway_api::{Hypervisor, hypervisor::HypervisorRole};
use keelway_cri::{
    ContainerSpec, CriContainerState, SandboxSpec,
    testing::{ImageArchive, PROGRAM, build_program},
};
use keelway_local_hypervisor::{
    FLEET_LABEL, Fleet, Launcher, LocalHypervisorError, ZONE_LABEL, destroy_machines, fleets, list,
};
use rustix::{
    event::{PollFd, PollFlags, poll},
    process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal},
};

use crate::{
    found::{difference, facts},
    host::on_own_host,
    owned_fleet::{OwnedFleet, file_of, named, namespace, peer, runtime, socket},
};

const PAUSE: &str = "registry.k8s.io/pause:3.10.2";

#[test]
fn a_second_creation_changes_nothing() {
    on_own_host("whole_life::a_second_creation_changes_nothing", async || {
        let mut owned = OwnedFleet::new("twice");
        owned.request.zones = vec!["a".to_owned(), "b".to_owned()];
        let first = owned.create(1, 2).await;
        let peers: Vec<i32> = first.iter().map(peer).collect();
        let before = facts(owned.fleet().name());

        assert_eq!(owned.create(1, 2).await, first);
        assert_eq!(list(owned.fleet()).unwrap(), first);
        assert_eq!(fleets().unwrap(), [owned.fleet().clone()]);
        assert_eq!(difference(&before, &facts(owned.fleet().name())), Vec::<String>::new());

        let grown = owned.create(2, 3).await;
        assert_eq!(grown.len(), 5);
        for (machine, peer_before) in first.iter().zip(peers) {
            assert!(grown.contains(machine));
            assert_eq!(peer(machine), peer_before);
        }
        assert_eq!(owned.create(0, 0).await, grown);
        let zones: Vec<_> =
            grown.iter().map(|machine| &machine.metadata.labels.as_ref().unwrap()[ZONE_LABEL]).collect();
        assert_eq!(zones, ["a", "b", "a", "b", "a"]);
    });
}

#[test]
fn documents_describe_the_machines() {
    on_own_host("whole_life::documents_describe_the_machines", async || {
        let owned = OwnedFleet::new("docs");
        let machines = owned.create(1, 1).await;
        for machine in &machines {
            assert_eq!(machine.metadata.labels.as_ref().unwrap()[FLEET_LABEL], owned.fleet().name());
            assert!(socket(machine).is_absolute());
            assert!(socket(machine).as_os_str().len() < 100);
        }
        let (public, private) = (named(&machines, "public-1"), named(&machines, "private-1"));
        assert_eq!((public.spec.role, private.spec.role), (HypervisorRole::Public, HypervisorRole::Private));
        assert_eq!((public.spec.addresses.public.len(), private.spec.addresses.public.len()), (1, 0));
        assert_eq!(Fleet::default().name(), "local");
    });
}

/// A machine has its own files, network, name and cgroups. Its containers outlive its containerd.
#[test]
fn a_machine_is_isolated() {
    on_own_host("whole_life::a_machine_is_isolated", async || {
        let owned = OwnedFleet::new("own");
        let machines = owned.create(1, 1).await;
        let machine = named(&machines, "private-1");
        let kinds = ["net", "mnt", "uts", "cgroup"];
        for kind in kinds {
            let names = [peer(&machines[0]), peer(&machines[1]), 1].map(|pid| namespace(pid, kind));
            assert!(names[0] != names[1] && names[1] != names[2] && names[0] != names[2], "{names:?}");
        }
        fs::create_dir_all(file_of(machine, "/var/lib/keelway")).unwrap();
        assert!(!file_of(&machines[0], "/var/lib/keelway").exists());
        assert!(!fs::exists("/var/lib/keelway").unwrap());

        let (container, pid) = run_container(machine).await;
        let group = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
        let expected = format!("/keelway-local/{}/private-1/", owned.fleet().name());
        assert!(group.lines().all(|line| line.contains(&expected) || line.ends_with(":/")), "{group}");
        let client = runtime(machine);
        let name = client.exec_sync(&container, &words(&[PROGRAM, "print", "hello", "0"]), LIMIT).await.unwrap();
        assert_eq!(String::from_utf8_lossy(&name.stdout).trim(), "hello");

        let before = peer(machine);
        let namespaces = kinds.map(|kind| namespace(before, kind));
        kill(before);
        assert_eq!(owned.create(1, 1).await, machines);
        let after = peer(machine);
        assert_ne!(after, before);
        assert_eq!(kinds.map(|kind| namespace(after, kind)), namespaces);
        let client = runtime(machine);
        let status = client.container_status(&container).await.unwrap();
        assert_eq!(status.state, CriContainerState::Running);
        assert_eq!(client.container_pid(&container).await.unwrap(), Some(pid));
        let again = client.exec_sync(&container, &words(&[PROGRAM, "print", "again", "0"]), LIMIT).await.unwrap();
        assert_eq!(String::from_utf8_lossy(&again.stdout).trim(), "again");
    });
}

#[test]
fn destruction_leaves_the_host_as_found() {
    on_own_host("whole_life::destruction_leaves_the_host_as_found", async || {
        let owned = OwnedFleet::new("found");
        let fleet = owned.fleet().name().to_owned();
        let before = facts(&fleet);
        let machines = owned.create(1, 1).await;
        for machine in &machines {
            run_container(machine).await;
        }
        let kinds: Vec<String> = difference(&before, &facts(&fleet));
        for kind in ["mount", "link", "address", "route", "process", "cgroup", "file"] {
            assert!(kinds.iter().any(|fact| fact.starts_with(&format!("+ {kind}"))), "{kind}");
        }
        owned.destroy().await;
        assert_eq!(difference(&before, &facts(&fleet)), Vec::<String>::new());
        owned.destroy().await;
        assert_eq!(difference(&before, &facts(&fleet)), Vec::<String>::new());
    });
}

/// A fleet can be destroyed, whatever part of it was lost.
#[test]
fn an_incomplete_fleet_can_be_destroyed() {
    on_own_host("whole_life::an_incomplete_fleet_can_be_destroyed", async || {
        let owned = OwnedFleet::new("half");
        let fleet = owned.fleet().name().to_owned();
        let before = facts(&fleet);
        let losses = [
            "ip link delete $(ip -oneline link | grep -o 'kw[-_][^@: ]*' | head -1)",
            "rm /var/lib/keelway-local/*/fleet.json",
            "for record in /var/lib/keelway-local/*/fleet.json; do echo broken > $record; done",
            "umount -l /run/keelway-local/*/*/net /run/keelway-local/*/net",
            "rm -r /var/lib/keelway-local/*/private-1",
            "rm -r /run/keelway-local/*/private-1/run",
        ];
        for loss in losses {
            let machines = owned.create(1, 1).await;
            let (container_pid, containerd) = (run_container(&machines[1]).await.1, peer(&machines[1]));
            kill(containerd);
            let status = Command::new("sh").args(["-ec", loss]).status().unwrap();
            assert!(status.success(), "{loss}");
            owned.destroy().await;
            assert_eq!(difference(&before, &facts(&fleet)), Vec::<String>::new(), "{loss}, container {container_pid}");
        }
    });
}

/// A fleet can be created again from what a reboot leaves: the files below `/var/lib`.
#[test]
fn a_fleet_comes_back_after_a_reboot() {
    on_own_host("whole_life::a_fleet_comes_back_after_a_reboot", async || {
        let owned = OwnedFleet::new("boot");
        let machines = owned.create(1, 1).await;
        let marker = file_of(&machines[1], "/var/lib/keelway-marker");
        fs::write(&marker, "here").unwrap();
        for machine in &machines {
            kill(peer(machine));
        }
        let wipe = "ip link delete $(ip -oneline link | grep -o 'kw[-_][^@: ]*' | head -1)
            umount -l $(awk '$2 ~ \"^/run/keelway-local\" {print $2}' /proc/mounts)
            rm -r /run/keelway-local";
        assert!(Command::new("sh").args(["-ec", wipe]).status().unwrap().success());

        assert_eq!(owned.create(1, 1).await, machines);
        assert_eq!(fs::read_to_string(file_of(&machines[1], "/var/lib/keelway-marker")).unwrap(), "here");
    });
}

/// If a creation is killed before any of its steps, the next creation completes the fleet, and destruction removes all of it.
#[test]
fn a_killed_creation_can_be_continued() {
    const KILL_AT: &str = "KEELWAY_TEST_KILL_AT";
    const NAME: &str = "whole_life::a_killed_creation_can_be_continued";
    on_own_host(NAME, async || {
        let owned = OwnedFleet::new("killed");
        if let Ok(number) = env::var(KILL_AT) {
            return owned.create_until_killed(number.parse().unwrap()).await;
        }
        let before = facts(owned.fleet().name());
        let mut steps = 0;
        loop {
            let mut victim = Command::new(env::current_exe().unwrap());
            victim.args([NAME, "--exact"]).env(KILL_AT, steps.to_string());
            let output = victim.output().unwrap();
            if output.status.success() {
                break;
            }
            assert_eq!(output.status.signal(), Some(9), "{}", String::from_utf8_lossy(&output.stdout));
            let machines = owned.create(1, 1).await;
            for machine in &machines {
                assert!(runtime(machine).version().await.is_ok());
            }
            owned.destroy().await;
            assert_eq!(difference(&before, &facts(owned.fleet().name())), Vec::<String>::new(), "step {steps}");
            steps += 1;
        }
        assert_eq!(steps, 7);
    });
}

#[test]
fn a_failed_creation_is_undone() {
    on_own_host("whole_life::a_failed_creation_is_undone", async || {
        let mut owned = OwnedFleet::new("undo");
        let fleet = owned.fleet().name().to_owned();
        let nothing = facts(&fleet);
        let working = owned.request.launcher.clone();
        owned.request.launcher = Launcher {
            program: "/bin/sh".into(),
            arguments: words(&["-c", "echo the disk is on fire; exit 3"]).iter().map(Into::into).collect(),
        };
        let error = owned.try_create(1, 1).await.unwrap_err();
        assert!(matches!(error, LocalHypervisorError::Ended { .. }), "{error:?}");
        assert!(error.to_string().contains("the disk is on fire"), "{error}");
        assert_eq!(difference(&nothing, &facts(&fleet)), Vec::<String>::new());

        let failing = std::mem::replace(&mut owned.request.launcher, working);
        let machines = owned.create(1, 0).await;
        let one = facts(&fleet);
        owned.request.launcher = failing;
        owned.try_create(1, 1).await.unwrap_err();
        assert_eq!(difference(&one, &facts(&fleet)), Vec::<String>::new());
        assert_eq!(list(owned.fleet()).unwrap(), machines);
        assert_eq!(runtime(&machines[0]).version().await.unwrap().runtime, "containerd");
    });
}

#[test]
fn documents_name_the_machines_to_remove() {
    on_own_host("whole_life::documents_name_the_machines_to_remove", async || {
        let owned = OwnedFleet::new("some");
        let before = facts(owned.fleet().name());
        let mut machines = owned.create(1, 2).await;
        let gone = machines.remove(1);
        destroy_machines(std::slice::from_ref(&gone), &|_| {}).await.unwrap();
        assert!(!socket(&gone).exists());
        assert_eq!(list(owned.fleet()).unwrap(), machines);
        machines.iter().map(peer).for_each(drop);

        let mut foreign: Hypervisor = machines[0].clone();
        foreign.metadata.labels = Some(BTreeMap::new());
        let error = destroy_machines(&[machines[0].clone(), foreign], &|_| {}).await.unwrap_err();
        assert!(matches!(error, LocalHypervisorError::NotLocal { .. }), "{error:?}");
        assert_eq!(list(owned.fleet()).unwrap(), machines);

        machines.push(gone);
        destroy_machines(&machines, &|_| {}).await.unwrap();
        assert_eq!(difference(&before, &facts(owned.fleet().name())), Vec::<String>::new());
    });
}

const LIMIT: core::time::Duration = core::time::Duration::from_secs(10);

/// Starts a container. Returns its id and its process id.
async fn run_container(machine: &Hypervisor) -> (String, u32) {
    let client = runtime(machine);
    let directory = env::temp_dir().join(format!("keelway-local-{}-{}", crate::host::outer_pid(), peer(machine)));
    fs::create_dir_all(&directory).unwrap();
    let program = build_program(&directory).unwrap();
    let archive = directory.join("pause.tar");
    ImageArchive::new(PAUSE).file(program, PROGRAM).entrypoint([PROGRAM, "serve"]).write(&archive).unwrap();
    client.import_images(tokio::fs::File::open(&archive).await.unwrap()).await.unwrap();
    fs::remove_dir_all(&directory).unwrap();

    let sandbox = SandboxSpec { name: "pod".into(), namespace: "test".into(), uid: "1".into(), ..Default::default() };
    let sandbox_id = client.run_pod_sandbox(&sandbox).await.unwrap();
    let spec =
        ContainerSpec { name: "main".into(), image: PAUSE.into(), user: 1000, group: 1000, ..Default::default() };
    let id = client.create_container(&sandbox_id, &sandbox, &spec).await.unwrap();
    client.start_container(&id).await.unwrap();
    let pid = client.container_pid(&id).await.unwrap().unwrap();
    (id, pid)
}

/// Kills a process, and waits until it has ended.
fn kill(pid: i32) {
    let process = pidfd_open(Pid::from_raw(pid).unwrap(), PidfdFlags::empty()).unwrap();
    pidfd_send_signal(&process, Signal::KILL).unwrap();
    let limit = LIMIT.try_into().unwrap();
    assert_eq!(poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&limit)), Ok(1));
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}
