//! The agent's port: for the driver of its installation, over mutual TLS, and for nobody else.
//!
//! Who has not shown who it is yet is a stranger, and has a few seconds for it. Strangers take nothing from the driver: they have
//! places of their own, and where all of these are taken, whoever came first gives way to whoever comes. So one who connects
//! again and again, or says nothing, keeps nobody out.

mod conversation;
mod standing;
mod strangers;

use std::{io, net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use futures::Stream;
use keelway_pki::EnrollmentToken;
use keelway_tls::{TlsError, TlsFiles, Told, greet};
use tokio::{
    net::{TcpListener, TcpSocket, TcpStream},
    sync::{Semaphore, mpsc},
};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::Server as Http;

use crate::{
    enrollment::{EnrollingError, IdentityFolder, RefusedEnrollment},
    report::chain_text,
};
use conversation::Conversation;
pub(crate) use standing::Standing;
use strangers::Strangers;

/// The common name of whoever drives the machines of an installation, which is the organization of its certificate.
pub const DRIVER: &str = "keelway:driver";

/// Connections that wait for the agent: with fewer, one of the driver's is lost in a burst of others and comes a second later.
const WAITING: u32 = 4096;
/// How long it may take until an answer begins: longer than whatever the agent waits for itself, such as a disk (120 s).
const ANSWER: Duration = Duration::from_secs(180);
/// Questions of one conversation at the same time.
const QUESTIONS: u32 = 64;
/// What is on its way to the agent and not read yet, in bytes: of one question, and of a conversation.
const WINDOWS: [u32; 2] = [1 << 18, 1 << 20];
/// The largest frame of HTTP/2, and the largest list of headers, in bytes.
const FRAME: u32 = 1 << 14;

/// Why there is no port.
#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    /// It cannot be had.
    #[error("cannot listen on {address}")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Nobody can be shown who the agent is, or be known.
    #[error("cannot use the agent's certificates")]
    Tls(#[from] TlsError),
    /// What it was given cannot be read.
    #[error("cannot read the agent's identity in {}", path.display())]
    Folder {
        /// Where it is kept.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It was given none, and has no way to one.
    #[error(
        "the agent has no identity in {}: give --enroll with a new token of `keelway hypervisor enroll`, or --tls-certificate",
        .0.display()
    )]
    Nobody(PathBuf),
    /// It cannot be enrolled.
    #[error(transparent)]
    Enrolling(#[from] EnrollingError),
}

/// How much of the agent others can take.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Connections of strangers.
    pub strangers: usize,
    /// Connections of who may speak.
    pub conversations: usize,
    /// How long one of them may be silent before it is asked whether it is there, and then until it answers.
    pub silence: Duration,
}

impl Default for Bounds {
    /// A driver has a connection or two.
    fn default() -> Self {
        Self { strangers: 256, conversations: 64, silence: Duration::from_secs(20) }
    }
}

/// A port that takes connections of the driver.
#[derive(Debug)]
pub struct Network {
    listener: TcpListener,
    standing: Arc<Standing>,
    bounds: Bounds,
}

impl Network {
    /// Listens on an address, as whom the files say.
    pub fn bind(address: SocketAddr, files: TlsFiles, bounds: Bounds) -> Result<Self, NetworkError> {
        Self::standing(address, Standing::of_files(files)?, bounds)
    }

    /// The same as whom the agent was enrolled; with a token that was not used yet, it waits to be enrolled.
    pub fn enrolled(
        address: SocketAddr,
        folder: IdentityFolder,
        token: Option<EnrollmentToken>,
        bounds: Bounds,
    ) -> Result<Self, NetworkError> {
        Self::standing(address, Standing::of_folder(folder, token)?, bounds)
    }

    fn standing(address: SocketAddr, standing: Standing, bounds: Bounds) -> Result<Self, NetworkError> {
        let listener = listen(address).map_err(|source| NetworkError::Listen { address, source })?;
        Ok(Self { listener, standing: Arc::new(standing), bounds })
    }

    /// As whom the agent answers.
    pub(super) fn stands_as(&self) -> Arc<Standing> {
        Arc::clone(&self.standing)
    }

    /// Where it listens.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// How those who may speak are spoken with. A connection whose other side is gone, or does not read, ends after two silences.
    pub(super) fn http(&self) -> Http {
        let [question, conversation] = WINDOWS;
        Http::builder()
            .timeout(ANSWER)
            .max_concurrent_streams(QUESTIONS)
            .initial_stream_window_size(question)
            .initial_connection_window_size(conversation)
            .max_frame_size(FRAME)
            .http2_max_header_list_size(FRAME)
            .http2_keepalive_interval(Some(self.bounds.silence))
            .http2_keepalive_timeout(Some(self.bounds.silence))
    }

    /// Connections of those who may, until they may no more or the agent stops.
    pub(super) fn conversations(self, stop: CancellationToken) -> impl Stream<Item = io::Result<Conversation>> {
        let (found, conversations) = mpsc::channel(1);
        tokio::spawn(receive(self, found, stop));
        ReceiverStream::new(conversations)
    }
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // An agent that begins anew has its port at once.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(WAITING)
}

/// Receives whoever comes, for as long as anybody waits for conversations.
async fn receive(network: Network, found: mpsc::Sender<io::Result<Conversation>>, stop: CancellationToken) {
    let Network { listener, standing, bounds } = network;
    let places = Arc::new(Semaphore::new(bounds.conversations));
    let reception = Arc::new(Reception { standing, places, told: Told::default(), found, stop });
    let mut strangers = Strangers::new(bounds.strangers);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = reception.found.closed() => return,
        };
        let Ok((stream, from)) = accepted else {
            // Only a shortage of descriptors or memory comes here, and that takes a moment to pass.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        strangers.make_room().await;
        strangers.take(Arc::clone(&reception).meet(stream, from));
    }
}

/// Where strangers show who they are.
struct Reception {
    standing: Arc<Standing>,
    places: Arc<Semaphore>,
    told: Told,
    found: mpsc::Sender<io::Result<Conversation>>,
    stop: CancellationToken,
}

impl Reception {
    async fn meet(self: Arc<Self>, stream: TcpStream, from: SocketAddr) {
        // What is not set costs some milliseconds.
        let _ = stream.set_nodelay(true);
        let greeted = match greet(stream).await {
            Ok(greeted) => greeted,
            Err(error) => return self.refuse(from, &chain_text(&error)),
        };
        if greeted.is_to_enroll() {
            return match self.standing.enroll(greeted).await {
                Ok(()) => {}
                Err(error) => self.refuse(from, &chain_text(&error)),
            };
        }
        let Some(server) = self.standing.server() else {
            return self.refuse(from, &RefusedEnrollment::NotYet.to_string());
        };
        let stream = match server.finish(greeted).await {
            Ok(stream) => stream,
            Err(error) => return self.refuse(from, &chain_text(&error)),
        };
        let Ok(place) = Arc::clone(&self.places).try_acquire_owned() else {
            return self.refuse(from, "there are too many conversations");
        };
        let conversation = Conversation::new(stream, from, server, self.stop.clone(), place);
        // Nobody waits for it where the agent stops.
        let _ = self.found.send(Ok(conversation)).await;
    }

    /// Strangers decide how often it happens.
    fn refuse(&self, from: SocketAddr, why: &str) {
        if self.told.has_room() {
            tracing::warn!(%from, why, "refused a connection");
        }
    }
}
