//! The actions on a machine whose config cannot be read.

use keelway_api::machine::MachineState;

use super::{DesiredConfig, check, pod};
use crate::{action::Action, refusal::ConfigRefusal};

/// Restarts what has ended on a machine, from the known part of a config whose files are unknown. Writes no file, and removes no pod.
///
/// # Errors
/// Returns an error if the machine must not accept the config.
pub fn revive(known: &DesiredConfig<'_>, state: &MachineState) -> Result<Vec<Action>, ConfigRefusal> {
    check((known.config, known.fence), state)?;
    let pods = known.config.pods.iter().filter_map(|(name, pod)| Some((name, (pod, known.digests.get(name)?))));
    let steps = pods.flat_map(|(name, wanted)| {
        let steps = pod::plan_revival(name, wanted, state);
        steps.into_iter().map(|step| Action::Pod(name.clone(), step))
    });
    Ok(steps.collect())
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use keelway_api::{
        machine::{
            Container, ContainerPhase, ContainerResources, DataState, MachineConfig, Mount, OnChange, Pod, PodDigests,
            PodFile, Start,
        },
        name::PodName,
    };

    use super::*;
    use crate::converge::{applied_by, converge, model::MachineModel};

    fn etcd() -> PodName {
        PodName { cluster: "0123456789abcdef".parse().unwrap(), component: "etcd-0".parse().unwrap() }
    }

    fn config(start: Start) -> MachineConfig {
        let container = Container {
            name: "etcd".to_owned(),
            image: "example.test/etcd:1".to_owned(),
            command: vec!["etcd".to_owned()],
            mounts: vec![Mount { source: "data".to_owned(), target: "/data".to_owned(), read_only: false }],
            resources: ContainerResources {
                cpu_request_millis: 100,
                cpu_limit_millis: None,
                memory_limit_bytes: 1 << 30,
            },
            stop_seconds: 25,
            liveness: None,
        };
        let file =
            PodFile { path: "server.crt".to_owned(), content: b"certificate".to_vec(), on_change: OnChange::Restart };
        let pod = Pod {
            user: 20000,
            files: vec![file],
            data: vec!["data".to_owned()],
            containers: vec![container],
            pause_image: "example.test/pause:1".to_owned(),
            servers: None,
            start,
            hold: false,
            registries: BTreeMap::new(),
            prefetch: BTreeSet::new(),
        };
        let installation = "00000000000000ff".parse().unwrap();
        MachineConfig {
            format: keelway_api::machine::ConfigFormat::NEWEST,
            installation,
            term: 3,
            generation: 7,
            pods: [(etcd(), pod)].into(),
            others: BTreeSet::new(),
            removals: BTreeMap::new(),
        }
    }

    /// A machine on which a config was applied.
    fn settled(start: Start) -> MachineModel {
        let mut machine = MachineModel::empty();
        machine.execute(&converge(&config(start), &machine.state).unwrap());
        machine
    }

    /// Executes the revival with the known part of the config, without its files. Returns the actions.
    fn revived(config: &MachineConfig, machine: &mut MachineModel) -> Vec<String> {
        let of = |digests: PodDigests| PodDigests { files: Vec::new(), content: Vec::new(), ..digests };
        let digests = config.pod_digests().into_iter().map(|(name, digests)| (name, of(digests))).collect();
        let mut known = config.clone();
        known.pods.values_mut().for_each(|pod| pod.files.clear());
        let wanted = DesiredConfig { config: &known, fence: &applied_by(config), digests: &digests };
        let actions = revive(&wanted, &machine.state).unwrap();
        machine.execute(&actions);
        actions.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_running_container_is_left_alone() {
        assert_eq!(revived(&config(Start::Always), &mut settled(Start::Always)), [""; 0]);
    }

    #[test]
    fn a_container_that_ended_is_made_anew_in_its_sandbox() {
        let mut machine = settled(Start::Always);
        machine.state.containers[0].phase = ContainerPhase::Exited { code: 1 };
        let expected = ["remove container etcd", "create container etcd", "start container etcd"];
        assert_eq!(revived(&config(Start::Always), &mut machine), expected);
        assert_eq!(machine.state.containers[0].phase, ContainerPhase::Running);
    }

    #[test]
    fn a_sandbox_that_ended_is_made_anew_of_the_same_definition() {
        let mut machine = settled(Start::Always);
        let before = machine.state.sandboxes[0].clone();
        machine.state.containers[0].phase = ContainerPhase::Exited { code: 137 };
        machine.state.sandboxes[0].ready = false;
        revived(&config(Start::Always), &mut machine);
        let after = &machine.state.sandboxes[0];
        assert_eq!((after.ready, &after.digest, after.attempt), (true, &before.digest, before.attempt + 1));
        assert!(
            converge(&config(Start::Always), &machine.state).unwrap().is_empty(),
            "the config asks for nothing more"
        );
    }

    #[test]
    fn a_pod_of_another_definition_is_left_alone() {
        let mut machine = settled(Start::Always);
        machine.state.containers[0].phase = ContainerPhase::Exited { code: 1 };
        let mut other = config(Start::Always);
        other.pods.get_mut(&etcd()).unwrap().containers[0].command.push("--new".to_owned());
        other.generation += 1;
        assert_eq!(revived(&other, &mut machine), [""; 0]);
    }

    #[test]
    fn unstarted_and_unknown_pods_are_left_alone() {
        assert_eq!(revived(&config(Start::Always), &mut MachineModel::empty()), [""; 0]);
        let nothing = MachineConfig { pods: BTreeMap::new(), ..config(Start::Always) };
        let mut machine = settled(Start::Always);
        machine.state.applied = None;
        assert_eq!(revived(&nothing, &mut machine), [""; 0]);
    }

    #[test]
    fn a_member_whose_data_is_gone_stays_stopped() {
        let mut machine = settled(Start::Always);
        machine.state.applied = None;
        machine.state.containers[0].phase = ContainerPhase::Exited { code: 1 };
        assert_eq!(revived(&config(Start::OnUsedData), &mut machine), [""; 0]);
        let found = DataState { marked: true, used: true };
        machine.state.data.insert("0123456789abcdef/etcd-0/data".to_owned(), found);
        assert_eq!(revived(&config(Start::OnUsedData), &mut machine).len(), 3);
    }
}
