//! The value of a condition.

use alloc::string::{String, ToString};

use keelway_api::condition::{ConditionStatus, ConditionValue, reason::ConditionReason};

pub(crate) fn verdict(status: ConditionStatus, reason: ConditionReason, message: impl Into<String>) -> ConditionValue {
    ConditionValue { status, reason: reason.as_str().to_string(), message: message.into() }
}
