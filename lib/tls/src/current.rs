//! Certificates that are replaced while they are in use.

use std::error::Error;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use crate::{FilesVersion, TlsError, TlsFiles};

/// The value that was built from the last usable version of the files.
pub(crate) struct Current<T> {
    files: TlsFiles,
    make: fn(&TlsFiles) -> Result<T, TlsError>,
    made: Mutex<CachedValue<T>>,
}

struct CachedValue<T> {
    of: FilesVersion,
    value: Arc<T>,
}

impl<T> fmt::Debug for Current<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Current").field(&self.files).finish()
    }
}

impl<T> Current<T> {
    pub(crate) fn new(files: TlsFiles, make: fn(&TlsFiles) -> Result<T, TlsError>) -> Result<Self, TlsError> {
        let of = stamp(&files);
        let value = Arc::new(make(&files)?);
        Ok(Self { files, make, made: Mutex::new(CachedValue { of, value }) })
    }

    /// Returns the value for the present files. If only half of a pair is replaced, the earlier value stays until the next change.
    pub(crate) fn get(&self) -> Arc<T> {
        let now = stamp(&self.files);
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if made.of != now {
            made.of = now;
            let certificate = self.files.certificate_file.display();
            match (self.make)(&self.files) {
                Ok(value) => {
                    made.value = Arc::new(value);
                    tracing::info!(%certificate, "reloaded certificates");
                }
                Err(error) => {
                    let error: &(dyn Error + 'static) = &error;
                    tracing::warn!(%certificate, error, "cannot reload certificates; the previous ones stay in use");
                }
            }
        }
        Arc::clone(&made.value)
    }
}

fn stamp(files: &TlsFiles) -> FilesVersion {
    let always = [&files.certificate_file, &files.key_file, &files.authority_file];
    FilesVersion::of(always.into_iter().chain(&files.revocation_file))
}
