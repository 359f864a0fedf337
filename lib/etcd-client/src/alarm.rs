//! Alarms of a store.

use std::fmt;

use crate::proto::AlarmType;

/// An alarm that a store has raised. While it is raised, the whole store refuses writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum EtcdAlarm {
    /// The database of a member reached its quota.
    NoSpace,
    /// The database of a member differs from those of the others.
    Corrupt,
}

impl EtcdAlarm {
    pub(crate) fn wire(self) -> AlarmType {
        match self {
            Self::NoSpace => AlarmType::Nospace,
            Self::Corrupt => AlarmType::Corrupt,
        }
    }

    /// Returns the alarm in one of the texts of [`StatusResponse::errors`](crate::StatusResponse::errors), with the id of the member that raised it.
    /// The id is 0 if etcd does not know which member it concerns: texts of protobuf messages leave out a field that is 0.
    /// None: the text reports something else. A list of alarms by [`Alarm`](crate::EtcdClient::disarm) would be a proposal to the quorum, and
    /// a store that lacks its quorum would not respond.
    #[must_use]
    pub fn of_status_error(text: &str) -> Option<(u64, Self)> {
        let value = |key: &str| text.split_whitespace().find_map(|part| part.strip_prefix(key)?.strip_prefix(':'));
        let alarm = match value("alarm")? {
            "NOSPACE" => Self::NoSpace,
            "CORRUPT" => Self::Corrupt,
            _ => return None,
        };
        let member = value("memberID").map_or(Some(0), |id| id.parse().ok())?;
        Some((member, alarm))
    }
}

impl fmt::Display for EtcdAlarm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.wire().as_str_name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The text of a message has one or two spaces between its fields: protobuf for Go varies them on purpose.
    #[test]
    fn alarms_are_found_in_the_errors_of_a_status() {
        let alarm = EtcdAlarm::of_status_error;
        assert_eq!(
            alarm("memberID:10276657743932975437 alarm:NOSPACE "),
            Some((10_276_657_743_932_975_437, EtcdAlarm::NoSpace))
        );
        assert_eq!(alarm("memberID:7  alarm:CORRUPT"), Some((7, EtcdAlarm::Corrupt)));
        assert_eq!(alarm("alarm:CORRUPT "), Some((0, EtcdAlarm::Corrupt)));
        assert_eq!(alarm("memberID:x alarm:CORRUPT"), None);
        assert_eq!(alarm("etcdserver: no leader"), None);
        assert_eq!(alarm("memberID:7 alarm:NONE"), None);
    }
}
