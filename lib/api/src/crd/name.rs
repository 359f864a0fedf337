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
                "metadata.name: must have at most {LONGEST_NAME} characters; shorten it: names derived from it must fit into 63 characters"
            ),
        ),
        rule(
            "",
            format!("{name}.size() > {LONGEST_NAME} || {}", is(name, LABEL)),
            format!(
                "metadata.name: \"{{{name}}}\" is not an RFC 1123 label; it must consist of lowercase letters, digits and -, \
                 and start and end with a letter or digit"
            ),
        ),
    ]
}
