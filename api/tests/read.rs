//! What reading accepts, and what writing makes of it.

#![expect(clippy::unwrap_used, reason = "a test fails by it")]

use keelway_api::Documents;

const WORLD: &str = include_str!("good/world.yaml");

fn read(text: &str) -> Documents {
    Documents::read(text.as_bytes()).unwrap()
}

#[test]
fn a_world_is_written_in_canonical_form() {
    insta::assert_snapshot!(read(WORLD).write());
}

#[test]
fn what_was_written_reads_as_the_same() {
    let world = read(WORLD);
    let written = world.write();
    let again = read(&written);
    assert_eq!(again, world);
    assert_eq!(again.write(), written);
}

#[test]
fn keys_are_in_no_debug_output_and_no_fault() {
    let world = read(WORLD);
    let key = &world.secrets.values().next().unwrap().data.as_ref().unwrap()["tls.key"];
    let forms = ["c2VjcmV0".to_owned(), "secret\"".to_owned(), format!("{:?}", key.0)];
    let debug = format!("{world:?}");
    assert!(forms.iter().all(|form| !debug.contains(form)), "{debug}");
    for damaged in ["[c2VjcmV0", "{c2VjcmV0", "*c2VjcmV0", "!c2VjcmV0 x", "c2VjcmV0-", "'c2VjcmV0", "[c2VjcmV0]"] {
        let input = WORLD.replace("tls.key: c2VjcmV0", &format!("tls.key: {damaged}"));
        let faults = Documents::read(input.as_bytes()).unwrap_err().to_string();
        assert!(!faults.contains("c2VjcmV0"), "{faults}");
    }
}

#[test]
fn new_documents_follow_and_removed_ones_leave_their_place() {
    let mut world = read(WORLD);
    let before = world.write();
    let (name, machine) = world.hypervisors.pop_first().unwrap();
    let without = world.write();
    assert!(!without.contains("name: hv-1\n"));
    world.hypervisors.insert(name, machine.clone());
    assert_eq!(world.write(), before, "what comes back takes its old place");
    world.hypervisors.insert("hv-0".parse().unwrap(), machine);
    assert!(world.write().starts_with(&before));
}
