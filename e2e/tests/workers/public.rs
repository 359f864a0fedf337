//! The public machine, which holds other people's clusters, too.

use keelway_e2e::process;

use crate::setting::Setting;

/// Ingress and gateway.
pub(crate) fn nothing_has_privilege(setting: &Setting) {
    let machines = setting.world.machines();
    let public = machines.iter().find(|machine| machine.is_public()).unwrap();
    let pids = public.pids();
    let names: Vec<&str> = pids.keys().map(String::as_str).collect();
    assert_eq!(names, ["gateway-0", "ingress-0"]);
    for (name, pid) in &pids {
        for field in ["CapEff", "CapPrm", "CapBnd"] {
            let value = process::status(*pid, field).unwrap();
            assert_eq!(value.trim_start_matches('0'), "", "{field} of {name}");
        }
    }
}
