//! Rules for extra arguments.

use super::{
    cel::{CelRule, is, list, quoted, rule},
    forms::{ENDLESS, PORT, SPAN, release_form},
};
use crate::{
    argument::{Argument, ArgumentType, of_role},
    release::MINORS,
    role::Role,
};

/// The fields with the arguments of each role.
pub(super) const PLACES: [(Role, &str); 3] = [
    (Role::KubeApiserver, "spec.controlPlane.kubeAPIServer.extraArgs"),
    (Role::KubeControllerManager, "spec.controlPlane.kubeControllerManager.extraArgs"),
    (Role::KubeScheduler, "spec.controlPlane.kubeScheduler.extraArgs"),
];

pub(super) fn rules() -> Vec<CelRule> {
    let of_place = |(role, path): &(Role, &str)| {
        let arguments = of_role(*role).iter();
        let mut rules = vec![allowed(*role, path)];
        rules.extend(arguments.clone().map(|argument| form(argument, path)));
        rules.extend(arguments.filter_map(|argument| since(*role, argument, path)));
        rules
    };
    PLACES.iter().flat_map(of_place).collect()
}

fn allowed(role: Role, path: &str) -> CelRule {
    let names = of_role(role).iter().map(|argument| argument.name);
    let known = list(names.clone());
    rule(
        path,
        format!("self.all(name, name in {known})"),
        format!(
            "{role} does not support the argument \"{{self.filter(name, !(name in {known}))[0]}}\" here; supported values: {}",
            names.collect::<Vec<_>>().join(", ")
        ),
    )
}

fn form(argument: &Argument, path: &str) -> CelRule {
    let name = quoted(argument.name);
    let holds = format!("!({name} in self) || ({})", accepts_expression(argument.form, &format!("self[{name}]")));
    let says = format!("{}: \"{{self[{name}]}}\" is not a valid value; write {}", argument.name, argument.form);
    rule(path, holds, says)
}

fn accepts_expression(form: ArgumentType, value: &str) -> String {
    match form {
        ArgumentType::Number { least, most } => {
            format!("{} && int({value}) >= {least} && int({value}) <= {most}", is(value, "[0-9]{1,10}"))
        }
        ArgumentType::Decimal { most } => {
            format!("{} && double({value}) <= {most}.0", is(value, "[0-9]{1,10}(\\.[0-9]{1,10})?"))
        }
        ArgumentType::Duration => format!(
            "{} && !{value}.matches('{ENDLESS}') && duration({value}) > duration('0s') && duration({value}) <= duration('8760h')",
            is(value, SPAN)
        ),
        ArgumentType::Ports => format!(
            "{} && int({value}.split('-')[0]) <= int({value}.split('-')[1])",
            is(value, &format!("{PORT}-{PORT}"))
        ),
        ArgumentType::Choice(words) => format!("{value} in {}", list(words.iter().copied())),
        ArgumentType::Metrics => {
            let metric = "[A-Za-z_:][A-Za-z0-9_:]*";
            is(value, &format!("{metric}(,{metric})*"))
        }
    }
}

/// Returns the rule for an argument that older releases do not know.
fn since(role: Role, argument: &Argument, path: &str) -> Option<CelRule> {
    let since = argument.since?;
    let older = MINORS.iter().filter(|row| !argument.is_known_to(&row.newest_tested()));
    let map = path.strip_prefix("spec.").map(|path| format!("self.{path}"))?;
    let name = argument.name;
    Some(rule(
        "spec",
        format!("!has({map}) || !({} in {map}) || !{}", quoted(name), is("self.version", &release_form(older))),
        format!("{path}: {role} {{self.version}} does not support {name}; remove it until the cluster runs 1.{since}"),
    ))
}
