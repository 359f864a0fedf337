//! Stores peers on disk, with their last endpoints.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::{fs, io};

use keelway_base::durable_file::replace;
use serde::{Deserialize, Serialize};

use super::gateway_peers::Candidate;

/// The content of the file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct PeerFile {
    pub(crate) peers: Vec<StoredPeer>,
}

/// A stored peer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct StoredPeer {
    /// The object in the cluster.
    pub(crate) object: Candidate,
    /// The last endpoint.
    pub(crate) endpoint: Option<SocketAddr>,
}

/// The file cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PeerFileError {
    /// The file exists, but cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// The file cannot be parsed.
    #[error("cannot parse {}", path.display())]
    Damaged {
        path: PathBuf,
        #[source]
        source: serde_json::Error,
    },
    #[error("cannot write {}", path.display())]
    Write {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

impl PeerFile {
    /// Reads the file. An absent file has no peers.
    pub(crate) fn read(path: &Path) -> Result<Self, PeerFileError> {
        match fs::read(path) {
            Ok(bytes) => serde_json::from_slice(&bytes)
                .map_err(|source| PeerFileError::Damaged { path: path.to_owned(), source }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::default()),
            Err(source) => Err(PeerFileError::Read { path: path.to_owned(), source }),
        }
    }

    /// Replaces the file atomically, also if the machine crashes.
    pub(crate) fn write(&self, path: &Path) -> Result<(), PeerFileError> {
        let written = serde_json::to_vec(self).map_err(io::Error::from).and_then(|text| replace(path, &text, 0o600));
        written.map_err(|source| PeerFileError::Write { path: path.to_owned(), source })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_written_file_is_read_again_and_only_by_its_owner() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("peers.json");
        assert_eq!(PeerFile::read(&path).unwrap(), PeerFile::default());
        let object = Candidate {
            name: "w1".to_owned(),
            created: Some("2026-01-01T00:00:00Z".parse().unwrap()),
            public_key: "key".to_owned(),
            addresses: vec!["100.80.0.7".to_owned()],
            pod_cidrs: vec!["10.244.3.0/24".to_owned()],
        };
        let endpoint = Some("192.0.2.1:40000".parse().unwrap());
        let kept = PeerFile { peers: vec![StoredPeer { object, endpoint }] };
        kept.write(&path).unwrap();
        kept.write(&path).unwrap();
        assert_eq!(PeerFile::read(&path).unwrap(), kept);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        fs::write(&path, "{").unwrap();
        assert!(matches!(PeerFile::read(&path), Err(PeerFileError::Damaged { .. })));
    }
}
