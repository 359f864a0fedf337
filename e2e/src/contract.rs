//! The behaviour of container runtimes and etcd that decisions depend on. The simulated and the real ones pass the same cases.

mod etcd;
mod live;
mod runtime;
mod subject;

pub use etcd::CASES as ETCD;
pub use live::LiveMachine;
pub use runtime::CASES as RUNTIME;
pub use subject::{Case, ContractSubject, ProgramBehaviour};
