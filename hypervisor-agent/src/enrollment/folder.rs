//! The directory of an agent's identity.
//!
//! ```text
//! FOLDER/current -> identity-2          replaced atomically, by a rename
//!       /identity-2/tls.crt, tls.key    certificate, and the key, which never leaves the machine
//!                  /ca.crt, revoked.crl the authorities whose drivers the agent accepts, and their revocation lists
//!                  /spent               used tokens, with the time at which each expires
//! ```
//!
//! After a crash, the directory contains all of one identity or all of the next. A token counts as used exactly if its certificate is stored.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt, symlink},
    path::{Path, PathBuf},
};

use jiff::Timestamp;
use keelway_agent_api::enrollment::{DriverTrust, GrantedIdentity};
use keelway_pki::{CertificateFacts, PrivateKeyPem};
use keelway_tls::TlsFiles;

const CURRENT: &str = "current";
const NEXT: &str = "current.new";
const PREFIX: &str = "identity-";

/// A directory with the identity of an agent, or without one.
#[derive(Debug, Clone)]
pub struct IdentityFolder(PathBuf);

/// The identity of an agent.
pub(crate) struct EnrolledIdentity {
    pub(crate) key: PrivateKeyPem,
    pub(crate) granted: GrantedIdentity,
    pub(crate) spent: SpentTokens,
}

/// Used tokens, with the time at which each expires.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct SpentTokens(Vec<(String, Timestamp)>);

impl SpentTokens {
    pub(crate) fn holds(&self, token: &str) -> bool {
        self.0.iter().any(|(spent, _)| spent == token)
    }

    /// Adds a token, and drops those that have expired.
    #[must_use]
    pub(crate) fn with(mut self, token: &str, expires: Timestamp, now: Timestamp) -> Self {
        self.0.retain(|(_, expires)| *expires > now);
        self.0.push((token.to_owned(), expires));
        self
    }

    fn read(text: &str) -> io::Result<Self> {
        let line = |line: &str| {
            let (token, expires) = line.split_once(' ')?;
            Some((token.to_owned(), expires.parse().ok()?))
        };
        let lines = text.lines().map(line).collect::<Option<_>>();
        lines
            .map(Self)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "a line is not a token and its expiry"))
    }

    fn write(&self) -> String {
        self.0.iter().map(|(token, expires)| token.clone() + " " + &expires.to_string() + "\n").collect()
    }
}

impl IdentityFolder {
    /// Returns the directory with this absolute path. The first write creates it.
    #[must_use]
    pub fn new(path: PathBuf) -> Self {
        Self(path)
    }

    /// Returns the path of the directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Returns the files of the identity. The paths always lead to the current identity.
    #[must_use]
    pub fn files(&self) -> TlsFiles {
        let file = |name: &str| self.0.join(CURRENT).join(name);
        TlsFiles {
            certificate_file: file("tls.crt"),
            key_file: file("tls.key"),
            authority_file: file("ca.crt"),
            revocation_file: Some(file("revoked.crl")),
        }
    }

    /// Returns when the certificate expires, if there is one.
    pub fn expiry(&self) -> io::Result<Option<Timestamp>> {
        let Some(identity) = self.read()? else { return Ok(None) };
        let facts = CertificateFacts::from_pem(&identity.granted.certificate).map_err(io::Error::other)?;
        Ok(Some(facts.validity.not_after()))
    }

    /// Returns the identity, if there is one.
    pub(crate) fn read(&self) -> io::Result<Option<EnrolledIdentity>> {
        let current = match fs::read_link(self.0.join(CURRENT)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            // Resolved once, so that all files belong to one identity even if it is replaced meanwhile.
            link => self.0.join(link?),
        };
        let text = |name: &str| fs::read_to_string(current.join(name));
        let trust = DriverTrust { authorities: text("ca.crt")?, revoked: text("revoked.crl")? };
        Ok(Some(EnrolledIdentity {
            key: PrivateKeyPem::new(text("tls.key")?),
            granted: GrantedIdentity { certificate: text("tls.crt")?, trust },
            spent: SpentTokens::read(&text("spent")?)?,
        }))
    }

