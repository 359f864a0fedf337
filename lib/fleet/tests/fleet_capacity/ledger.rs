//! What is reserved is counted as it comes and goes.

use std::collections::BTreeMap;

use keelway_fleet::{CapacityLedger, ObjectDemand, PlacementLink, PodCount, PodDemand};
use proptest::prelude::*;
use serde_json::json;

/// Pods of one of three kinds, or a DaemonSet.
fn pods(kind: u8, number: u32) -> PodDemand {
    let spec = json!({ "containers": [{ "resources": { "requests": { "cpu": format!("{}", kind + 1) } } }] });
    PodDemand::read(&spec, if kind == 3 { PodCount::EachNode } else { PodCount::Number(number) })
}

fn a_step() -> impl Strategy<Value = (u8, BTreeMap<String, ObjectDemand>)> {
    let demand = proptest::collection::vec((0..4_u8, 0..5_u32), 0..3)
        .prop_map(|all| ObjectDemand::new(all.into_iter().map(|(kind, number)| pods(kind, number))));
    let cluster = prop_oneof![Just("east".to_owned()), Just("west".to_owned())];
    (0..4_u8, proptest::collection::btree_map(cluster, demand, 0..3))
}

proptest! {
    #[test]
    fn pods_on_their_way_are_those_that_are_reserved_whatever_happened_before(
        history in proptest::collection::vec(a_step(), 0..20),
    ) {
        let link = |object: u8| PlacementLink { namespace: "shop".to_owned(), name: format!("web-{object}") };
        let mut ledger = CapacityLedger::default();
        let mut reserved = BTreeMap::new();
        for (object, demands) in history {
            ledger.reserve(&link(object), &demands);
            reserved.insert(object, demands);
        }
        let mut fresh = CapacityLedger::default();
        for (object, demands) in &reserved {
            fresh.reserve(&link(*object), demands);
        }
        for cluster in ["east", "west"] {
            let number: u64 = reserved.values().filter_map(|demands| demands.get(cluster)).map(ObjectDemand::number).sum();
            prop_assert_eq!(ledger.on_their_way(cluster), fresh.on_their_way(cluster));
            prop_assert_eq!(ObjectDemand::new(ledger.on_their_way(cluster)).number(), number);
        }
    }
}
