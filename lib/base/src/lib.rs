//! What several programs need, once. Nothing here knows a Keelway document.

pub mod backoff;
pub mod bounded_tasks;
pub mod durable_file;
pub mod error_chain;
pub mod root_socket;
pub mod signals;
pub mod unix_listener;
