//! Registration of workload clusters: their agents' certificates, and what each agent may do.

pub mod access;
pub mod decision;
mod location;
pub mod record;
mod records;
mod requests;

pub(crate) use self::{records::AgentRecords, requests::run};

/// The ClusterRole of what an agent may do in the namespace of its cluster.
pub const AGENT_ROLE: &str = "keelway:fleet-agent";
/// The ClusterRole of creating certificate signing requests.
pub const REQUESTS_ROLE: &str = "keelway:fleet-agent-requests";
