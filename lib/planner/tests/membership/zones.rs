//! Members that move between the zones of machines.

use std::collections::BTreeMap;

use keelway_api::name::HypervisorName;

use super::steps::{kinds, settle};
use crate::world::{Round, World, calm};

/// Private machines. The others have no members.
const PRIVATE: usize = 6;

/// Drains the machine of the first member of three, and then takes it into use again. Returns the machine of the new member.
fn machine_of_the_new_member(zones: &BTreeMap<HypervisorName, &str>) -> HypervisorName {
    let mut world = World::settled(3);
    for (name, zone) in zones {
        let machine = world.documents.hypervisors.get_mut(name).unwrap();
        let labels = machine.metadata.labels.get_or_insert_default();
        labels.insert("topology.kubernetes.io/zone".to_owned(), (*zone).to_owned());
    }
    settle(&mut world, &calm(3));
    assert_eq!(kinds(&world), [""; 0], "a zone alone moves no member");
    let crowded = world.members().into_values().next().unwrap();
    let drained = 1 << world.number_of(&crowded);
    settle(&mut world, &Round { drained, ..calm(3) });
    let (orders, members) = (kinds(&world), world.members());
    settle(&mut world, &calm(3));
    assert_eq!((kinds(&world), world.members()), (orders, members.clone()), "nothing moves back");
    members[&"etcd-3".parse().unwrap()].clone()
}

#[test]
fn a_member_of_a_crowded_zone_moves_to_the_empty_one() {
    let without_zones = machine_of_the_new_member(&BTreeMap::new());
    let world = World::settled(3);
    let of_members: Vec<HypervisorName> = world.members().into_values().collect();
    let private = world.machines.keys().take(PRIVATE);
    let spare: Vec<HypervisorName> =
        private.filter(|name| !of_members.contains(*name) && **name != without_zones).cloned().collect();
    let zones: BTreeMap<HypervisorName, &str> = [
        (of_members[0].clone(), "crowded"),
        (of_members[1].clone(), "crowded"),
        (without_zones, "crowded"),
        (of_members[2].clone(), "other"),
        (spare[0].clone(), "other"),
        (spare[1].clone(), "empty"),
    ]
    .into();
    assert_eq!(machine_of_the_new_member(&zones), spare[1]);
}
