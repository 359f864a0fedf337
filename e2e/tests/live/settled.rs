//! A settled installation, and how its status is shown.

use keelway_e2e::{TestControlPlane, deadline};

const NOTHING: &str = "Nothing to do: the machines match the documents.\n";

/// A second pass plans nothing, writes the same documents, and restarts nothing. Controllers that could not renew their Lease for a while exit, and are
/// ready again first.
pub(crate) fn a_second_pass_does_nothing(plane: &TestControlPlane<'_>) {
    let has_nothing_to_do = || {
        let planned = plane.keelway.run(&["plan", "--exit-code"], &plane.text);
        assert_eq!(planned.text() == NOTHING, planned.code() == 0, "{}", planned.text());
        planned.code() == 0
    };
    deadline::until("every component is ready", deadline::KUBERNETES, has_nothing_to_do);
    let before: Vec<_> = plane.machines.iter().map(|machine| (machine.ids(), machine.running())).collect();
    let again = plane.keelway.run(&["reconcile"], &plane.text).succeeded();
    assert!(again.stdout == plane.text, "documents differ:\n{}", again.text());
    assert_eq!(again.stderr, "");
    let kept = plane.keelway.state().read_dir().into_iter().flatten().map(|entry| entry.unwrap().file_name());
    let left: Vec<_> = kept.filter(|file| !file.to_str().unwrap().starts_with("documents-")).collect();
    assert!(left.is_empty(), "{left:?}");
    let after: Vec<_> = plane.machines.iter().map(|machine| (machine.ids(), machine.running())).collect();
    assert_eq!(after, before);
}

/// The exact table that users see. `FLEET` has as many letters as the name of the fleet.
const TABLES: &str = "\
CLUSTER   AVAILABLE   VERSION   ETCD   API   ENDPOINT                    AGE
c1        True        1.37.0    1/1    1/1   https://198.18.0.11:20000   AGE

COMPONENT                      READY   VERSION   HYPERVISOR
c1/cluster-controller-0        True    1.37.0    e2eone-FLEET0-private-1
c1/etcd-0                      True    1.37.0    e2eone-FLEET0-private-1
c1/gateway-0                   True    1.37.0    e2eone-FLEET0-public-1
c1/ingress-0                   True    1.37.0    e2eone-FLEET0-public-1
c1/kube-apiserver-0            True    1.37.0    e2eone-FLEET0-private-1
c1/kube-controller-manager-0   True    1.37.0    e2eone-FLEET0-private-1
c1/kube-scheduler-0            True    1.37.0    e2eone-FLEET0-private-1

HYPERVISOR                ROLE      READY   COMPONENTS
e2eone-FLEET0-private-1   Private   True    5
e2eone-FLEET0-public-1    Public    True    2
";

/// The status is shown as tables for users, and as JSON and YAML for programs.
pub(crate) fn status(plane: &TestControlPlane<'_>, fleet: &str) {
    let status = |format: &str| plane.keelway.run(&["status", "-o", format], &plane.text).succeeded();
    let table = status("table").text().replace(fleet, "e2eone-FLEET0");
    let age = table.lines().nth(1).unwrap().rsplit(' ').next().unwrap();
    assert!(age.ends_with(|unit| "smh".contains(unit)), "{age}");
    assert_eq!(table.replacen(age, "AGE", 1), TABLES);

    let wide = status("wide");
    assert!(wide.text().contains("PLACEMENT") && wide.text().contains("every component is ready"));
    let json = status("json").json();
    let yaml: serde_json::Value = serde_saphyr::from_str(status("yaml").text()).unwrap();
    for list in [&json, &yaml] {
        let of = |kind: &str| -> Vec<&serde_json::Value> {
            list["items"].as_array().unwrap().iter().filter(|item| item["kind"] == kind).collect()
        };
        assert_eq!(of("Cluster")[0]["status"]["endpoints"][0], format!("https://{}", plane.ingress()));
        assert_eq!((of("Component").len(), of("Secret").len()), (7, 0));
        assert_eq!(of("Hypervisor")[0]["spec"]["role"], "Private");
    }
}
