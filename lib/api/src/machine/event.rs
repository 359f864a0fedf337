//! Events of a machine.

use serde::{Deserialize, Serialize};

use crate::{jiff::Timestamp, name::PodName};

/// An event of a machine, which occurred once or several times. Its fields correspond to those of Kubernetes' `core/v1` Event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MachineEvent {
    /// The component, or `None` if the event concerns the machine itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<PodName>,
    /// The container, or empty if the event concerns none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub container: String,
    /// Whether a person should react.
    pub warning: bool,
    /// One word: see the constants in [`reason`].
    pub reason: String,
    /// A text for people.
    pub message: String,
    /// The number of occurrences.
    pub count: u32,
    /// The time of the first occurrence.
    pub first: Timestamp,
    /// The time of the last occurrence.
    pub last: Timestamp,
}

/// Reasons of events.
pub mod reason {
    /// A container was started.
    pub const STARTED: &str = "Started";
    /// A container was stopped, because it is to be replaced or because its liveness check failed.
    pub const KILLING: &str = "Killing";
    /// A container exited.
    pub const EXITED: &str = "Exited";
    /// The kernel killed a container that exceeded its memory limit.
    pub const OOM_KILLED: &str = "OOMKilled";
    /// The sandbox of a component exited.
    pub const SANDBOX_ENDED: &str = "SandboxEnded";
    /// A container failed its liveness check.
    pub const UNHEALTHY: &str = "Unhealthy";
    /// A container or sandbox exited too often and is restarted later.
    pub const BACK_OFF: &str = "BackOff";
    /// An action failed.
    pub const FAILED: &str = "Failed";
    /// The agent fetched an image that the next version of a component needs.
    pub const PULLED: &str = "Pulled";
    /// The agent removed an image that it had fetched and that nothing used any more.
    pub const IMAGE_REMOVED: &str = "ImageRemoved";
    /// The disk is full.
    pub const DISK_PRESSURE: &str = "DiskPressure";
    /// The container runtime of the machine does not respond.
    pub const RUNTIME_NOT_ANSWERING: &str = "RuntimeNotAnswering";
    /// A problem of the machine no longer exists.
    pub const RECOVERED: &str = "Recovered";

    /// All reasons, each with its meaning.
    pub const ALL: &[(&str, &str)] = &[
        (STARTED, "a container was started"),
        (KILLING, "a container was stopped, because it is to be replaced or because its liveness check failed"),
        (EXITED, "a container exited"),
        (OOM_KILLED, "the kernel killed a container that exceeded its memory limit"),
        (SANDBOX_ENDED, "the sandbox of a component exited"),
        (UNHEALTHY, "a container failed its liveness check"),
        (BACK_OFF, "a container or sandbox exited too often and is restarted later"),
        (FAILED, "an action failed"),
        (PULLED, "the agent fetched an image that the next version of a component needs"),
        (IMAGE_REMOVED, "the agent removed an image that it had fetched and that nothing used any more"),
        (DISK_PRESSURE, "the disk is full"),
        (RUNTIME_NOT_ANSWERING, "the container runtime of the machine does not respond"),
        (RECOVERED, "a problem of the machine no longer exists"),
    ];
}
