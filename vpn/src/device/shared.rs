//! The state that the packet thread shares with the rest of the process.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, eventfd};
use tokio::sync::mpsc;

use crate::core::Core;
use crate::io::{BindError, Sockets};
use crate::output::VpnEvent;

pub(crate) struct DeviceInner {
    core: Mutex<Core>,
    sockets: Mutex<Arc<Sockets>>,
    fwmark: AtomicU32,
    wake: OwnedFd,
    stopping: AtomicBool,
    watcher: Mutex<Option<mpsc::Sender<VpnEvent>>>,
}

/// The number of events that are buffered for a watcher.
const MOST_EVENTS: usize = 1024;

impl DeviceInner {
    pub(crate) fn new(core: Core, sockets: Sockets, fwmark: u32) -> io::Result<Arc<Self>> {
        Ok(Arc::new(Self {
            core: Mutex::new(core),
            sockets: Mutex::new(Arc::new(sockets)),
            fwmark: AtomicU32::new(fwmark),
            wake: eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?,
            stopping: AtomicBool::new(false),
            watcher: Mutex::new(None),
        }))
    }

    /// Locks the core. No call of it blocks, so the lock is held for microseconds.
    pub(crate) fn core(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn sockets(&self) -> Arc<Sockets> {
        Arc::clone(&self.sockets.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Listens on another port from now on.
    pub(crate) fn set_listen_port(&self, port: u16) -> Result<(), BindError> {
        if port != 0 && self.sockets().port == port {
            return Ok(());
        }
        let sockets = Sockets::bind(port, self.fwmark())?;
        *self.sockets.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(sockets);
        self.wake();
        Ok(())
    }

    pub(crate) fn fwmark(&self) -> u32 {
        self.fwmark.load(Ordering::Relaxed)
    }

    pub(crate) fn set_fwmark(&self, fwmark: u32) -> io::Result<()> {
        self.sockets().set_fwmark(fwmark)?;
        self.fwmark.store(fwmark, Ordering::Relaxed);
        Ok(())
    }

    /// Returns the events from now on. The new watcher replaces the previous one.
    pub(crate) fn watch(&self) -> mpsc::Receiver<VpnEvent> {
        let (sender, receiver) = mpsc::channel(MOST_EVENTS);
        *self.watcher.lock().unwrap_or_else(PoisonError::into_inner) = Some(sender);
        receiver
    }

    /// Sends events to the watcher. A watcher that is too far behind misses events, because packets must not wait for it.
    pub(super) fn notify(&self, events: impl Iterator<Item = VpnEvent>) {
        let watcher = self.watcher.lock().unwrap_or_else(PoisonError::into_inner);
        for event in events {
            tracing::debug!(?event, "peer");
            if let Some(watcher) = watcher.as_ref() {
                let _ = watcher.try_send(event);
            }
        }
    }

    /// Wakes the packet thread.
    pub(crate) fn wake(&self) {
        // The write fails only if the counter is full, and then the thread is about to wake anyway.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    pub(super) fn wake_handle(&self) -> &OwnedFd {
        &self.wake
    }

    pub(super) fn clear_wake(&self) {
        let _ = rustix::io::read(&self.wake, &mut [0; 8]);
    }

    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        self.wake();
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }
}
