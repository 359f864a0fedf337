//! `keelway node evict`.

use std::io::Write;

use clap::Args;
use keelway_api::name::is_subdomain;
use keelway_api::{duration::Span, jiff::Timestamp};
use keelway_reconciler::{ClusterWorkers, Eviction};

use super::workers::{after, cluster, connect, failure};
use crate::{
    args::{ClusterArgument, GlobalArguments},
    exit::{Code, CommandFailure},
    input::Input,
};

#[derive(Args)]
pub(crate) struct EvictArguments {
    /// Names of workers, which are the names of their Nodes
    #[arg(required = true, value_name = "NAME", value_parser = node_name)]
    pub(crate) names: Vec<String>,
    #[command(flatten)]
    pub(crate) cluster: ClusterArgument,
}

fn node_name(text: &str) -> Result<String, String> {
    if is_subdomain(text) { Ok(text.to_owned()) } else { Err("must be the name of a Node".to_owned()) }
}

pub(super) fn run(global: &GlobalArguments, arguments: &EvictArguments) -> Result<Code, CommandFailure> {
    let documents = Input::read(&global.files)?.documents()?;
    let cluster = cluster(&documents, &arguments.cluster)?;
    let (runtime, workers) = connect(&documents, cluster, &arguments.cluster)?;
    let of = (&arguments.cluster, cluster.spec.certificates.worker_ttl);
    runtime.block_on(evict(&workers, &arguments.names, of, global))
}

/// Evicts the workers in order, and stops at the first failure. Their names stay reserved for the lifetime of worker certificates.
pub(super) async fn evict(
    workers: &ClusterWorkers,
    names: impl IntoIterator<Item = impl AsRef<str>>,
    (cluster, worker_ttl): (&ClusterArgument, Span),
    global: &GlobalArguments,
) -> Result<Code, CommandFailure> {
    let until = after(Timestamp::now(), worker_ttl);
    for name in names {
        let name = name.as_ref();
        let eviction = workers.evict(name, until).await.map_err(|error| failure(error, cluster))?;
        if !global.quiet {
            let text = match eviction {
                Eviction::Done => format!("evicted {name}; its name and key are blocked until {until:.0}"),
                Eviction::Again => format!("{name} was already evicted"),
            };
            let _ = writeln!(std::io::stderr(), "{text}");
        }
    }
    Ok(Code::Done)
}
