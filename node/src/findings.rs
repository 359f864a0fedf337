//! The findings of checks that the daemon repeats.

use tokio::sync::watch;

/// Replaces the findings of a check, and logs those that are new.
pub(crate) fn replace_findings<T: PartialEq>(found: &watch::Sender<Vec<T>>, now: Vec<T>, log: impl Fn(&T)) {
    found.send_if_modified(|before| {
        now.iter().filter(|finding| !before.contains(finding)).for_each(log);
        let differs = *before != now;
        *before = now;
        differs
    });
}
