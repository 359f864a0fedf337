//! Imports image archives into containerd over its own API, because CRI can only pull.
//!
//! The archive is sent to containerd's transfer service through a stream of its streaming service. The service limits how much may be sent with
//! window updates.

use std::{
    process,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, SystemTime},
};

use containerd_client::{
    services::v1::{
        CreateRequest, DeleteRequest, GetImageRequest, StreamInit, TransferOptions, TransferRequest,
        images_client::ImagesClient, leases_client::LeasesClient, streaming_client::StreamingClient,
        transfer_client::TransferClient,
    },
    to_any,
    types::{
        Platform,
        transfer::{Data, ImageImportStream, ImageReference, ImageStore, Progress, UnpackConfiguration, WindowUpdate},
    },
};
use futures::{SinkExt, channel::mpsc};
use prost::{Message, Name};
use prost_types::{Any, Timestamp};
use tokio::io::{AsyncRead, AsyncReadExt};
use tonic::{Code, Request, Status, Streaming, transport::Channel};

use crate::{CriError, CriRuntime, Operation, containerd::in_namespace};

/// The largest piece of an archive that containerd's own client sends, in bytes.
const PIECE: usize = 32 << 10;
/// How often to query CRI for an image. CRI learns of images by an internal event that clients cannot wait for.
const ASK_EVERY: Duration = Duration::from_millis(20);
/// The name for an image that has only a tag in its archive.
const UNNAMED: &str = "unnamed.invalid/image";

/// Imports an archive, waits until CRI lists its images, and returns their names, sorted.
///
/// `runtime` must be containerd 2 or newer. The archive is a tar as `docker save` writes it, or a tar of an OCI layout, plain or compressed. It must
/// contain full names (`registry.k8s.io/pause:3.10.2`). Existing images of the same names are replaced. The whole import must finish within
/// `deadline`.
pub async fn import<R: AsyncRead + Unpin>(
    runtime: &CriRuntime,
    archive: R,
    deadline: Duration,
) -> Result<Vec<String>, CriError> {
    let import = async {
        let channel = runtime.channel();
        let lease = Lease::take(&channel, deadline).await?;
        let transferred = transfer(&channel, &lease, archive).await;
        lease.release(&channel).await;
        let mut saved = transferred?;
        saved.sort_by(|a, b| a.name.cmp(&b.name));
        for image in &saved {
            known_to_cri(runtime, &channel, image).await?;
        }
        Ok(saved.into_iter().map(|image| image.name).collect())
    };
    match tokio::time::timeout(deadline, import).await {
        Ok(Ok(names)) => Ok(names),
        Ok(Err(ImportFailure::Runtime(status))) => Err(CriError::from_status(operation(), deadline, status)),
        Ok(Err(ImportFailure::Read(source))) => Err(CriError::ReadArchive { operation: operation(), source }),
        Ok(Err(ImportFailure::Cri(error))) => Err(error),
        Ok(Err(ImportFailure::Nameless)) => {
            Err(CriError::Malformed { operation: operation(), what: "the archive contains no image" })
        }
        Err(_) => Err(CriError::TimedOut { operation: operation(), deadline }),
    }
}

fn operation() -> Operation {
    Operation::new("ImportImage", "")
}

enum ImportFailure {
    Runtime(Status),
    Read(std::io::Error),
    Cri(CriError),
    Nameless,
}

impl From<Status> for ImportFailure {
    fn from(status: Status) -> Self {
        Self::Runtime(status)
    }
}

/// The name of an image that containerd saved, and the digest of its manifest.
struct Saved {
    name: String,
    digest: String,
}

/// A containerd lease that protects the streams of an import. The garbage collection may delete streams without a lease at any moment.
struct Lease {
    id: String,
}

impl Lease {
    /// Creates a lease that expires after twice the deadline of the import, in case the client does not release it.
    async fn take(channel: &Channel, deadline: Duration) -> Result<Self, ImportFailure> {
        let id = unique_id("import");
        let end = Timestamp::from(SystemTime::now() + 2 * deadline).to_string();
        let labels = [("containerd.io/gc.expire".to_owned(), end)].into();
        let request = CreateRequest { id: id.clone(), labels };
        LeasesClient::new(channel.clone()).create(in_namespace(request)).await?;
        Ok(Self { id })
    }

    async fn release(self, channel: &Channel) {
        let request = DeleteRequest { id: self.id, sync: false };
        if let Err(status) = LeasesClient::new(channel.clone()).delete(in_namespace(request)).await {
            tracing::debug!(%status, "a lease ends by itself");
        }
    }

    /// Returns a request that runs under the lease.
    fn over<T>(&self, message: T) -> Request<T> {
        let mut request = in_namespace(message);
        if let Ok(id) = self.id.parse() {
            request.metadata_mut().insert("containerd-lease", id);
        }
        request
    }
}

