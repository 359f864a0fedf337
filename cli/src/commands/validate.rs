//! `keelway validate`.

use super::print;
use crate::{
    args::GlobalArguments,
    exit::{Code, CommandFailure},
    input::Input,
};

pub(super) fn run(global: &GlobalArguments) -> Result<Code, CommandFailure> {
    let documents = Input::read_some(&global.files)?.world()?;
    let counts = [
        (documents.hypervisors.len(), "Hypervisor"),
        (documents.clusters.len(), "Cluster"),
        (documents.components.len(), "Component"),
        (documents.secrets.len(), "Secret"),
    ];
    let found: Vec<String> = counts
        .into_iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, kind)| format!("{count} {kind}{}", if count == 1 { "" } else { "s" }))
        .collect();
    let found = if found.is_empty() { "no documents of Keelway".to_owned() } else { found.join(", ") };
    print(&format!("valid: {found}\n"))?;
    Ok(Code::Done)
}
