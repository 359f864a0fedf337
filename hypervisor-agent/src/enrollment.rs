//! The agent's side of [enrolment](keelway_agent_api::enrollment), and the directory of its identity.

mod agent;
mod folder;

pub(crate) use agent::{Enrolling, check_granted};
pub use agent::{EnrollingError, RefusedEnrollment};
pub(crate) use folder::EnrolledIdentity;
pub use folder::IdentityFolder;
