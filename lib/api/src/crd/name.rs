//! Rules for names.

use crate::name::LONGEST_NAME;

use super::{
    cel::{CelRule, is, rule},
    forms::LABEL,
};

/// Returns the rules for machines and clusters. Other names are derived from theirs.
pub(super) fn rules() -> Vec<CelRule> {
    let name = "self.metadata.name";
    vec![
        rule(
            "",
            format!("{name}.size() <= {LONGEST_NAME}"),
            format!(
                "metadata.name: the name is too long; give it at most {LONGEST_NAME} characters: names made from it must stay within 63"
            ),
        ),
        rule(
            "",
            format!("{name}.size() > {LONGEST_NAME} || {}", is(name, LABEL)),
            format!(
                "metadata.name: \"{{{name}}}\" is no RFC 1123 label; use lowercase letters, digits and -, with a letter or digit at both ends"
            ),
        ),
    ]
}
