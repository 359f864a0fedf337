//! Doing what was planned. Nothing is decided here.

mod chain;
mod spec;

use std::{collections::BTreeMap, io, path::PathBuf};

use futures::future::join_all;
use keelway_api::name::PodName;
use tokio_util::sync::CancellationToken;

use crate::{
    action::{Action, PodAction},
    haproxy::HaproxyError,
    image::Images,
    local::{FilesError, LocalMachine},
    report::{ApplyReport, Effect, Failure, chain_text},
};
use chain::Chain;

/// Why an action was not done.
#[derive(Debug, thiserror::Error)]
pub enum EffectError {
    /// The runtime did not do it.
    #[error(transparent)]
    Runtime(#[from] keelway_cri::Error),
    /// It was not done on the file system.
    #[error(transparent)]
    Files(#[from] FilesError),
    /// A haproxy did not do it.
    #[error(transparent)]
    Haproxy(#[from] HaproxyError),
    /// An image archive cannot be opened.
    #[error("cannot open the image archive {}", path.display())]
    OpenArchive {
        /// The archive.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// An image archive holds other images than its name says.
    #[error("the image archive {} does not hold {image}", path.display())]
    OtherImage {
        /// The archive.
        path: PathBuf,
        /// The image that was looked for.
        image: String,
    },
    /// The actions are not in an order that `converge` gives.
    #[error("nothing was made before that this could be about")]
    OutOfOrder,
}

pub(crate) async fn execute(
    machine: &LocalMachine,
    actions: Vec<Action>,
    stop: &CancellationToken,
    on_effect: &(dyn Fn(Effect<'_>) + Send + Sync),
) -> ApplyReport {
    let images = Images::new(&machine.runtime, machine.archives.as_deref(), &machine.turns);
    let run = Run { machine, images: &images, stop, on_effect };
    let stages = Stages::of(&actions);
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

/// What is done before all pods, for each pod, and after all pods.
#[derive(Default)]
struct Stages<'a> {
    first: Vec<&'a Action>,
    pods: BTreeMap<&'a PodName, Vec<Step<'a>>>,
    last: Vec<&'a Action>,
}

struct Step<'a> {
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
                    stages.pods.entry(pod).or_default().push(Step { whole, action });
                }
                Action::ForgetCluster(_) | Action::RecordApplied(_) | Action::Leave => {
                    stages.last.push(whole);
                }
            }
        }
        stages
    }
}

struct Run<'a> {
    machine: &'a LocalMachine,
    images: &'a Images<'a>,
    stop: &'a CancellationToken,
    on_effect: &'a (dyn Fn(Effect<'_>) + Send + Sync),
}

impl Run<'_> {
    async fn in_order(&self, actions: &[&Action]) -> ApplyReport {
        let mut report = ApplyReport::default();
        for action in actions {
            self.step(&mut report, action, self.apply_to_machine(action)).await;
        }
        report
    }

    async fn pod(&self, pod: &PodName, steps: &[Step<'_>]) -> ApplyReport {
        let mut chain = Chain::new(self.machine, self.images, pod);
        let mut report = ApplyReport::default();
        for step in steps {
            self.step(&mut report, step.whole, chain.apply(step.action)).await;
        }
        report
    }

    /// One effect, unless one before it failed or execution is to stop.
    async fn step(
        &self,
        report: &mut ApplyReport,
        action: &Action,
        effect: impl Future<Output = Result<(), EffectError>>,
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
                report.failed.push(Failure { action: action.clone(), error });
            }
        }
    }

    async fn apply_to_machine(&self, action: &Action) -> Result<(), EffectError> {
        let action = action.clone();
        let work = move |files: crate::files::Files<'_>| match action {
            Action::WriteOwner(installation) => files.write_owner(&installation),
            Action::ForgetCluster(cluster) => files.forget_cluster(&cluster),
            Action::RecordApplied(applied) => files.record_applied(&applied),
            Action::Leave => files.leave(),
            Action::Pod(..) => Ok(()),
        };
        Ok(self.machine.with_files(work).await?)
    }
}
