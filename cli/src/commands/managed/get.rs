//! `keelway get`.

use clap::Args;
use keelway_api::{Documents, ReadOptions};
use keelway_manager_client::client::DocumentSelection;

use super::{client, failed};
use crate::{
    args::{GetArguments, KindName, OutputFormat, ServerArgument},
    commands::{get, print, session::runtime},
    exit::{Code, CommandFailure},
};

#[derive(Args)]
pub(crate) struct GetDocumentsArguments {
    /// Kinds, separated by commas [default: all]
    #[arg(value_name = "KIND", value_enum, value_delimiter = ',')]
    pub(crate) kinds: Vec<KindName>,
    /// Show only documents with these names
    #[arg(long = "name", value_name = "NAME")]
    pub(crate) names: Vec<String>,
    /// The output format
    #[arg(short, long, value_enum, default_value = "table")]
    pub(crate) output: OutputFormat,
    #[command(flatten)]
    pub(crate) server: ServerArgument,
}

const OF_A_WORLD: [KindName; 4] =
    [KindName::ClusterClass, KindName::Hypervisor, KindName::Cluster, KindName::Component];

pub(in crate::commands) fn run(arguments: &GetDocumentsArguments) -> Result<Code, CommandFailure> {
    let runtime = runtime()?;
    let mut client = client(&runtime, &arguments.server);
    let everything = arguments.kinds.is_empty() && arguments.names.is_empty();
    // The table of one kind depends on other kinds: the row of a machine shows its free resources, and that of a cluster which components are
    // ready.
    let kinds = if arguments.kinds.contains(&KindName::Secret) { &arguments.kinds[..] } else { &OF_A_WORLD };
    let kinds = kinds.iter().map(|kind| kind.kind().to_owned()).collect();
    let wanted = if everything { DocumentSelection::default() } else { DocumentSelection { kinds, names: Vec::new() } };
    let text = runtime.block_on(client.get(&wanted)).map_err(failed)?;
    if everything && arguments.output == OutputFormat::Yaml {
        return print(&String::from_utf8_lossy(&text)).map(|()| Code::Done);
    }
    let documents = Documents::read_partial(&text, ReadOptions::default()).map_err(CommandFailure::other)?;
    let mut kinds = if arguments.kinds.is_empty() { OF_A_WORLD.to_vec() } else { arguments.kinds.clone() };
    // Most installations have no classes, so that an empty table of classes would be noise.
    kinds.retain(|kind| {
        *kind != KindName::ClusterClass || arguments.kinds.contains(kind) || !documents.classes.is_empty()
    });
    let asked = GetArguments { names: arguments.names.clone(), output: arguments.output };
    for (index, kind) in kinds.iter().enumerate() {
        if index > 0 && matches!(arguments.output, OutputFormat::Table | OutputFormat::Wide) {
            print("\n")?;
        }
        get::of_kind(*kind, &documents, &asked)?;
    }
    Ok(Code::Done)
}
