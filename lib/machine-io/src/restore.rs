//! Makes the data of an etcd member from a snapshot: the snapshot is stored beside the data directory, a program of the member's image restores it
//! there, and the result is moved into the data directory in one step. A member therefore never has a part of the data.

use std::{io, time::Duration};

use futures::{Stream, StreamExt, future::pending};
use keelway_api::{
    machine::{ETCD_MEMBER, MachineState, Mount, Pod, RESTORE, RESTORE_MOUNT, RESTORED_DATA, RESTORED_SNAPSHOT},
    name::PodName,
};
use keelway_cri::{CriContainerState, CriError, EventKind, EventMessage, EventSubscription};
use keelway_machine::{
    action::{NewContainer, NewSandbox, PodAction, WantedImage},
    layout::{MachineDirectory, cgroup_parent, log_name, pod_directory},
};
use tokio::{io::AsyncWriteExt, time::timeout};

use crate::{
    execute::{ActionExecutor, CreatedIds, EffectError, LocalExecutor},
    files::{MachineFileError, MachineFiles},
    local::{FilesError, LocalMachine},
    observe::ObserveError,
};

/// The data directory of an etcd member, in its pod's directory.
const DATA: &str = "data";
/// The name of the container, and the digest of its sandbox. No pod of a config has this digest, so that a sandbox that a crash leaves is replaced.
const CONTAINER: &str = "restore";
/// How long the next part of a snapshot may take.
const PART: Duration = Duration::from_secs(60);
/// How long the program may take. The largest database has 8 GiB.
const WHOLE: Duration = Duration::from_secs(1200);
/// The longest time between two looks at the container. The runtime does not confirm a subscription to its events, and an event can be lost.
const LOOK: Duration = Duration::from_secs(5);
/// How much of the end of the program's log an error shows, in bytes.
const LOG_END: usize = 600;

/// How the data of a member is made.
#[derive(Debug, Clone, Copy)]
pub struct MachineRestore<'a> {
    /// The member.
    pub name: &'a PodName,
    /// Its pod, which does not start yet.
    pub pod: &'a Pod,
    /// The program and its arguments.
    pub command: &'a [String],
    /// The length of the snapshot.
    pub length: u64,
}

