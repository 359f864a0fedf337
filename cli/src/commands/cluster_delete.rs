//! `keelway cluster delete`.

use keelway_api::{Documents, Time, jiff::Timestamp};

use super::print_documents;
use crate::{
    args::{ClusterName, GlobalArguments},
    exit::{Code, CommandFailure},
    input::Input,
};

pub(super) fn run(global: &GlobalArguments, name: &ClusterName) -> Result<Code, CommandFailure> {
    let input = Input::read_some(&global.files)?;
    let documents = delete(&input, name).map_err(|failure| failure.with_echo(&input))?;
    print_documents(&documents)?;
    Ok(Code::Done)
}

/// Deletes a cluster. If it was never reconciled, no machine runs anything of it, and its document is removed immediately. Otherwise it is
/// marked.
fn delete(input: &Input, name: &ClusterName) -> Result<Documents, CommandFailure> {
    let mut documents = input.documents()?;
    let reference = name.reference();
    let cluster = documents.clusters.get_mut(&reference);
    match cluster {
        None => return Err(name.missing(&documents)),
        Some(cluster) if cluster.id().is_none() => {
            documents.clusters.remove(&reference);
        }
        Some(cluster) => {
            cluster.metadata.deletion_timestamp.get_or_insert(Time(Timestamp::now()));
        }
    }
    Ok(documents)
}
