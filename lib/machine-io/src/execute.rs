//! Executes planned actions. This module makes no decisions.

mod executor;
mod pod_execution;
mod spec;

use std::{collections::BTreeMap, io, path::PathBuf};

use futures::future::join_all;
use keelway_api::name::PodName;
use keelway_base::error_chain::chain_text;
use keelway_machine::{
    action::{Action, PodAction},
    report::{ActionFailure, ApplyReport, Effect},
};
use tokio_util::sync::CancellationToken;

pub use executor::{ActionExecutor, CreatedIds};

use crate::{haproxy::HaproxyError, local::FilesError, pull::PullError};
pub(crate) use pod_execution::LocalExecutor;

/// An action failed.
#[derive(Debug, thiserror::Error)]
pub enum EffectError {
    /// The call to the runtime failed.
    #[error(transparent)]
    Runtime(#[from] keelway_cri::CriError),
    /// The work on the file system failed.
    #[error(transparent)]
    Files(#[from] FilesError),
    /// The change of a haproxy failed.
    #[error(transparent)]
    Haproxy(#[from] HaproxyError),
    /// An image was not pulled.
    #[error(transparent)]
    Pull(#[from] PullError),
    /// An image archive cannot be opened.
    #[error("cannot open the image archive {}", path.display())]
    OpenArchive {
        /// The path of the archive.
        path: PathBuf,
        /// The error of the open call.
        #[source]
        source: io::Error,
    },
    /// An image archive does not contain the image of its name.
    #[error("the image archive {} does not hold {image}", path.display())]
    OtherImage {
        /// The path of the archive.
        path: PathBuf,
        /// The image that the archive should contain.
        image: String,
    },
    /// The actions are not in the order of `converge`.
    #[error("no earlier action created the object of this action")]
    OutOfOrder,
}

impl EffectError {
    /// Returns whether the runtime may have made the change nevertheless.
    pub(crate) fn leaves_open(&self) -> bool {
        match self {
            Self::Runtime(error) => error.retriable(),
            Self::Pull(error) => error.leaves_open(),
            Self::Files(_)
            | Self::Haproxy(_)
            | Self::OpenArchive { .. }
            | Self::OtherImage { .. }
            | Self::OutOfOrder => false,
        }
    }
}

/// Executes actions in the order of `converge`: first those for the machine, then those of all pods concurrently, then those that follow. A failed
/// action ends the steps of its pod. Once `stop` is cancelled, no further action starts.
pub async fn execute(
    hands: &impl ActionExecutor,
    actions: &[Action],
    stop: &CancellationToken,
    on_effect: &(dyn Fn(Effect<'_>) + Send + Sync),
) -> ApplyReport {
    let run = Execution { hands, stop, on_effect };
    let stages = Stages::of(actions);
    let mut report = run.in_order(&stages.first).await;
    if report.is_complete() {
        let chains = stages.pods.iter().map(|(pod, steps)| run.pod(pod, steps));
        for of_pod in join_all(chains).await {
            report.add(of_pod);
        }
    } else {
        report.left_out.extend(stages.pods.values().flatten().map(|step| step.whole.clone()));
    }
    if report.is_complete() {
        report.add(run.in_order(&stages.last).await);
    } else {
        report.left_out.extend(stages.last.into_iter().cloned());
    }
    report
}

/// Actions before all pods, for each pod, and after all pods.
#[derive(Default)]
struct Stages<'a> {
    first: Vec<&'a Action>,
    pods: BTreeMap<&'a PodName, Vec<PodStep<'a>>>,
    last: Vec<&'a Action>,
}

struct PodStep<'a> {
    whole: &'a Action,
    action: &'a PodAction,
}

impl<'a> Stages<'a> {
    fn of(actions: &'a [Action]) -> Self {
        let mut stages = Self::default();
        for whole in actions {
            match whole {
                Action::WriteOwner(_) => stages.first.push(whole),
                Action::Pod(pod, action) => {
                    stages.pods.entry(pod).or_default().push(PodStep { whole, action });
                }
                Action::ForgetCluster(_) | Action::RecordApplied(_) | Action::Leave => {
                    stages.last.push(whole);
                }
            }
        }
        stages
    }
}

struct Execution<'a, H> {
    hands: &'a H,
    stop: &'a CancellationToken,
    on_effect: &'a (dyn Fn(Effect<'_>) + Send + Sync),
}

impl<H: ActionExecutor> Execution<'_, H> {
    async fn in_order(&self, actions: &[&Action]) -> ApplyReport {
        let mut report = ApplyReport::default();
        for action in actions {
            self.step(&mut report, action, self.hands.on_machine(action)).await;
        }
        report
    }

    async fn pod(&self, pod: &PodName, steps: &[PodStep<'_>]) -> ApplyReport {
        let mut made = CreatedIds::default();
        let mut report = ApplyReport::default();
        for step in steps {
            self.step(&mut report, step.whole, self.hands.for_pod(pod, step.action, &mut made)).await;
        }
        report
    }

    /// Runs one effect, unless an earlier one failed or the execution is stopped.
    async fn step(
        &self,
        report: &mut ApplyReport,
        action: &Action,
        effect: impl Future<Output = Result<(), H::Error>>,
    ) {
        if !report.is_complete() || self.stop.is_cancelled() {
            report.left_out.push(action.clone());
            return;
        }
        (self.on_effect)(Effect::Begins(action));
        match effect.await {
            Ok(()) => {
                report.done.push(action.clone());
                (self.on_effect)(Effect::Done(action));
            }
            Err(error) => {
                let error = chain_text(&error);
                (self.on_effect)(Effect::Failed(action, &error));
                report.failed.push(ActionFailure { action: action.clone(), error });
            }
        }
    }
}
