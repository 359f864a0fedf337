//! Which clusters are upgraded to a new release of Keelway next.

use keelway_api::{Documents, name::ClusterRef, release::KEELWAY};
use keelway_planner::Waves;

/// A cluster that runs an earlier release.
fn behind(name: &str) -> String {
    cluster(name, "version: v0.0.9", HEALTHY, "")
}

/// A cluster that was upgraded to this release.
fn upgraded(name: &str, conditions: &str) -> String {
    cluster(name, &format!("version: {KEELWAY}, previousVersion: v0.0.9"), conditions, "")
}

fn cluster(name: &str, keelway: &str, conditions: &str, spec: &str) -> String {
    let id = format!("{:0>16}", name.trim_start_matches('c'));
    format!(
        "---\napiVersion: keelway.dev/v1alpha1\nkind: Cluster\nmetadata: {{name: {name}, namespace: default}}\nspec: {{version: 1.37.0{spec}}}\n\
         status:\n  id: '{id}'\n  keelway: {{{keelway}}}\n  conditions: [{conditions}]\n"
    )
}

const HEALTHY: &str =
    "{type: Available, status: 'True', reason: Serving, message: '', lastTransitionTime: 2026-01-01T00:00:00Z}";
const ILL: &str =
    "{type: Available, status: 'False', reason: NotServing, message: '', lastTransitionTime: 2026-01-01T00:00:00Z}";
const DEGRADED: &str =
    "{type: Degraded, status: 'True', reason: NotReady, message: '', lastTransitionTime: 2026-01-01T00:00:00Z}";
const UPGRADING: &str = "{type: KeelwayUpToDate, status: 'False', reason: Upgrading, message: '', lastTransitionTime: 2026-01-01T00:00:00Z}";

/// The open clusters, with one wave of one cluster and one of a tenth of all.
fn open(clusters: &[String]) -> Vec<String> {
    let documents = Documents::read(clusters.concat().as_bytes()).unwrap();
    Waves::default().open(&documents).into_iter().map(|ClusterRef { name, .. }| name).collect()
}

/// Twenty clusters that begin with the given ones.
fn twenty(first: &[String]) -> Vec<String> {
    let rest = (10 + first.len()..30).map(|number| behind(&format!("c{number}")));
    first.iter().cloned().chain(rest).collect()
}

#[test]
fn one_cluster_is_first_then_a_tenth_then_the_rest() {
    assert_eq!(open(&twenty(&[])), ["c10"]);
    assert_eq!(open(&twenty(&[upgraded("c10", HEALTHY)])), ["c11", "c12"]);
    let third = ["c10", "c11", "c12"].map(|name| upgraded(name, HEALTHY));
    assert_eq!(open(&twenty(&third)).len(), 17);
}

#[test]
fn a_cluster_that_is_not_done_or_not_healthy_stops_the_next_wave() {
    for conditions in ["", ILL, DEGRADED, &[HEALTHY, DEGRADED].join(", "), &[HEALTHY, UPGRADING].join(", ")] {
        assert_eq!(open(&twenty(&[upgraded("c10", conditions)])), Vec::<String>::new(), "{conditions}");
        let second = [upgraded("c10", HEALTHY), upgraded("c11", HEALTHY), upgraded("c12", conditions)];
        assert_eq!(open(&twenty(&second)), Vec::<String>::new(), "{conditions}");
    }
}

#[test]
fn the_rest_of_a_wave_continues_while_its_first_clusters_are_upgraded() {
    let under_way = upgraded("c11", &[HEALTHY, UPGRADING].join(", "));
    assert_eq!(open(&twenty(&[upgraded("c10", HEALTHY), under_way])), ["c12"]);
}

#[test]
fn a_healthy_cluster_is_before_an_unhealthy_one() {
    let ill = cluster("c10", "version: v0.0.9", ILL, "");
    assert_eq!(open(&twenty(std::slice::from_ref(&ill))), ["c11"]);
    assert_eq!(open(&[ill]), ["c10"], "the release may be what it needs");
}

/// A cluster that was created with this release does not show that an upgrade works.
#[test]
fn new_and_paused_clusters_do_not_count() {
    let new = cluster("c10", &format!("version: {KEELWAY}"), ILL, "");
    let paused = cluster("c11", "version: v0.0.9", HEALTHY, ", paused: true");
    assert_eq!(open(&twenty(&[new, paused])), ["c12"]);
}

#[test]
fn a_cluster_of_this_release_is_not_open() {
    assert_eq!(open(&[cluster("c10", &format!("version: {KEELWAY}"), HEALTHY, "")]), Vec::<String>::new());
}
