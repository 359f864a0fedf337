//! A TUN device with segmentation offload: one read returns up to 64 KiB of one flow, which is split into packets here.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use tun_rs::{DeviceBuilder, GROTable, IDEAL_BATCH_SIZE, SyncDevice, VIRTIO_NET_HDR_LEN};

use crate::output::HEADROOM;

/// The largest packet that a read returns before it is split.
const LARGEST_READ: usize = VIRTIO_NET_HDR_LEN + 65_535;
/// The smallest space that a packet is read into. Small changes of the MTU then need no larger one.
const SMALLEST_SPACE: usize = 2048;

/// An operation on a TUN device failed.
#[derive(Debug, thiserror::Error)]
pub enum TunError {
    /// The device could not be created.
    #[error("cannot create the TUN device {name}")]
    Create {
        /// The name of the device.
        name: String,
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
    /// The device's settings could not be read.
    #[error("cannot read the settings of the TUN device")]
    Inspect(#[source] io::Error),
    /// Packets could not be read.
    #[error("cannot read from the TUN device")]
    Read(#[source] io::Error),
}

pub(crate) struct Tun {
    device: SyncDevice,
    mtu: usize,
    gro: GROTable,
    whole: Vec<u8>,
    space: Vec<Vec<u8>>,
    sizes: Vec<usize>,
}

impl Tun {
    pub(crate) fn create(name: &str, mtu: u16, offload: bool) -> Result<Self, TunError> {
        let create = || {
            let device = DeviceBuilder::new()
                .name(name)
                .mtu(mtu)
                .with(|builder| {
                    builder.offload(offload);
                })
                .build_sync()?;
            device.set_nonblocking(true)?;
            Ok(device)
        };
        let device = create().map_err(|source| TunError::Create { name: name.to_owned(), source })?;
        Ok(Self {
            device,
            mtu: mtu.into(),
            gro: GROTable::default(),
            whole: vec![0; LARGEST_READ],
            space: space_for(mtu.into()),
            sizes: vec![0; IDEAL_BATCH_SIZE],
        })
    }

    pub(crate) fn name(&self) -> Result<String, TunError> {
        self.device.name().map_err(TunError::Inspect)
    }

    /// Reads the MTU, which an administrator may change at any time.
    pub(crate) fn refresh_mtu(&mut self) -> Result<usize, TunError> {
        let mtu = usize::from(self.device.mtu().map_err(TunError::Inspect)?);
        if mtu != self.mtu {
            self.mtu = mtu;
            self.space = space_for(mtu);
        }
        Ok(mtu)
    }

    /// Calls `each` with the packets of one read. Returns `false` if there was nothing to read.
    pub(crate) fn read(&mut self, mut each: impl FnMut(&[u8])) -> Result<bool, TunError> {
        let read = self.device.recv_multiple(&mut self.whole, &mut self.space, &mut self.sizes, 0);
        match read {
            Ok(count) => {
                for (space, size) in self.space.iter().zip(&self.sizes).take(count) {
                    each(&space[..*size]);
                }
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) if is_fatal(&error) => Err(TunError::Read(error)),
            Err(error) => {
                // One packet is lost. Most likely it was larger than the last known MTU.
                tracing::debug!(%error, "lost a packet from the TUN device");
                self.refresh_mtu()?;
                Ok(true)
            }
        }
    }

    /// Writes packets, each after its headroom. The device coalesces packets of one flow.
    pub(crate) fn write(&mut self, packets: &mut [Vec<u8>]) {
        if packets.is_empty() {
            return;
        }
        if let Err(error) = self.device.send_multiple(&mut self.gro, packets, HEADROOM) {
            tracing::debug!(%error, "lost packets to the TUN device");
        }
    }
}

impl AsFd for Tun {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }
}

fn space_for(mtu: usize) -> Vec<Vec<u8>> {
    vec![vec![0; mtu.max(SMALLEST_SPACE)]; IDEAL_BATCH_SIZE]
}

/// Whether the device no longer exists. Any other error concerns a single packet.
fn is_fatal(error: &io::Error) -> bool {
    const EBADFD: i32 = rustix::io::Errno::BADFD.raw_os_error();
    const EBADF: i32 = rustix::io::Errno::BADF.raw_os_error();
    const EIO: i32 = rustix::io::Errno::IO.raw_os_error();
    matches!(error.raw_os_error(), Some(EBADFD | EBADF | EIO))
}
