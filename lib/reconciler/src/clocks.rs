//! Measures how far the clocks of machines are ahead of this host's clock.

use keelway_api::{
    Documents,
    jiff::{SignedDuration, Timestamp},
};

use crate::Machines;

/// Returns one value for each machine that reported its time.
pub(crate) fn clocks_ahead(machines: &dyn Machines, documents: &Documents, now: Timestamp) -> Vec<SignedDuration> {
    let times = documents.hypervisors.values().filter_map(|machine| machines.clock_of(machine));
    times.map(|time| now.duration_until(time)).collect()
}
