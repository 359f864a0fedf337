//! `keelway watch`.

use futures::TryStreamExt;
use keelway_manager::{
    client::Wanted,
    proto::{WatchEvent, watch_event::Type},
};

use super::{client, failed, told};
use crate::{
    args::{KindName, WatchArguments, WatchOutput},
    commands::{print, session::runtime},
    exit::{Code, Failure},
};

pub(in crate::commands) fn run(arguments: &WatchArguments) -> Result<Code, Failure> {
    let runtime = runtime()?;
    let mut client = client(&runtime, &arguments.server);
    let kinds = match arguments.kinds[..] {
        [] => &[KindName::ClusterClass, KindName::Hypervisor, KindName::Cluster, KindName::Component],
        _ => &arguments.kinds[..],
    };
    let kinds = kinds.iter().map(|kind| kind.kind().to_owned()).collect();
    runtime.block_on(async {
        let events = client.watch(&Wanted { kinds, names: Vec::new() }).await.map_err(failed)?;
        let mut events = Box::pin(events);
        while let Some(event) = events.try_next().await.map_err(failed)? {
            print(&shown(&event, arguments.output))?;
        }
        Ok(Code::Done)
    })
}

fn shown(event: &WatchEvent, output: WatchOutput) -> String {
    let kind = match event.r#type() {
        Type::Added => "ADDED",
        Type::Modified => "MODIFIED",
        Type::Deleted => "DELETED",
        Type::Bookmark | Type::Unspecified => return String::new(),
    };
    let Some(document) = &event.document else { return String::new() };
    match output {
        WatchOutput::Table => format!("{kind:9} {}\n", told(document.name.as_ref())),
        // Who is gone is told by the comment alone.
        WatchOutput::Yaml => format!("---\n# {kind}\n{}", document.text),
    }
}
