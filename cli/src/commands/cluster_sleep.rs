//! `keelway cluster sleep` and `keelway cluster wake`.

use keelway_api::Documents;

use super::print_documents;
use crate::{
    args::{ClusterName, GlobalArguments},
    exit::{Code, CommandFailure},
    input::Input,
};

pub(super) fn run(global: &GlobalArguments, name: &ClusterName, asleep: bool) -> Result<Code, CommandFailure> {
    let input = Input::read_some(&global.files)?;
    let documents = set_asleep(&input, name, asleep).map_err(|failure| failure.with_echo(&input))?;
    print_documents(&documents)?;
    Ok(Code::Done)
}

fn set_asleep(input: &Input, name: &ClusterName, asleep: bool) -> Result<Documents, CommandFailure> {
    let mut documents = input.documents()?;
    let Some(cluster) = documents.clusters.get_mut(&name.reference()) else { return Err(name.missing(&documents)) };
    cluster.spec.asleep = asleep;
    Ok(documents)
}
