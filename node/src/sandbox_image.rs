//! The image of sandboxes. containerd pulls it with its first pod, and no pod starts without it, so a join checks first whether containerd has it, or can
//! pull it.

use std::time::Duration;

use keelway_base::error_chain::ErrorChain;
use keelway_cri::{CriError, CriRuntime, Login};
use tokio::time::timeout;

use crate::checks::CheckFault;

/// What the user can do if the image cannot be pulled.
const HELP: &str = "allow this machine to reach the registry, pass credentials with --registry-config, or set an image that it can pull in containerd's configuration: `sandbox` of [plugins.'io.containerd.cri.v1.images'.pinned_images], or `sandbox_image` of [plugins.\"io.containerd.grpc.v1.cri\"] in containerd 1.7";

/// The outcome of the check.
#[derive(Debug)]
pub(crate) enum SandboxImageCheck {
    /// containerd has the image, or its name is not known.
    Present,
    /// containerd did not have this image before.
    Pulled(String),
    /// containerd cannot pull the image.
    Failed(CheckFault),
    /// The registry did not send the image in time.
    Slow(CheckFault),
}

impl SandboxImageCheck {
    /// Pulls the image if containerd does not have it.
    pub(crate) async fn of(runtime: &CriRuntime, image: &str, login: Option<Login<'_>>, limit: Duration) -> Self {
        match timeout(limit, pull(runtime, image, login)).await {
            Ok(Ok(false)) => Self::Present,
            Ok(Ok(true)) => Self::Pulled(image.to_owned()),
            Ok(Err(error)) => Self::Failed(fault(image, &ErrorChain(&error).to_string())),
            Err(_) => Self::Slow(fault(image, &format!("the registry did not send it within {} s", limit.as_secs()))),
        }
    }

    /// Returns the fault, if there is one.
    pub(crate) fn fault(&self) -> Option<&CheckFault> {
        match self {
            Self::Present | Self::Pulled(_) => None,
            Self::Failed(fault) | Self::Slow(fault) => Some(fault),
        }
    }

    /// Removes what the check pulled, because the machine does not join. Otherwise `leave` removes it: containerd has marked it as pinned.
    pub(crate) async fn undo(self, runtime: &CriRuntime) {
        let Self::Pulled(image) = self else { return };
        if let Err(error) = runtime.remove_image(&image).await {
            tracing::warn!("cannot remove the image {image}, which the check pulled: {}", ErrorChain(&error));
        }
    }
}

pub(crate) fn fault(image: &str, why: &str) -> CheckFault {
    CheckFault::new(format!("containerd has no image for sandboxes, and cannot pull {image}: {why}"), HELP)
}

/// Returns whether the image was pulled.
async fn pull(runtime: &CriRuntime, image: &str, login: Option<Login<'_>>) -> Result<bool, CriError> {
    if runtime.image_status(image).await?.is_some() {
        return Ok(false);
    }
    runtime.pull_image(image, login).await.map(|_| true)
}

#[cfg(test)]
mod tests {
    use keelway_cri::{
        Deadlines,
        fake::{CallFault, Fake},
    };

    use super::*;

    const IMAGE: &str = "registry.k8s.io/pause:3.10.2";
    const LIMIT: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn an_image_that_cannot_be_pulled_is_a_fault() {
        let fake = Fake::new();
        let runtime = fake.runtime(Deadlines::default());
        let check = SandboxImageCheck::of(&runtime, IMAGE, None, LIMIT).await;
        let fault = check.fault().unwrap();
        assert!(fault.problem.contains(IMAGE) && fault.problem.contains("not found"), "{fault}");
        assert!(fault.help.contains("--registry-config") && fault.help.contains("pinned_images"), "{fault}");
    }

    #[tokio::test]
    async fn an_image_that_was_pulled_is_removed_if_the_machine_does_not_join() {
        let fake = Fake::new();
        fake.add_to_registry(IMAGE);
        let runtime = fake.runtime(Deadlines::default());
        let has = async || runtime.image_status(IMAGE).await.unwrap().is_some();
        let check = SandboxImageCheck::of(&runtime, IMAGE, None, LIMIT).await;
        assert!(check.fault().is_none() && has().await);
        check.undo(&runtime).await;
        assert!(!has().await);
        // The owner's own image stays.
        fake.add_image(IMAGE);
        let check = SandboxImageCheck::of(&runtime, IMAGE, None, LIMIT).await;
        assert!(check.fault().is_none());
        check.undo(&runtime).await;
        assert!(has().await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_registry_that_does_not_respond_is_a_fault() {
        let fake = Fake::new();
        fake.add_to_registry(IMAGE);
        fake.inject(1, CallFault::Hang);
        let runtime = fake.runtime(Deadlines::default());
        let check = SandboxImageCheck::of(&runtime, IMAGE, None, LIMIT).await;
        assert!(matches!(&check, SandboxImageCheck::Slow(fault) if fault.problem.contains("within 60 s")), "{check:?}");
    }
}