    /// Replaces the identity. When this returns, it is on disk. Calls must not run at the same time.
    pub(crate) fn write(&self, identity: &EnrolledIdentity) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.0)?;
        let before = fs::read_link(self.0.join(CURRENT)).ok();
        let number = before.as_deref().and_then(number).unwrap_or_default() + 1;
        let name = format!("{PREFIX}{number}");
        let folder = self.0.join(&name);
        self.remove_but(before.as_deref())?;
        DirBuilder::new().mode(0o700).create(&folder)?;
        let GrantedIdentity { certificate, trust } = &identity.granted;
        let spent = identity.spent.write();
        let files = [
            ("tls.crt", certificate.as_str()),
            ("tls.key", identity.key.expose()),
            ("ca.crt", &trust.authorities),
            ("revoked.crl", &trust.revoked),
            ("spent", &spent),
        ];
        for (name, text) in files {
            let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(folder.join(name))?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
        }
        File::open(&folder)?.sync_all()?;
        symlink(&name, self.0.join(NEXT))?;
        fs::rename(self.0.join(NEXT), self.0.join(CURRENT))?;
        File::open(&self.0)?.sync_all()?;
        self.remove_but(Some(Path::new(&name)))
    }

    /// Removes earlier identities, and what a crash left half written.
    fn remove_but(&self, kept: Option<&Path>) -> io::Result<()> {
        for entry in fs::read_dir(&self.0)? {
            let entry = entry?;
            let name = entry.file_name();
            if name == NEXT {
                fs::remove_file(entry.path())?;
            } else if number(Path::new(&name)).is_some() && kept != Some(Path::new(&name)) {
                fs::remove_dir_all(entry.path())?;
            }
        }
        Ok(())
    }
}

fn number(name: &Path) -> Option<u64> {
    name.to_str()?.strip_prefix(PREFIX)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn identity(text: &str) -> EnrolledIdentity {
        let of = |what: &str| format!("{what} {text}");
        EnrolledIdentity {
            key: PrivateKeyPem::new(of("key")),
            granted: GrantedIdentity {
                certificate: of("certificate"),
                trust: DriverTrust { authorities: of("authorities"), revoked: of("revoked") },
            },
            spent: SpentTokens::default().with(text, Timestamp::MAX, Timestamp::UNIX_EPOCH),
        }
    }

    fn holds(folder: &IdentityFolder, text: &str) -> bool {
        let (found, wanted) = (folder.read().unwrap().unwrap(), identity(text));
        (found.key, found.granted, found.spent) == (wanted.key, wanted.granted, wanted.spent)
    }

    #[test]
    fn an_identity_is_replaced_whole() {
        let root = tempfile::tempdir().unwrap();
        let folder = IdentityFolder::new(root.path().join("keelway-agent"));
        assert!(folder.read().unwrap().is_none());
        for text in ["one", "two", "three"] {
            folder.write(&identity(text)).unwrap();
            assert!(holds(&folder, text));
            let names = fs::read_dir(folder.path()).unwrap().count();
            assert_eq!(names, 2, "the link, and what it leads to");
        }
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(folder.path()), mode(&folder.files().key_file)), (0o700, 0o600));
    }

    #[test]
    fn leftovers_of_a_crash_do_no_harm() {
        let root = tempfile::tempdir().unwrap();
        let folder = IdentityFolder::new(root.path().to_owned());
        folder.write(&identity("one")).unwrap();
        // The crash came before the rename.
        fs::create_dir(root.path().join("identity-2")).unwrap();
        fs::write(root.path().join("identity-2/tls.crt"), "half").unwrap();
        symlink("identity-2", root.path().join(NEXT)).unwrap();
        assert!(holds(&folder, "one"));
        folder.write(&identity("two")).unwrap();
        assert!(holds(&folder, "two"));
    }

    #[test]
    fn a_token_is_forgotten_once_it_is_worth_nothing() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let spent = SpentTokens::default().with("one", at(10), at(1)).with("two", at(20), at(5));
        assert!(spent.holds("one") && spent.holds("two") && !spent.holds("three"));
        assert_eq!(SpentTokens::read(&spent.write()).unwrap(), spent);
        let later = spent.with("three", at(30), at(15));
        assert!(!later.holds("one") && later.holds("two") && later.holds("three"));
        assert!(SpentTokens::read("one").is_err());
    }
}
