//! Worlds as the initial state of scenarios. Each settled world is computed once.

use std::{fmt::Write, sync::LazyLock};

use super::world::World;

/// Returns the documents of private and public machines in three zones.
fn machines(private: u8, public: u8) -> String {
    let mut text = String::new();
    for number in 1..=private {
        let zone = char::from(b'a' + (number - 1) % 3);
        let _ = write!(
            text,
            "---\napiVersion: keelway.dev/v1alpha1\nkind: Hypervisor\nmetadata: {{name: private-{number}, labels: \
             {{topology.kubernetes.io/zone: {zone}}}}}\nspec:\n  role: Private\n  endpoint: {{agent: {{unix: {{path: \
             /run/private-{number}.sock}}}}}}\n  addresses: {{private: [10.0.0.{number}]}}\n"
        );
    }
    for number in 1..=public {
        let zone = char::from(b'a' + (number - 1) % 3);
        let _ = write!(
            text,
            "---\napiVersion: keelway.dev/v1alpha1\nkind: Hypervisor\nmetadata: {{name: public-{number}, labels: \
             {{topology.kubernetes.io/zone: {zone}}}}}\nspec:\n  role: Public\n  endpoint: {{agent: {{unix: {{path: \
             /run/public-{number}.sock}}}}}}\n  addresses: {{private: [10.0.1.{number}], public: [203.0.113.{number}]}}\n"
        );
    }
    text
}

fn cluster(name: &str, etcd: u8, control_plane: u8, ingress: u8) -> String {
    format!(
        "---\napiVersion: keelway.dev/v1alpha1\nkind: Cluster\nmetadata: {{name: {name}, namespace: default}}\nspec:\n  \
         version: 1.37.0\n  etcd: {{replicas: {etcd}}}\n  controlPlane: {{replicas: {control_plane}}}\n  ingress: \
         {{replicas: {ingress}}}\n"
    )
}

/// A cluster with one replica of each role on one private and one public machine, before its first pass.
pub(crate) fn one_unborn() -> World {
    World::new(&(machines(1, 1) + &cluster("c1", 1, 1, 1)))
}

/// The world of [`one_unborn`], settled.
pub(crate) fn one() -> World {
    static WORLD: LazyLock<World> = LazyLock::new(|| one_unborn().settle());
    WORLD.clone()
}

/// Three etcd members, three replicas of each Kubernetes role, and two ingresses on four private and two public machines, before the first
/// pass.
pub(crate) fn three_unborn() -> World {
    World::new(&(machines(4, 2) + &cluster("c1", 3, 3, 2)))
}

/// The world of [`three_unborn`], settled.
pub(crate) fn three() -> World {
    static WORLD: LazyLock<World> = LazyLock::new(|| three_unborn().settle());
    WORLD.clone()
}

/// One ingress in front of one API server, with machines for more, settled.
pub(crate) fn small() -> World {
    static WORLD: LazyLock<World> = LazyLock::new(|| World::new(&(machines(3, 2) + &cluster("c1", 1, 1, 1))).settle());
    WORLD.clone()
}

fn fleet(name: &str, replicas: u8, ingress: u8) -> String {
    cluster(name, replicas, replicas, ingress) + "  fleet: {}\n"
}

/// A fleet with one replica of each role, before its first pass.
pub(crate) fn small_fleet_unborn() -> World {
    World::new(&(machines(1, 1) + &fleet("f1", 1, 1)))
}

/// A fleet of three replicas and two ingresses, before its first pass.
pub(crate) fn large_fleet_unborn() -> World {
    World::new(&(machines(4, 2) + &fleet("f1", 3, 2)))
}

/// The world of [`large_fleet_unborn`], settled.
pub(crate) fn large_fleet() -> World {
    static WORLD: LazyLock<World> = LazyLock::new(|| large_fleet_unborn().settle());
    WORLD.clone()
}

/// Two settled clusters with one replica of each role on the same two machines.
pub(crate) fn two_clusters() -> World {
    static WORLD: LazyLock<World> =
        LazyLock::new(|| World::new(&(machines(1, 1) + &cluster("c1", 1, 1, 1) + &cluster("c2", 1, 1, 1))).settle());
    WORLD.clone()
}

/// One settled cluster, and a second one before its first pass.
pub(crate) fn one_and_a_new_one() -> World {
    let mut world = one();
    world.read(&cluster("c2", 1, 1, 1));
    world
}

/// Adds machines to a settled world.
pub(crate) fn new_machines(mut world: World, private: u8, public: u8) -> World {
    world.read(&machines(private, public));
    world
}
