//! Where a command is interrupted, and with which signal.

use keelway_cri::fake::SignalTiming;
use keelway_e2e::{
    failpoint::{self, FailpointSelector},
    fake_machine::{SignalOrder, SignalTrigger},
};
use rustix::process::{Pid, Signal};
use tokio::process::Child;

use crate::world::{Ended, World, end};

/// A point in a run, and the signal that is sent there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cut {
    pub(crate) point: Point,
    pub(crate) signal: Signal,
}

/// A point in a run. Points count from 1.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Point {
    /// A call to the machine with this index that changes something.
    Call(usize, usize, SignalTiming),
    /// A moment before or after a save or an effect, in the order in which the program reaches them.
    Failpoint(usize),
    /// An object that is stored in the cluster, before the response.
    Stored(usize),
}

impl World {
    /// Reconciles these documents until the signal.
    pub(crate) async fn reconcile_until(&mut self, cut: Cut, documents: &str) -> Ended {
        let Cut { point, signal } = cut;
        match point {
            Point::Call(machine, nth, when) => {
                self.machines[machine].order(SignalOrder { signal, moment: SignalTrigger::Call(nth, when) }).await;
                self.keelway(&["reconcile"], documents).await
            }
            Point::Stored(nth) => {
                let child = self.spawn(&["reconcile"]);
                let order = SignalOrder { signal, moment: SignalTrigger::Stored(nth, pid(&child)) };
                self.machines[0].order(order).await;
                end(child, documents).await
            }
            Point::Failpoint(nth) => {
                let cut = failpoint::FailpointSignal { signal, at: FailpointSelector::Nth(nth) };
                self.keelway_until(Some(&cut), &["reconcile"], documents).await
            }
        }
    }
}

fn pid(child: &Child) -> Pid {
    Pid::from_raw(child.id().unwrap().try_into().unwrap()).unwrap()
}
