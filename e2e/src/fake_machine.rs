//! A machine for tests: the fake runtime with a separate root directory and network, and small programs in place of etcd, kube-apiserver,
//! kube-controller-manager, kube-scheduler and haproxy.
//!
//! Each program listens on the addresses in its flags, with the files of its container, and requires the same credentials of its clients as the real
//! one. A fleet of such machines therefore settles only if documents, files, keys and flags fit together.

mod api_server;
mod fake_network;
mod program;
mod programs;
mod proxy;
mod serving;
mod signal_order;

pub use fake_network::{FakeNetwork, change_root};
pub use programs::ProgramRunner;
pub use signal_order::{SignalOrder, SignalTrigger};