/// The data of a member was not made. Its data directory is as it was.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// The machine cannot be observed.
    #[error(transparent)]
    Observe(#[from] ObserveError),
    /// The pod starts on its own.
    #[error("{0} may start already: its data is not replaced")]
    MayStart(PodName),
    /// The data directory has no mark, or other contents.
    #[error("the data directory of {0} is not empty, or has no mark")]
    NotEmpty(PodName),
    /// The pod has no container.
    #[error("{0} has no container")]
    NoContainer(PodName),
    /// The snapshot did not arrive.
    #[error("the snapshot did not arrive")]
    Broken(#[source] io::Error),
    /// The snapshot did not arrive in time.
    #[error("no part of the snapshot arrived within {} s", PART.as_secs())]
    Silent,
    /// The snapshot has another length.
    #[error("the snapshot has {found} bytes instead of {expected}")]
    Length {
        /// The length of the order.
        expected: u64,
        /// The length that arrived.
        found: u64,
    },
    /// The program failed.
    #[error("the program that restores the snapshot failed with exit code {code}: {log}")]
    Failed {
        /// Its exit code.
        code: i32,
        /// The end of its log.
        log: String,
    },
    /// The program did not end.
    #[error("the program that restores the snapshot did not end within {} s", WHOLE.as_secs())]
    Endless,
    /// A file could not be used.
    #[error(transparent)]
    Files(#[from] FilesError),
    /// The runtime did not run the program.
    #[error(transparent)]
    Effect(#[from] EffectError),
}

impl From<CriError> for RestoreError {
    fn from(error: CriError) -> Self {
        Self::Effect(error.into())
    }
}

impl LocalMachine {
    /// Makes the data of a member. It can be repeated until it succeeds: the remains of an earlier attempt are removed first.
    pub async fn restore(
        &self,
        order: MachineRestore<'_>,
        parts: impl Stream<Item = io::Result<Vec<u8>>> + Send,
    ) -> Result<(), RestoreError> {
        let state = self.observe().await?;
        if let Some(error) = refusal(&order, &state) {
            return Err(error);
        }
        self.remove_remains(order.name, &state).await?;
        let restored = async {
            self.store_snapshot(&order, parts).await?;
            self.run_to_completion(&order, &state).await?;
            let name = order.name.clone();
            Ok(self.with_files(move |files| files.move_restored(&name)).await?)
        };
        let restored = restored.await;
        let cleaned = self.remove_remains(order.name, &self.observe().await?).await;
        restored.and(cleaned)
    }

    /// Removes the sandboxes of the pod and the snapshot.
    async fn remove_remains(&self, name: &PodName, state: &MachineState) -> Result<(), RestoreError> {
        for sandbox in state.sandboxes.iter().filter(|sandbox| sandbox.pod == *name) {
            self.runtime.stop_pod_sandbox(&sandbox.id).await?;
            self.runtime.remove_pod_sandbox(&sandbox.id).await?;
        }
        let path = format!("{}/{RESTORE}", pod_directory(name));
        Ok(self.with_files(move |files| files.remove(&path)).await?)
    }

    async fn store_snapshot(
        &self,
        order: &MachineRestore<'_>,
        parts: impl Stream<Item = io::Result<Vec<u8>>> + Send,
    ) -> Result<(), RestoreError> {
        let path = format!("{}/{RESTORE}", pod_directory(order.name));
        let user = order.pod.user;
        let create = move |files: MachineFiles<'_>| {
            files.make_directory(&MachineDirectory::of_data(path.clone(), user))?;
            files.create_file(&format!("{path}/{RESTORED_SNAPSHOT}"), user)
        };
        let file = self.with_files(create).await?;
        let mut file = tokio::fs::File::from_std(file);
        let (mut parts, mut found) = (std::pin::pin!(parts), 0_u64);
        while let Some(part) = timeout(PART, parts.next()).await.map_err(|_| RestoreError::Silent)? {
            let part = part.map_err(RestoreError::Broken)?;
            found += part.len() as u64;
            if found > order.length {
                break;
            }
            file.write_all(&part).await.map_err(write_error)?;
        }
        file.sync_all().await.map_err(write_error)?;
        let expected = order.length;
        if found == expected { Ok(()) } else { Err(RestoreError::Length { expected, found }) }
    }

    async fn run_to_completion(&self, order: &MachineRestore<'_>, state: &MachineState) -> Result<(), RestoreError> {
        let steps = steps(order, state).ok_or_else(|| RestoreError::NoContainer(order.name.clone()))?;
        let (executor, mut made) = (LocalExecutor::new(self), CreatedIds::default());
        for step in &steps {
            executor.for_pod(order.name, step, &mut made).await?;
        }
        let id = made.containers.get(CONTAINER).ok_or(EffectError::OutOfOrder)?;
        let code = timeout(WHOLE, self.exit_code(id)).await.map_err(|_| RestoreError::Endless)??;
        if code == 0 {
            return Ok(());
        }
        let name = order.name.clone();
        let log = self.with_files(move |files| files.log_end(&name, &log_name(CONTAINER, 0), LOG_END)).await;
        Err(RestoreError::Failed { code, log: log.unwrap_or_default() })
    }

    async fn exit_code(&self, container: &str) -> Result<i32, CriError> {
        let mut events = self.runtime.events();
        loop {
            let status = self.runtime.container_status(container).await?;
            if status.state == CriContainerState::Exited {
                return Ok(status.exit.map_or(0, |exit| exit.code));
            }
            let _ = timeout(LOOK, stops(&mut events, container)).await;
        }
    }
}

/// Returns once an event may concern the end of the container. Without a stream of events, it never does.
async fn stops(events: &mut EventSubscription, container: &str) {
    while let Some(Ok(message)) = events.next().await {
        match message {
            EventMessage::Event(event) if event.id != container || event.kind != EventKind::Stopped => {}
            EventMessage::Event(_) | EventMessage::Missed(_) => return,
        }
    }
    pending::<()>().await;
}

fn refusal(order: &MachineRestore<'_>, state: &MachineState) -> Option<RestoreError> {
    if !order.pod.start.waits() {
        return Some(RestoreError::MayStart(order.name.clone()));
    }
    let data = state.data_of(order.name, DATA);
    (!data.marked || data.used).then(|| RestoreError::NotEmpty(order.name.clone()))
}

/// The steps that run the program in a sandbox of the pod. None: the pod has no container.
fn steps(order: &MachineRestore<'_>, state: &MachineState) -> Option<Vec<PodAction>> {
    let (pod, member) = (order.pod, order.pod.containers.last()?);
    let sandbox = NewSandbox {
        attempt: 0,
        digest: CONTAINER.to_owned(),
        cgroup_parent: cgroup_parent(&order.name.cluster, state.runtime.cgroup_driver),
        user: pod.user,
    };
    let mount = Mount { source: RESTORE.to_owned(), target: RESTORE_MOUNT.to_owned(), read_only: false };
    let mut container = member.clone();
    CONTAINER.clone_into(&mut container.name);
    container.command = order.command.to_vec();
    container.mounts = vec![mount];
    container.liveness = None;
    let image = |name: &String| {
        PodAction::EnsureImage(WantedImage { name: name.clone(), credentials: pod.registries.get(name).cloned() })
    };
    let new = NewContainer { sandbox_id: None, sandbox: sandbox.clone(), attempt: 0, container };
    Some(vec![
        image(&pod.pause_image),
        image(&member.image),
        PodAction::CreateSandbox(sandbox),
        PodAction::CreateContainer(Box::new(new)),
        PodAction::StartContainer { id: None, name: CONTAINER.to_owned() },
    ])
}

fn write_error(error: io::Error) -> RestoreError {
    FilesError::from(MachineFileError::write(RESTORED_SNAPSHOT)(error)).into()
}

impl MachineFiles<'_> {
    /// Moves the data that was restored into the member's data directory. The snapshot is removed first, so that no crash leaves it.
    fn move_restored(self, name: &PodName) -> Result<(), MachineFileError> {
        let pod = pod_directory(name);
        self.remove(&format!("{pod}/{RESTORE}/{RESTORED_SNAPSHOT}"))?;
        self.move_directory(&format!("{pod}/{RESTORE}/{RESTORED_DATA}"), &format!("{pod}/{DATA}"), ETCD_MEMBER)
    }
}
