//! A machine to test with: the fake runtime, with a root directory and a network of its own, and small programs that
//! stand where etcd, kube-apiserver, kube-controller-manager, kube-scheduler and haproxy would.
//!
//! Each program listens where its flags say, with the files that its container was given, and asks its clients for what
//! the real one asks for. So a world on such machines settles only if documents, files, keys and flags fit together.

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
