//! The client: calls over one channel, each with a deadline.

mod containers;
mod images;
mod sandboxes;

pub use images::Login;

use std::{fmt, io, path::Path, sync::Arc, time::Duration};

use hyper_util::rt::TokioIo;
use k8s_cri::v1::{self, image_service_client::ImageServiceClient, runtime_service_client::RuntimeServiceClient};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::UnixStream,
};
use tonic::{
    Code, Response, Status,
    transport::{Channel, Endpoint},
};

use crate::{
    CriCgroupDriver, CriError, Deadlines, EventSubscription, Operation, RuntimeStatus, RuntimeVersion, events, wire,
};

/// The largest response that is read, in bytes: the limit of the kubelet, and of containerd.
const MAX_ANSWER: usize = 16 << 20;

/// A client of a container runtime that speaks `runtime.v1`. Clones are cheap and share one connection. The first call opens the connection, and a
/// later call opens it again if it broke.
#[derive(Clone)]
pub struct CriRuntime {
    channel: Channel,
    /// Opens another connection to the same runtime. `None` if the caller supplied the channel.
    another: Option<Arc<dyn Fn() -> Channel + Send + Sync>>,
    deadlines: Deadlines,
}

impl fmt::Debug for CriRuntime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CriRuntime").field("deadlines", &self.deadlines).finish_non_exhaustive()
    }
}

impl CriRuntime {
    /// Returns a client of the runtime behind a Unix socket. Connects with the first call, but must run in a tokio runtime.
    pub fn on_socket(path: impl AsRef<Path>, deadlines: Deadlines) -> Result<Self, CriError> {
        let path = path.as_ref().to_owned();
        if !path.is_absolute() {
            return Err(CriError::RelativeSocket { path });
        }
        Ok(Self::dialled_by(move || UnixStream::connect(path.clone()), deadlines))
    }

    /// Returns a client that connects with `dial`, for example to a socket in another mount namespace.
    pub fn dialled_by<F, D, S>(dial: F, deadlines: Deadlines) -> Self
    where
        F: Fn() -> D + Send + Sync + 'static,
        D: Future<Output = io::Result<S>> + Send + 'static,
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let dial = Arc::new(dial);
        let connect = move || {
            let dial = Arc::clone(&dial);
            let connector = tower::service_fn(move |_: http::Uri| {
                let dialling = dial();
                async { dialling.await.map(TokioIo::new) }
            });
            // The connector ignores the name. gRPC servers refuse an authority that is a path.
            Endpoint::from_static("http://localhost").connect_with_connector_lazy(connector)
        };
        Self { channel: connect(), another: Some(Arc::new(connect)), deadlines }
    }

    /// Returns a client of the same runtime with a connection of its own, so that a slow reader on one connection does not block calls on the other.
    /// If the caller supplied the channel, both clients share it.
    #[must_use]
    pub fn on_own_connection(&self) -> Self {
        match &self.another {
            Some(connect) => Self { channel: connect(), ..self.clone() },
            None => self.clone(),
        }
    }

    /// Returns a client that uses an existing channel, such as one over mTLS.
    #[must_use]
    pub fn on_channel(channel: Channel, deadlines: Deadlines) -> Self {
        Self { channel, another: None, deadlines }
    }

    /// Returns the channel, for calls of other APIs on the same connection.
    #[must_use]
    pub fn channel(&self) -> Channel {
        self.channel.clone()
    }

    /// Returns the name and version of the runtime.
    pub async fn version(&self) -> Result<RuntimeVersion, CriError> {
        let request = v1::VersionRequest { version: "v1".into() };
        let answer = self.query("Version", "", self.runtime_service().version(request)).await?;
        Ok(RuntimeVersion {
            runtime: answer.runtime_name,
            runtime_version: answer.runtime_version,
            api_version: answer.runtime_api_version,
        })
    }

    /// Returns the runtime's conditions and its cgroup driver. If the runtime does not implement the query, the driver is cgroupfs.
    pub async fn status(&self) -> Result<RuntimeStatus, CriError> {
        let request = v1::StatusRequest { verbose: false };
        let answer = self.query("Status", "", self.runtime_service().status(request)).await?;
        let conditions = answer.status.unwrap_or_default().conditions;
        Ok(RuntimeStatus {
            conditions: conditions.into_iter().map(wire::condition).collect(),
            cgroup_driver: self.cgroup_driver().await?,
        })
    }

    async fn cgroup_driver(&self) -> Result<CriCgroupDriver, CriError> {
        let request = v1::RuntimeConfigRequest {};
        match self.query("RuntimeConfig", "", self.runtime_service().runtime_config(request)).await {
            Ok(answer) => Ok(match answer.linux.unwrap_or_default().cgroup_driver() {
                v1::CgroupDriver::Systemd => CriCgroupDriver::Systemd,
                v1::CgroupDriver::Cgroupfs => CriCgroupDriver::Cgroupfs,
            }),
            Err(CriError::Refused { answer, .. }) if answer.code() == Code::Unimplemented => {
                Ok(CriCgroupDriver::Cgroupfs)
            }
            Err(error) => Err(error),
        }
    }

    /// Subscribes to events of sandboxes and containers. See [`EventSubscription`] for its guarantees.
    #[must_use]
    pub fn events(&self) -> EventSubscription {
        events::subscribe(self.runtime_service(), self.deadlines.look)
    }

    pub(crate) fn runtime_service(&self) -> RuntimeServiceClient<Channel> {
        RuntimeServiceClient::new(self.channel.clone()).max_decoding_message_size(MAX_ANSWER)
    }

    fn image_service(&self) -> ImageServiceClient<Channel> {
        ImageServiceClient::new(self.channel.clone()).max_decoding_message_size(MAX_ANSWER)
    }

    pub(crate) async fn query<T>(
        &self,
        method: &'static str,
        object: &str,
        answer: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, CriError> {
        within(self.deadlines.look, Operation::new(method, object), answer).await
    }

    async fn change<T>(
        &self,
        method: &'static str,
        object: &str,
        answer: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, CriError> {
        within(self.deadlines.change, Operation::new(method, object), answer).await
    }
}

/// Awaits a response. A call that is dropped at the deadline is also cancelled in the runtime, if the runtime still reads the connection.
pub(crate) async fn within<T>(
    deadline: Duration,
    operation: Operation,
    answer: impl Future<Output = Result<Response<T>, Status>>,
) -> Result<T, CriError> {
    match tokio::time::timeout(deadline, answer).await {
        Ok(Ok(answer)) => Ok(answer.into_inner()),
        Ok(Err(status)) => Err(CriError::from_status(operation, deadline, status)),
        Err(_) => Err(CriError::TimedOut { operation, deadline }),
    }
}

/// Makes "not found" a success where the caller removes or stops something. CRI requires this of runtimes, but not all comply.
fn gone_is_fine<T: Default>(answer: Result<T, CriError>) -> Result<T, CriError> {
    match answer {
        Err(CriError::NotFound { .. }) => Ok(T::default()),
        other => other,
    }
}

/// Returns the process id from the verbose part of a status. containerd and CRI-O both write it there as JSON.
fn pid_of(info: &std::collections::HashMap<String, String>) -> Option<u32> {
    let info: serde_json::Value = serde_json::from_str(info.get("info")?).ok()?;
    let pid = u32::try_from(info.get("pid")?.as_u64()?).ok()?;
    (pid > 0).then_some(pid)
}
