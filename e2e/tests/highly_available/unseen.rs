//! Machines that do not respond: everything else continues, and nothing is planned for what cannot be observed.

use keelway_api::{Documents, Hypervisor, condition, role::Role};
use keelway_e2e::{FinishedCommand, Plane, load::Load, process};
use rustix::process::Signal;

/// The most passes until the other cluster serves. Each pass takes a few seconds and ends unsettled.
const PASSES: usize = 12;

/// Another cluster is created on the remaining machines.
pub(crate) fn goes_on_without(plane: &mut Plane<'_>, away: &str) {
    let before = Documents::read(&plane.text).unwrap();
    let mut text = plane.keelway.run(&["cluster", "inject", "--name", "c2"], &plane.text).succeeded().stdout;
    let mut passes = 0;
    let after = loop {
        let finished = plane.keelway.run(&["reconcile", "--timeout", "10s"], &text);
        waits_for(&finished, away, &before);
        let after = Documents::read(&finished.stdout).unwrap();
        text = finished.stdout;
        let other = after.clusters.values().find(|cluster| cluster.reference().name == "c2").unwrap();
        if condition::is_true(&other.status.as_ref().unwrap().conditions, "Available") {
            break after;
        }
        passes += 1;
        assert!(passes < PASSES, "{}", finished.stderr);
    };
    let on = |documents: &Documents| -> Vec<_> {
        let of = documents.components.iter().filter(|(_, component)| component.spec.hypervisor.as_str() == away);
        of.map(|(pod, component)| (pod.clone(), component.spec.clone())).collect()
    };
    assert_eq!(on(&after), on(&before), "nothing is planned on what cannot be seen");
    let machine = |documents: &Documents| hypervisor(documents, away).status.clone().unwrap();
    let (before, now) = (machine(&before), machine(&after));
    assert_eq!((&now.issued, &now.applied), (&before.issued, &before.applied), "it is given nothing");
    assert!(!condition::is_true(&now.conditions, "Ready"));
    plane.take(text);
}

/// The report states what waits for what. The exit code is that of an unsettled pass.
fn waits_for(finished: &FinishedCommand, away: &str, documents: &Documents) {
    assert_eq!(finished.code(), 3, "{}", finished.stderr);
    assert!(finished.stderr.contains(&format!("{away} waits for ")), "{}", finished.stderr);
    assert!(finished.stderr.contains("not settled before the timeout"), "{}", finished.stderr);
    for (pod, component) in &documents.components {
        if component.spec.hypervisor.as_str() == away {
            let line = format!("c1/{} waits for its machine to respond", pod.component);
            assert!(finished.stderr.contains(&line), "{line}\n{}", finished.stderr);
        }
    }
}

/// After the first pass that observes the machine again, nothing is left to do.
pub(crate) fn is_settled_by_one_pass(plane: &mut Plane<'_>, back: &str) {
    let pass = plane.keelway.run(&["reconcile", "--once"], &plane.text).succeeded();
    plane.take(pass.stdout);
    assert_eq!(plane.keelway.run(&["plan", "--exit-code"], &plane.text).code(), 0);
    let machine = hypervisor(&plane.documents, back);
    assert!(condition::is_true(&machine.status.as_ref().unwrap().conditions, "Ready"));
}

/// If the container runtime of a machine hangs, the driver reports it with the remedy, and no component is stopped.
pub(crate) fn a_runtime_hangs(plane: &mut Plane<'_>, load: &Load) {
    let hung = plane.of_role(Role::Etcd)[0].spec.hypervisor.to_string();
    let before = plane.pids();
    process::signal(plane.machine_named(&hung).pid(), Signal::STOP);
    let finished = plane.keelway.run(&["reconcile", "--timeout", "5s"], &plane.text);
    assert_eq!(finished.code(), 3, "{}", finished.stderr);
    let line = format!("{hung} waits for its container runtime, which does not respond: restart it");
    assert!(finished.stderr.contains(&line), "{}", finished.stderr);
    plane.take(finished.stdout);
    assert_eq!(reason(plane, &hung, "Ready"), Some("RuntimeNotAnswering".to_owned()));
    load.lap("a container runtime hung").assert_good();

    plane.power("start", &hung);
    let settled = plane.keelway.run(&["reconcile"], &plane.text).succeeded();
    plane.take(settled.stdout);
    assert_eq!(reason(plane, &hung, "Ready"), Some("Answers".to_owned()));
    assert_eq!(plane.pids(), before, "nothing was restarted");
    load.lap("it was restarted").assert_good();
}

/// Returns the reason of a machine's condition.
pub(crate) fn reason(plane: &Plane<'_>, machine: &str, condition: &str) -> Option<String> {
    let conditions = &hypervisor(&plane.documents, machine).status.as_ref().unwrap().conditions;
    conditions.iter().find(|found| found.type_ == condition).map(|found| found.reason.clone())
}

/// Returns the document of a machine.
pub(crate) fn hypervisor<'a>(documents: &'a Documents, name: &str) -> &'a Hypervisor {
    documents.hypervisors.values().find(|machine| machine.metadata.name.as_deref() == Some(name)).unwrap()
}
