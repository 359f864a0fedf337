//! A driver that dies before or after each order to a store: the next one continues, and nothing is done twice.

use std::fs;

use keelway_api::role::Role;
use keelway_e2e::{Plane, interruption::cut_off, load::RecordedLoad, plane::store::PlaneStore};
use rustix::process::Signal;

use crate::passes::{assert_replaced, members, settle};

/// The orders by which a member moves to another machine, as failpoints name them.
const ORDERS: [&str; 4] = ["add etcd-", "promote etcd-", "move the leader", "remove the member"];

/// The machine of the leader is drained, and the driver is killed before and after each order.
pub(crate) fn drain_is_cut_off(plane: &mut Plane<'_>) {
    let load = RecordedLoad::start(&plane.kubectl, "cut-off");
    load.wait_for_requests(100);
    let moves = PlaneStore::of(plane).leader().clone();
    let (name, before) = (moves.spec.name().unwrap().to_string(), members(plane));
    let machine = moves.spec.hypervisor.to_string();
    let points = plane.keelway.state().with_file_name("points");
    let _ = fs::remove_file(&points);
    let mut text = plane.keelway.run(&["hypervisor", "drain", &machine], &plane.text).succeeded().stdout;
    for order in ORDERS {
        for moment in ["orders", "ordered"] {
            text = cut_off(plane.keelway, (Signal::KILL, format!("{moment} {order}").as_str()), text);
        }
    }
    settle(plane, &text);
    assert_replaced(plane, &name, &before);
    let reached = fs::read_to_string(&points).unwrap();
    for order in ORDERS {
        let times =
            |moment: &str| reached.lines().filter(|line| line.starts_with(&format!("{moment} {order}"))).count();
        assert_eq!(times("ordered"), 1, "{order} took effect once\n{reached}");
        assert!(times("orders") > 1, "{order} was sent again\n{reached}");
    }
    for machine in &plane.machines {
        assert_eq!(machine.sandboxes(), (machine.sandboxes_wanted(), 0), "no pod was made twice");
    }
    let usual = plane.keelway.run(&["hypervisor", "uncordon", &machine], &plane.text).succeeded().stdout;
    settle(plane, &usual);
    assert_eq!(plane.of_role(Role::Etcd).len(), before.len());
    load.wait_for_requests(50);
    load.end("a member moved while its driver was killed").assert_good();
}
