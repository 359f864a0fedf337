//! What happened on a machine.

use serde::{Deserialize, Serialize};

use crate::{jiff::Timestamp, name::PodName};

/// Something that happened on a machine, once or many times. The words are those of Kubernetes' `core/v1` Event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MachineEvent {
    /// The component that it is about; the machine itself where there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<PodName>,
    /// The container that it is about; empty where it is none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub container: String,
    /// Whether somebody should look.
    pub warning: bool,
    /// One word: see the constants.
    pub reason: String,
    /// In words for people.
    pub message: String,
    /// How often it happened.
    pub count: u32,
    /// When it happened first.
    pub first: Timestamp,
    /// When it happened last.
    pub last: Timestamp,
}

/// Reasons of events.
pub mod reason {
    /// A container was started.
    pub const STARTED: &str = "Started";
    /// A container was stopped, because it is to be replaced, or because it gave no answer.
    pub const KILLING: &str = "Killing";
    /// A container ended.
    pub const EXITED: &str = "Exited";
    /// A container needed more memory than it may have, and the kernel ended it.
    pub const OOM_KILLED: &str = "OOMKilled";
    /// The sandbox of a component ended.
    pub const SANDBOX_ENDED: &str = "SandboxEnded";
    /// A container did not answer its liveness check.
    pub const UNHEALTHY: &str = "Unhealthy";
    /// Something ended too often, and is started again later.
    pub const BACK_OFF: &str = "BackOff";
    /// Something could not be done.
    pub const FAILED: &str = "Failed";
    /// An image that the agent had fetched was removed, as nothing used it any more.
    pub const IMAGE_REMOVED: &str = "ImageRemoved";
    /// The disk is full.
    pub const DISK_PRESSURE: &str = "DiskPressure";
    /// The machine's container runtime gives no answer.
    pub const RUNTIME_NOT_ANSWERING: &str = "RuntimeNotAnswering";
    /// What was wrong with the machine is over.
    pub const RECOVERED: &str = "Recovered";

    /// Each with what it means.
    pub const ALL: &[(&str, &str)] = &[
        (STARTED, "a container was started"),
        (KILLING, "a container was stopped, because it is to be replaced, or because it gave no answer"),
        (EXITED, "a container ended"),
        (OOM_KILLED, "a container needed more memory than it may have, and the kernel ended it"),
        (SANDBOX_ENDED, "the sandbox of a component ended"),
        (UNHEALTHY, "a container did not answer its liveness check"),
        (BACK_OFF, "something ended too often, and is started again later"),
        (FAILED, "something could not be done"),
        (IMAGE_REMOVED, "an image that the agent had fetched was removed, as nothing used it any more"),
        (DISK_PRESSURE, "the disk is full"),
        (RUNTIME_NOT_ANSWERING, "the machine's container runtime gives no answer"),
        (RECOVERED, "what was wrong with the machine is over"),
    ];
}