async fn transfer<R: AsyncRead + Unpin>(
    channel: &Channel,
    lease: &Lease,
    archive: R,
) -> Result<Vec<Saved>, ImportFailure> {
    let upload = TransferStream::open(channel, lease, "archive").await?;
    let progress = TransferStream::open(channel, lease, "progress").await?;
    let request = TransferRequest {
        source: Some(to_any(&ImageImportStream { stream: upload.id.clone(), ..Default::default() })),
        destination: Some(to_any(&destination())),
        options: Some(TransferOptions { progress_stream: progress.id.clone() }),
    };
    let mut client = TransferClient::new(channel.clone());
    let transferred = async {
        let transfer = client.transfer(lease.over(request));
        tokio::pin!(transfer);
        tokio::select! {
            answer = &mut transfer => answer?,
            fed = upload.send_archive(archive) => {
                fed?;
                transfer.await?
            }
        };
        Ok::<_, ImportFailure>(())
    };
    let ((), saved) = futures::try_join!(transferred, progress.saved_images())?;
    if saved.is_empty() {
        return Err(ImportFailure::Nameless);
    }
    Ok(saved)
}

fn destination() -> ImageStore {
    // containerd names images of an archive only if the request has a prefix for images that have only a tag.
    let names = ImageReference { name: UNNAMED.into(), is_prefix: true, allow_overwrite: true, ..Default::default() };
    ImageStore {
        extra_references: vec![names],
        unpacks: vec![UnpackConfiguration { platform: Some(platform()), snapshotter: String::new() }],
        ..Default::default()
    }
}

/// The platform to unpack during the import. If an image has another platform, containerd unpacks it with its first container.
fn platform() -> Platform {
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    Platform { os: "linux".into(), architecture: architecture.into(), ..Default::default() }
}

/// Waits until CRI lists the image, and not an older image of the same name.
async fn known_to_cri(runtime: &CriRuntime, channel: &Channel, image: &Saved) -> Result<(), ImportFailure> {
    let mut images = ImagesClient::new(channel.clone());
    let mut ask = tokio::time::interval(ASK_EVERY);
    loop {
        ask.tick().await;
        let Some(known) = runtime.image_status(&image.name).await.map_err(ImportFailure::Cri)? else {
            continue;
        };
        // CRI stores each of its images in containerd also under the id.
        let request = in_namespace(GetImageRequest { name: known.id });
        match images.get(request).await.map(|record| target_digest(record.into_inner())) {
            Ok(digest) if digest == image.digest => return Ok(()),
            Ok(_) => {}
            Err(status) if status.code() == Code::NotFound => {}
            Err(status) => return Err(status.into()),
        }
    }
}

fn target_digest(record: containerd_client::services::v1::GetImageResponse) -> String {
    record.image.and_then(|image| image.target).map(|target| target.digest).unwrap_or_default()
}

/// A stream of containerd's streaming service.
struct TransferStream {
    id: String,
    out: mpsc::Sender<Any>,
    back: Streaming<Any>,
}

impl TransferStream {
    async fn open(channel: &Channel, lease: &Lease, purpose: &str) -> Result<Self, ImportFailure> {
        let id = unique_id(purpose);
        let (mut out, messages) = mpsc::channel(1);
        // Cannot fail: the receiver exists and has room for one message.
        let _ = out.try_send(to_any(&StreamInit { id: id.clone() }));
        let mut client = StreamingClient::new(channel.clone());
        let mut back = client.stream(lease.over(messages)).await?.into_inner();
        // An empty message confirms that the stream is registered under its id.
        back.message().await?;
        Ok(Self { id, out, back })
    }

    /// Sends the archive, and waits until the service has read all of it.
    async fn send_archive<R: AsyncRead + Unpin>(mut self, mut archive: R) -> Result<(), ImportFailure> {
        let mut buffer = vec![0; PIECE];
        let mut room = 0;
        loop {
            while room == 0 {
                match self.back.message().await? {
                    Some(message) => room += window(&message),
                    // The service reads no more. The response of the transfer reports whether it succeeded.
                    None => return Ok(()),
                }
            }
            let length = archive.read(&mut buffer[..room.min(PIECE)]).await.map_err(ImportFailure::Read)?;
            if length == 0 {
                break;
            }
            room -= length;
            let piece = Data { data: buffer[..length].to_vec() };
            if self.out.send(to_any(&piece)).await.is_err() {
                break;
            }
        }
        self.out.close_channel();
        // Dropping the receiving side now would cancel the stream, with the part of the archive that is still in flight.
        while self.back.message().await?.is_some() {}
        Ok(())
    }

    /// Reads the progress stream to its end, and collects the images that containerd reports as saved.
    async fn saved_images(mut self) -> Result<Vec<Saved>, ImportFailure> {
        let mut saved = Vec::new();
        while let Some(message) = self.back.message().await? {
            let Some(progress) = decoded::<Progress>(&message) else {
                continue;
            };
            if progress.event == "saved" {
                let digest = progress.desc.map(|target| target.digest).unwrap_or_default();
                saved.push(Saved { name: progress.name, digest });
            }
        }
        Ok(saved)
    }
}

fn window(message: &Any) -> usize {
    let update = decoded::<WindowUpdate>(message).map_or(0, |window| window.update);
    usize::try_from(update).unwrap_or(0)
}

fn decoded<M: Message + Name + Default>(message: &Any) -> Option<M> {
    let named = message.type_url.ends_with(M::full_name().as_str());
    named.then(|| M::decode(message.value.as_slice()).ok()).flatten()
}

/// Returns an id that is unique in the runtime's namespace, made of the time, the process id and a counter.
fn unique_id(purpose: &str) -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    format!("keelway-{purpose}-{}-{}-{count}", now.as_nanos(), process::id())
}
