//! Extra arguments of components.

use std::collections::BTreeMap;

use super::FaultCollector;
use crate::{
    argument::{self, Argument},
    cluster::ControlPlaneSpec,
    fault::Fault,
    release::Release,
    role::Role,
    schema::{short, suggestion},
};

/// Returns the extra arguments of each role in the form in which programs read them. If the release is not known, no argument is too new.
pub(super) fn extra(
    spec: &ControlPlaneSpec,
    release: Option<&Release>,
    faults: &mut FaultCollector,
) -> BTreeMap<Role, Vec<String>> {
    [
        (Role::KubeApiserver, "kubeAPIServer", &spec.kube_api_server.extra_args),
        (Role::KubeControllerManager, "kubeControllerManager", &spec.kube_controller_manager.extra_args),
        (Role::KubeScheduler, "kubeScheduler", &spec.kube_scheduler.extra_args),
    ]
    .into_iter()
    .map(|(role, field, given)| {
        let place = ArgumentContext { role, release, map: format!("spec.controlPlane.{field}.extraArgs") };
        let flags = given.iter().filter_map(|(name, value)| faults.take(place.flag(name, value))).collect();
        (role, flags)
    })
    .collect()
}

/// The role and the field of the arguments.
struct ArgumentContext<'a> {
    role: Role,
    release: Option<&'a Release>,
    map: String,
}

impl ArgumentContext<'_> {
    fn flag(&self, name: &str, value: &str) -> Result<String, Fault> {
        let fault = |problem: String, help: String| Fault::of_entry(&self.map, name, problem, help);
        let argument = self.allowed(name).map_err(|(problem, help)| fault(problem, help))?;
        if let Some(release) = self.release.filter(|release| !argument.is_known_to(release)) {
            let since = argument.since.unwrap_or_default();
            return Err(fault(
                format!("{} {release} does not support {name}", self.role),
                format!("remove it until the cluster runs 1.{since}"),
            ));
        }
        if !argument.form.accepts(value) {
            return Err(fault(
                format!("{:?} is not a valid value of {name}", short(value)),
                format!("write {}", argument.form),
            ));
        }
        Ok(format!("--{name}={value}"))
    }

    /// Returns the argument with this name, or a problem and its correction.
    fn allowed(&self, name: &str) -> Result<&'static Argument, (String, String)> {
        let all = argument::of_role(self.role);
        if let Some(argument) = all.iter().find(|argument| argument.name == name) {
            return Ok(argument);
        }
        let shown = short(name);
        if name.starts_with('-') {
            return Err((
                format!("{shown:?} must not start with a dash"),
                format!("write {}", shown.trim_start_matches('-')),
            ));
        }
        if argument::is_own(name) {
            return Err((
                format!("Keelway sets {shown} itself, to keep the cluster secure and its components consistent"),
                "remove it".to_owned(),
            ));
        }
        let names: Vec<_> = all.iter().map(|argument| argument.name).collect();
        Err((format!("{} does not support the argument {shown:?} here", self.role), suggestion(name, &names)))
    }
}
