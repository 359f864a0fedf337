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
