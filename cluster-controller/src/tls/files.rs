//! Certificates that are replaced while they are in use.

use std::sync::{Arc, Mutex, PoisonError};

use keelway_vpn::error::Chain;

use super::{TlsError, TlsFiles};
use crate::stamp::Stamp;

/// What was made of the files when they were last seen to be good.
pub(super) struct Current<T> {
    files: TlsFiles,
    make: fn(&TlsFiles) -> Result<T, TlsError>,
    made: Mutex<Made<T>>,
}

struct Made<T> {
    of: Stamp,
    value: Arc<T>,
}

impl<T> Current<T> {
    pub(super) fn new(files: TlsFiles, make: fn(&TlsFiles) -> Result<T, TlsError>) -> Result<Self, TlsError> {
        let of = stamp(&files);
        let value = Arc::new(make(&files)?);
        Ok(Self { files, make, made: Mutex::new(Made { of, value }) })
    }

    /// What the files say now. A pair that is half replaced is good again at its next change.
    pub(super) fn get(&self) -> Arc<T> {
        let now = stamp(&self.files);
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if made.of != now {
            made.of = now;
            match (self.make)(&self.files) {
                Ok(value) => {
                    made.value = Arc::new(value);
                    tracing::info!(certificate = %self.files.certificate_file.display(), "certificates read again");
                }
                Err(error) => tracing::warn!("certificates stay what they were: {}", Chain(&error)),
            }
        }
        Arc::clone(&made.value)
    }
}

fn stamp(files: &TlsFiles) -> Stamp {
    Stamp::of([&files.certificate_file, &files.key_file, &files.authority_file])
}
