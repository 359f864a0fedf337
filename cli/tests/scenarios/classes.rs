//! How classes change the placement of components and the source of images.

use super::{Scenario, world::World, worlds};

const GOLD: &str = "\
apiVersion: keelway.dev/v1alpha1
kind: ClusterClass
metadata: {name: gold}
spec:
  hypervisorSelector: {matchExpressions: [{key: tier, operator: NotIn, values: [tin]}]}
  images: {registry: registry.example.com/mirror}
";

/// A class that excludes two private machines and a public one.
fn with_gold(world: &mut World) {
    world.read(GOLD);
    for name in ["private-1", "private-2", "public-1"] {
        let machine = world.documents.hypervisors.get_mut(&name.parse().unwrap()).unwrap();
        machine.metadata.labels.get_or_insert_default().insert("tier".to_owned(), "tin".to_owned());
    }
}

pub(super) const ALL: &[Scenario] = &[
    Scenario {
        name: "class-of-a-creation",
        question: "Where is a cluster placed, and where do its images come from, if its class selects machines?",
        from: worlds::three_unborn,
        change: |world| {
            with_gold(world);
            world.cluster("c1").spec.class_name = Some("gold".to_owned());
        },
    },
    Scenario {
        name: "class-that-selects-too-little",
        question: "What does a cluster wait for if its class selects no public machine?",
        from: worlds::one_unborn,
        change: |world| {
            with_gold_of_one(world);
            world.cluster("c1").spec.class_name = Some("gold".to_owned());
        },
    },
    Scenario {
        name: "class-of-a-settled-cluster",
        question: "What moves, and what is replaced, if a settled cluster gets a class?",
        from: worlds::three,
        change: |world| {
            with_gold(world);
            world.cluster("c1").spec.class_name = Some("gold".to_owned());
        },
    },
];

/// A class that excludes the public machine.
fn with_gold_of_one(world: &mut World) {
    world.read(GOLD);
    let machine = world.documents.hypervisors.get_mut(&"public-1".parse().unwrap()).unwrap();
    machine.metadata.labels.get_or_insert_default().insert("tier".to_owned(), "tin".to_owned());
}
