//! What the members of stores report. The types are parts of the `Observation` document.

pub use keelway_api::store_observation::{
    DatabaseSize, ListedMember, MemberAlarm, MemberId, MemberList, MemberReport, StoreObservation,
};
