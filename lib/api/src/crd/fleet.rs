//! Rules for the fields of a Cluster that mean nothing in a fleet.

use super::cel::{CelRule, rule};
use crate::validated::FIELDS_WITHOUT_FLEET;

pub(super) fn rules() -> Vec<CelRule> {
    let of_field = |field: &crate::validated::FieldWithoutFleet| {
        rule(
            "spec",
            format!("!has(self.fleet) || !({})", (field.is_set_expression)()),
            format!("{}: {}; {}", field.path, field.problem, field.help),
        )
    };
    FIELDS_WITHOUT_FLEET.iter().map(of_field).collect()
}
