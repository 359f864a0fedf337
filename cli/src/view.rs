//! Views of documents for people and for programs.

mod class;
mod cluster;
mod component;
mod event;
mod hypervisor;
mod inventory;
mod role;
mod secret;
mod snapshot;
mod store_member;
mod token;

use keelway_api::{Condition, Time, jiff::Timestamp};
use serde_json::{Value as Json, json};

pub(crate) use class::ClassView;
pub(crate) use cluster::ClusterView;
pub(crate) use component::ComponentView;
pub(crate) use event::EventView;
pub(crate) use hypervisor::HypervisorView;
pub(crate) use inventory::{Allocation, InventoryView, size};
pub(crate) use role::RoleView;
pub(crate) use secret::SecretView;
pub(crate) use snapshot::SnapshotView;
pub(crate) use store_member::StoreMemberView;
pub(crate) use token::TokenView;

use crate::{table::TextTable, terminal};

/// One row of a table.
pub(crate) trait TableRow {
    /// The columns. Those after the first [`Self::NARROW`] ones are shown on request.
    const HEADER: &'static [&'static str];
    /// The number of columns that are always shown.
    const NARROW: usize;

    /// Returns one cell for each column.
    fn cells(&self) -> Vec<String>;
}

/// Wraps objects in a List, as kubectl does.
pub(crate) fn list(items: &[Json]) -> Json {
    json!({"apiVersion": "v1", "kind": "List", "metadata": {}, "items": items})
}

/// Returns a table of these rows, or an empty text without rows.
pub(crate) fn table<V: TableRow>(views: &[V], wide: bool) -> String {
    if views.is_empty() {
        return String::new();
    }
    let shown = if wide { V::HEADER.len() } else { V::NARROW };
    let mut table = TextTable::new(V::HEADER.get(..shown).unwrap_or(V::HEADER));
    for view in views {
        let mut cells = view.cells();
        cells.truncate(shown);
        table.row(cells);
    }
    table.render(terminal::columns())
}

pub(crate) fn find<'a>(conditions: &'a [Condition], kind: &str) -> Option<&'a Condition> {
    conditions.iter().find(|condition| condition.type_ == kind)
}

pub(crate) fn status_of(conditions: &[Condition], kind: &str) -> String {
    find(conditions, kind).map_or_else(|| "Unknown".to_owned(), |condition| condition.status.clone())
}

pub(crate) fn reason_of(conditions: &[Condition], kind: &str) -> String {
    find(conditions, kind).map_or_else(|| "Unknown".to_owned(), |condition| condition.reason.clone())
}

pub(crate) fn message_of(conditions: &[Condition], kind: &str) -> String {
    find(conditions, kind).map_or_else(|| "the next reconcile".to_owned(), |condition| condition.message.clone())
}

/// Returns the age as kubectl does: in the largest unit, and from 2 to 10 minutes with seconds.
pub(crate) fn age(since: Option<&Time>, now: Timestamp) -> String {
    let Some(since) = since else { return "<unknown>".to_owned() };
    let seconds = now.duration_since(since.0).as_secs().max(0);
    match seconds {
        0..120 => format!("{seconds}s"),
        120..600 => format!("{}m{}s", seconds / 60, seconds % 60),
        600..10_800 => format!("{}m", seconds / 60),
        10_800..172_800 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}
