//! Documents that are refused, and documents of other programs.

use std::collections::BTreeSet;

use keelway_e2e::{TestControlPlane, TestMachine};

/// Invalid documents are refused with the place of the error. The command writes its input to stdout, and no machine changes.
pub(crate) fn bad_input_does_nothing(plane: &TestControlPlane<'_>) {
    let ids = |machines: &[TestMachine]| -> Vec<BTreeSet<String>> { machines.iter().map(TestMachine::ids).collect() };
    let before = ids(&plane.machines);
    let text = String::from_utf8(plane.text.clone()).unwrap();
    for (broken, expected) in [
        (text.replace("  etcd:\n", "  etcdd:\n"), "etcdd"),
        (text.replace("    replicas: 1\n", "    replicas: one\n"), "replicas"),
        (text.replace("kind: Cluster\n", "kind: Cluster\nkind: Cluster\n"), "kind"),
        (text.replace("kind: Cluster\n", "kind: [Cluster\n"), "line"),
        (text.replace("kind: Component\n", "kind: Componant\n"), "Componant"),
    ] {
        assert_ne!(broken, text, "{expected}");
        for command in [&["reconcile"][..], &["cluster", "delete", "--name", "c1"]] {
            let finished = plane.keelway.run(command, broken.as_bytes());
            assert_eq!(finished.code(), 2, "{expected}: {}", finished.stderr);
            assert_eq!(finished.stdout, broken.as_bytes(), "{expected}");
            assert!(
                finished.stderr.contains(expected) && finished.stderr.contains("stdin:"),
                "{expected}: {}",
                finished.stderr
            );
        }
    }
    assert_eq!(ids(&plane.machines), before);
}

/// Two documents of other programs, with unusual formatting.
const MAP: &str = "# kept, as are   spaces
apiVersion: v1
kind: ConfigMap   # ours not
metadata: { name: \"x\",   labels: {}}
data:
    text:   |
      a
";
const SECRET: &str = "{\"kind\":\"Secret\",\"apiVersion\":\"v1\",  \"metadata\":{\"name\":\"not-ours\"}}\n";

/// Puts documents of other programs before, between and after those of a fleet.
pub(crate) fn among_others(world: &str) -> String {
    let mut ours = world.splitn(2, "---\n");
    format!("{MAP}---\n{}---\n{SECRET}---\n{}---\n{MAP}", ours.next().unwrap(), ours.next().unwrap())
}

/// Asserts that all of them are unchanged and in their places.
pub(crate) fn others_are_in_place(text: &str) {
    assert!(text.starts_with(&format!("{MAP}---\napiVersion: keelway.dev/v1alpha1\nkind: Hypervisor\n")), "{text}");
    assert!(
        text.contains(&format!("---\n{SECRET}---\napiVersion: keelway.dev/v1alpha1\nkind: Hypervisor\n")),
        "{text}"
    );
    let after = text.matches(&format!("---\n{MAP}")).count();
    assert!(after == 1 && text.matches(MAP).count() == 2 && text.matches(SECRET).count() == 1, "{text}");
}
