//! The checks of label selectors.

use keelway_api::crd::{
    cel::{CelRule, rule},
    schema::extend,
};
use serde_json::{Value as Json, json};

/// Sets the maximum lengths of the selector at a path. An API server rejects a rule whose cost is not bounded.
pub(super) fn bound(root: &mut Json, path: &str) {
    extend(root, &format!("{path}.matchLabels"), json!({"maxProperties": 32}));
    extend(root, &format!("{path}.matchLabels{{}}"), json!({"maxLength": 63}));
    extend(root, &format!("{path}.matchExpressions"), json!({"maxItems": 16}));
    let expression = format!("{path}.matchExpressions[]");
    extend(root, &format!("{expression}.key"), json!({"maxLength": 316, "minLength": 1}));
    extend(root, &format!("{expression}.operator"), json!({"maxLength": 16}));
    extend(root, &format!("{expression}.values"), json!({"maxItems": 100}));
    extend(root, &format!("{expression}.values[]"), json!({"maxLength": 63}));
}

/// Returns the rules for the selector at a path.
pub(super) fn rules(path: &str) -> Vec<CelRule> {
    let expression = format!("{path}.matchExpressions[]");
    vec![
        rule(
            format!("{expression}.operator"),
            "self in ['In', 'NotIn', 'Exists', 'DoesNotExist']",
            "is not supported; write In, NotIn, Exists or DoesNotExist",
        ),
        rule(
            expression.clone(),
            "!(self.operator in ['In', 'NotIn']) || (has(self.values) && self.values.size() > 0)",
            "operators In and NotIn require values; add at least one",
        ),
        rule(
            expression,
            "!(self.operator in ['Exists', 'DoesNotExist']) || !has(self.values) || self.values.size() == 0",
            "operators Exists and DoesNotExist do not support values; remove them",
        ),
    ]
}
