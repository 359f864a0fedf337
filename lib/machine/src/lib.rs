//! One machine, decided. [`converge`](converge::converge) plans the [`Action`](action::Action)s between the state of a machine and its config,
//! [`Supervisor`](supervise::Supervisor) decides what an agent restarts, and [`refusal`] which configs a machine accepts. It does no IO.

pub mod action;
pub mod converge;
pub mod layout;
pub mod leader;
pub mod log;
pub mod look_interval;
pub mod refusal;
pub mod report;
pub mod supervise;
