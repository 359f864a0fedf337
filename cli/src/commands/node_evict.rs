//! `keelway node evict`.

use std::io::Write;

use keelway_api::{duration::Span, jiff::Timestamp};
use keelway_reconciler::{Eviction, Workers};

use super::{
    session::runtime,
    workers::{after, cluster, failure},
};
use crate::{
    args::{EvictArguments, Global, OfCluster},
    exit::{Code, Failure},
    input::Input,
};

/// How long certificates of workers live: until then the name of an evicted one is nobody's.
const WORKER_TTL: Span = Span::hours(168);

pub(super) fn run(global: &Global, arguments: &EvictArguments) -> Result<Code, Failure> {
    let documents = Input::read(&global.files)?.documents()?;
    let cluster = cluster(&documents, &arguments.cluster)?;
    let runtime = runtime()?;
    let _entered = runtime.enter();
    let workers = Workers::of(&documents, cluster).map_err(|error| failure(error, &arguments.cluster))?;
    runtime.block_on(evict(&workers, &arguments.names, &arguments.cluster, global))
}

/// Evicts each, in order, until one cannot be.
pub(super) async fn evict(
    workers: &Workers,
    names: impl IntoIterator<Item = impl AsRef<str>>,
    cluster: &OfCluster,
    global: &Global,
) -> Result<Code, Failure> {
    let until = after(Timestamp::now(), WORKER_TTL);
    for name in names {
        let name = name.as_ref();
        let eviction = workers.evict(name, until).await.map_err(|error| failure(error, cluster))?;
        if !global.quiet {
            let told = match eviction {
                Eviction::Done => format!("{name} is evicted: its name and key are nobody's until {until:.0}"),
                Eviction::Again => format!("{name} was evicted before"),
            };
            let _ = writeln!(std::io::stderr(), "{told}");
        }
    }
    Ok(Code::Done)
}
