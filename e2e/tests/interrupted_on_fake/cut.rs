//! Where a command is cut off, and by what.

use std::{fs::File, io::Read, os::fd::OwnedFd, process::Stdio};

use keelway_cri::fake::When;
use keelway_e2e::fake_machine::{Moment, Order};
use rustix::{
    pipe::{PipeFlags, fcntl_setpipe_size, pipe_with},
    process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal},
};
use tokio::process::Child;

use crate::world::{Ended, World, end};

/// A point and the signal that comes there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cut {
    pub(crate) point: Point,
    pub(crate) signal: Signal,
}

/// Points count from 1.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Point {
    /// A call to the machine of this index that changes something.
    Call(usize, usize, When),
    /// An effect that the program said is done, on either machine. It gets no further than the next but one.
    Effect(usize),
    /// An object that is stored in the cluster, before the answer.
    Stored(usize),
}

impl World {
    /// Reconciles these documents until the cut.
    pub(crate) async fn reconcile_until(&mut self, cut: Cut, documents: &str) -> Ended {
        let Cut { point, signal } = cut;
        match point {
            Point::Call(machine, nth, when) => {
                self.machines[machine].order(Order { signal, moment: Moment::Call(nth, when) }).await;
                self.keelway(&["reconcile"], documents).await
            }
            Point::Stored(nth) => {
                let child = self.spawn(&["reconcile"]);
                let order = Order { signal, moment: Moment::Stored(nth, pid(&child)) };
                self.machines[0].order(order).await;
                end(child, documents).await
            }
            Point::Effect(nth) => {
                let (reader, child) = self.spawn_in_step();
                let process = pidfd_open(pid(&child), PidfdFlags::empty()).unwrap();
                let said = tokio::task::spawn_blocking(move || read_until(nth, reader, &process, signal));
                let ended = end(child, documents).await;
                Ended { stderr: said.await.unwrap(), ..ended }
            }
        }
    }

    /// Starts the program so that it says what it does, and waits until it is heard: its stderr is a pipe that holds one
    /// message (pipe(2), "packet" mode).
    fn spawn_in_step(&self) -> (File, Child) {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::DIRECT).unwrap();
        // One page, which is one message.
        fcntl_setpipe_size(&writer, 4096).unwrap();
        let child = self.command(&["-v", "reconcile"]).stderr(Stdio::from(writer)).spawn().unwrap();
        (File::from(reader), child)
    }
}

fn pid(child: &Child) -> Pid {
    Pid::from_raw(child.id().unwrap().try_into().unwrap()).unwrap()
}

/// Reads all messages, and sends the signal when the `nth` effect is done.
fn read_until(nth: usize, mut reader: File, process: &OwnedFd, signal: Signal) -> String {
    let mut said = String::new();
    let mut message = [0; 4096];
    let mut effects = 0;
    loop {
        let length = reader.read(&mut message).unwrap();
        if length == 0 {
            return said;
        }
        let text = str::from_utf8(&message[..length]).unwrap();
        said.push_str(text);
        effects += count_effects(text);
        if effects == nth && is_effect(text) {
            // One that has ended by itself gets none.
            let _ = pidfd_send_signal(process, signal);
        }
    }
}

/// How many effects the program said are done.
pub(crate) fn count_effects(said: &str) -> usize {
    said.lines().filter(|line| is_effect(line)).count()
}

fn is_effect(line: &str) -> bool {
    line.contains(" INFO ") && line.contains(": done ")
}
