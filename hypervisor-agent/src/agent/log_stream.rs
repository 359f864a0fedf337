//! Streams logs to a caller.

use std::{
    io::{self, BufWriter, Write},
    os::fd::OwnedFd,
    pin::Pin,
    sync::Arc,
};

use futures::{Stream, StreamExt};
use keelway_agent_api::proto;
use keelway_api::{jiff::Timestamp, name::PodName};
use keelway_base::error_chain::chain_text;
use keelway_machine::log::{Log, LogOptions};
use keelway_machine_io::{files::PodLogs, local::LocalMachine, logs::read};
use tokio::sync::{
    Semaphore,
    mpsc::{self, Sender},
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

/// How many logs all callers together can read at a time. Each reader uses a thread, and the agent needs some itself.
pub(super) const AT_ONCE: usize = 64;
/// The largest message, in bytes.
const LONGEST: usize = 1 << 14;
/// How many messages to one caller can be in flight.
const ON_THE_WAY: usize = 4;

/// Returns the logs of a component.
pub(super) async fn list(machine: &LocalMachine, pod: Option<proto::PodName>) -> Result<Vec<proto::Log>, Status> {
    let logs = of(machine, pod).await?;
    let all = logs.list().map_err(|error| Status::internal(chain_text(&error)))?;
    Ok(all.into_iter().map(|Log { container, attempt }| proto::Log { container, attempt }).collect())
}

/// Streams the text of a log. Reading ends when the caller disconnects.
pub(super) async fn stream_log(
    machine: &LocalMachine,
    places: &Arc<Semaphore>,
    request: proto::ReadLogRequest,
) -> Result<Pin<Box<dyn Stream<Item = Result<proto::LogText, Status>> + Send>>, Status> {
    let place = Arc::clone(places).try_acquire_owned();
    let place = place.map_err(|_| {
        Status::resource_exhausted(format!("{AT_ONCE} logs are being read on this machine: retry later"))
    })?;
    let logs = of(machine, request.pod).await?;
    let log = request.log.ok_or_else(|| Status::invalid_argument("the request names no log"))?;
    let log = Log { container: log.container, attempt: log.attempt };
    let since = request.since.map(|since| since.parse::<Timestamp>()).transpose();
    let (left, caller) = io::pipe().map_err(|error| Status::internal(chain_text(&error)))?;
    let wanted = LogOptions {
        tail: request.tail,
        since: since.map_err(|error| Status::invalid_argument(chain_text(&error)))?,
        timestamps: request.timestamps,
        follow: request.follow,
        reader_closed: Some(Arc::new(OwnedFd::from(left))),
    };
    let (sender, receiver) = mpsc::channel(ON_THE_WAY);
    tokio::task::spawn_blocking(move || {
        let mut text = BufWriter::with_capacity(LONGEST, Text(sender.clone()));
        match read(&logs, log, &wanted, &mut text) {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
                // Fails if the caller has disconnected.
                let _ = sender.blocking_send(Err(Status::internal(chain_text(&error))));
            }
            _ => {}
        }
        drop(place);
    });
    // This end of the pipe is dropped with the stream when the caller disconnects, which ends the reading.
    let text = ReceiverStream::new(receiver).map(move |text| {
        let _held = &caller;
        text
    });
    Ok(Box::pin(text))
}

async fn of(machine: &LocalMachine, pod: Option<proto::PodName>) -> Result<PodLogs, Status> {
    let pod = pod.ok_or_else(|| Status::invalid_argument("the request names no component"))?;
    let pod = PodName::try_from(pod).map_err(|error| Status::invalid_argument(chain_text(&error)))?;
    let name = pod.to_string();
    let logs = machine.with_files(move |files| files.logs(&pod)).await;
    let logs = logs.map_err(|error| Status::internal(chain_text(&error)))?;
    logs.ok_or_else(|| Status::not_found(format!("{name} has no logs on this machine")))
}

/// A writer that sends text to the caller.
struct Text(Sender<Result<proto::LogText, Status>>);

impl Write for Text {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let text = bytes.get(..LONGEST.min(bytes.len())).unwrap_or_default();
        let sent = self.0.blocking_send(Ok(proto::LogText { text: text.to_owned() }));
        sent.map_err(|_| io::ErrorKind::BrokenPipe)?;
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
