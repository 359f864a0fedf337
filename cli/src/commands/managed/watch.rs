//! `keelway watch`.

use clap::{Args, ValueEnum};
use futures::TryStreamExt;
use keelway_manager_client::{
    client::DocumentSelection,
    proto::{WatchEvent, watch_event::Type},
};

use super::{client, failed, kubectl_name};
use crate::{
    args::{KindName, ServerArgument},
    commands::{print, session::runtime},
    exit::{Code, CommandFailure},
};

#[derive(Args)]
pub(crate) struct WatchArguments {
    /// Kinds, separated by commas [default: all but secrets]
    #[arg(value_name = "KIND", value_enum, value_delimiter = ',')]
    pub(crate) kinds: Vec<KindName>,
    /// The output format
    #[arg(short, long, value_enum, default_value = "table")]
    pub(crate) output: WatchOutput,
    #[command(flatten)]
    pub(crate) server: ServerArgument,
}

/// How a change is shown.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum WatchOutput {
    /// One line for each change: its type, and the name of the document
    Table,
    /// The documents in YAML
    Yaml,
}

pub(in crate::commands) fn run(arguments: &WatchArguments) -> Result<Code, CommandFailure> {
    let runtime = runtime()?;
    let mut client = client(&runtime, &arguments.server);
    let kinds = match arguments.kinds[..] {
        [] => &[KindName::ClusterClass, KindName::Hypervisor, KindName::Cluster, KindName::Component],
        _ => &arguments.kinds[..],
    };
    let kinds = kinds.iter().map(|kind| kind.kind().to_owned()).collect();
    runtime.block_on(async {
        let events = client.watch(&DocumentSelection { kinds, names: Vec::new() }).await.map_err(failed)?;
        let mut events = Box::pin(events);
        while let Some(event) = events.try_next().await.map_err(failed)? {
            print(&event_text(&event, arguments.output))?;
        }
        Ok(Code::Done)
    })
}

fn event_text(event: &WatchEvent, output: WatchOutput) -> String {
    let kind = match event.r#type() {
        Type::Added => "ADDED",
        Type::Modified => "MODIFIED",
        Type::Deleted => "DELETED",
        Type::Bookmark | Type::Unspecified => return String::new(),
    };
    let Some(document) = &event.document else { return String::new() };
    match output {
        WatchOutput::Table => format!("{kind:9} {}\n", kubectl_name(document.name.as_ref())),
        // A deleted document appears in the comment only.
        WatchOutput::Yaml => format!("---\n# {kind}\n{}", document.text),
    }
}
