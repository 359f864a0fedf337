//! The findings and errors of checks that the daemon repeats, each of which it logs once.

use std::error::Error;

use keelway_base::error_chain::ErrorChain;
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

/// Logs an error, unless it is the same as the last one.
pub(crate) fn log_once<E: Error + 'static>(last: &mut Option<String>, what: &str, outcome: Result<(), E>) {
    let fault = outcome.err().map(|error| ErrorChain(&error).to_string());
    if fault != *last
        && let Some(fault) = &fault
    {
        tracing::error!("{what}: {fault}");
    }
    *last = fault;
}
