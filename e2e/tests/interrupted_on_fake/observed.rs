//! An observation contains no keys, and a plan from it is the same as a plan from the machines.

use keelway_api::Documents;
use keelway_e2e::leak_patterns::LeakPatterns;

use crate::world::World;

#[tokio::test]
async fn an_observation_has_no_key_and_leads_to_the_same_plan() {
    let world = World::start().await;
    let settled = world.settle(&world.with_cluster().await).await;
    let keys = LeakPatterns::of(&Documents::read(settled.as_bytes()).unwrap());
    assert!(keys.count() > 10, "{}", keys.count());
    let deleted = world.deleted(&settled).await;
    for documents in [&settled, &deleted] {
        let seen = world.keelway(&["observe"], documents).await.done();
        assert_eq!(keys.found_in(seen.as_bytes()), 0, "keys are shown");
        let file = world.file("seen.yaml", &seen);
        let offline = world.keelway(&["plan", "--offline", file.to_str().unwrap()], documents).await.done();
        assert_eq!(offline, world.keelway(&["plan"], documents).await.done());
    }
}
