//! `keelway logs`.

use std::{
    collections::BTreeSet,
    io::{self, Write},
    path::PathBuf,
    time::Duration,
};

use clap::Args;
use keelway_api::{duration::Span, jiff::Timestamp, name::PodName};
use keelway_machine::{
    layout::is_named_after,
    log::{Log, LogOptions},
};
use keelway_reconciler::reach::{ComponentLogs, ReachError};

use super::{
    named::{component, missing_document_error, reach},
    session::runtime,
};
use crate::{
    args::GlobalArguments,
    exit::{Code, CommandFailure},
    input::Input,
};

#[derive(Args)]
pub(crate) struct LogsArguments {
    /// The component, as `component get` prints its name
    #[arg(value_name = "COMPONENT")]
    pub(crate) component: String,
    /// Follow the log, also across restarts of the container, until the component is deleted
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// Read documents from FILE instead of stdin; can be repeated (-f means --follow here)
    #[arg(id = "files", long = "filename", value_name = "FILE")]
    pub(crate) _files: Vec<PathBuf>,
    /// Print only the last LINES lines
    #[arg(long, value_name = "LINES")]
    pub(crate) tail: Option<u64>,
    /// Print only lines newer than DURATION
    #[arg(long, value_name = "DURATION")]
    pub(crate) since: Option<Span>,
    /// Print the log of the container's previous run
    #[arg(short, long)]
    pub(crate) previous: bool,
    /// Print a timestamp before each line
    #[arg(long)]
    pub(crate) timestamps: bool,
    /// The container [default: the main container of the component]
    #[arg(short, long, value_name = "NAME")]
    pub(crate) container: Option<String>,
}

pub(super) fn run(global: &GlobalArguments, arguments: &LogsArguments) -> Result<Code, CommandFailure> {
    let documents = Input::read(&global.files)?.documents()?;
    let (pod, machine) = component(&documents, &arguments.component)?;
    let executor = runtime()?;
    let logs = executor.block_on(async {
        let machine = reach(&documents, machine).await?;
        machine.logs(&pod).await.map_err(CommandFailure::other)
    });
    let none = || {
        let problem = format!("{} has no logs on its machine", arguments.component);
        CommandFailure::usage(problem, "a component has logs once it was started: keelway reconcile")
    };
    let logs = logs?.ok_or_else(none)?;
    let log = choose(&logs, &pod, arguments)?.ok_or_else(none)?;
    let since = arguments.since.map(|since| Timestamp::now().checked_sub(Duration::from(since)));
    let wanted = LogOptions {
        tail: arguments.tail,
        since: since.transpose().map_err(CommandFailure::other)?,
        timestamps: arguments.timestamps,
        follow: arguments.follow && !arguments.previous,
        reader_closed: None,
    };
    let mut stdout = io::stdout().lock();
    let read = executor.block_on(logs.read(log, &wanted, &mut stdout));
    match read.and_then(|()| stdout.flush().map_err(ReachError::from)) {
        // The reader of stdout has closed it.
        Err(ReachError::Logs(error)) if error.kind() == io::ErrorKind::BrokenPipe => Ok(Code::Done),
        other => other.map(|()| Code::Done).map_err(CommandFailure::other),
    }
}

/// Returns the newest log of the container, or the previous one.
fn choose(logs: &ComponentLogs, pod: &PodName, arguments: &LogsArguments) -> Result<Option<Log>, CommandFailure> {
    let all = logs.list();
    let containers: BTreeSet<String> = all.iter().map(|log| log.container.clone()).collect();
    let container = match (&arguments.container, containers.len()) {
        (Some(name), _) if containers.contains(name) => name.clone(),
        (Some(name), _) => return Err(missing_document_error("log of container", name, &containers)),
        (None, 0) => return Ok(None),
        (None, 1) => containers.into_iter().next().unwrap_or_default(),
        (None, _) if containers.iter().any(|name| is_named_after(pod, name)) => {
            containers.into_iter().find(|name| is_named_after(pod, name)).unwrap_or_default()
        }
        (None, _) => {
            let names = containers.into_iter().collect::<Vec<_>>().join(", ");
            let problem = format!("{} has more than one container", arguments.component);
            return Err(CommandFailure::usage(problem, format!("set --container to one of {names}")));
        }
    };
    let mut newest_first = all.iter().filter(|log| log.container == container).rev().cloned();
    if !arguments.previous {
        return Ok(newest_first.next());
    }
    newest_first.nth(1).map(Some).ok_or_else(|| {
        let problem = format!("container {container} of {} has no previous run", arguments.component);
        CommandFailure::usage(problem, "omit --previous")
    })
}
