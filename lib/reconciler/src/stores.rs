//! The stores of clusters, through etcd's own API. The driver's certificate is the one that its health checks use.

mod members;
mod observation;
mod order;

pub(crate) use members::StoreClients;
pub(crate) use observation::{Members, observe, reports};
pub(crate) use order::execute;
