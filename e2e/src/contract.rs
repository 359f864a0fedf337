//! What the decision relies on of a machine's runtime and of etcd, written once: the simulated ones and the real ones pass it.

mod etcd;
mod live;
mod runtime;
mod subject;

pub use etcd::CASES as ETCD;
pub use live::LiveMachine;
pub use runtime::CASES as RUNTIME;
pub use subject::{Case, ContractSubject, ProgramBehaviour};
