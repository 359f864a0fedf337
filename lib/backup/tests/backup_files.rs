//! Backups that are sealed and opened, and files that are not backups.

#![expect(clippy::unwrap_used, reason = "a test fails by it")]

use age::{secrecy::ExposeSecret, x25519::Identity};
use keelway_api::Time;
use keelway_backup::{
    BackupContents, BackupFormatError, BackupHeader, BackupIdentities, BackupIdentityError, BackupOpenError,
    BackupRecipient, RecipientError, open, recipients_of_file, seal,
};

const DOCUMENTS: &str = "apiVersion: v1\nkind: Secret\n";

struct Key {
    recipient: BackupRecipient,
    file: String,
}

fn key() -> Key {
    let identity = Identity::generate();
    let (public, secret) = (identity.to_public().to_string(), identity.to_string());
    let file = format!("# created: today\n# public key: {public}\n{}\n", secret.expose_secret());
    Key { recipient: public.parse().unwrap(), file }
}

fn contents() -> Vec<u8> {
    let at: Time = serde_json::from_str("\"2026-11-27T12:00:00Z\"").unwrap();
    BackupHeader::new("0.2.0", at, Vec::new()).with_documents(DOCUMENTS).unwrap().as_bytes().to_vec()
}

fn opened(key: &Key, sealed: &[u8]) -> Result<Vec<u8>, BackupOpenError> {
    open(&BackupIdentities::parse(&key.file).unwrap(), sealed).map(|contents| contents.to_vec())
}

#[test]
fn each_recipient_opens_a_backup() {
    let keys = [key(), key()];
    let recipients: Vec<_> = keys.iter().map(|key| key.recipient.clone()).collect();
    let sealed = seal(&recipients, &contents()).unwrap();
    assert!(!sealed.windows(6).any(|bytes| bytes == b"Secret" || bytes == b"Backup"), "nothing is in plain text");
    for key in &keys {
        let read = BackupContents::parse(&opened(key, &sealed).unwrap()).unwrap();
        assert_eq!((read.documents.as_str(), read.header.keelway.as_str()), (DOCUMENTS, "0.2.0"));
    }
    assert!(matches!(opened(&key(), &sealed), Err(BackupOpenError::OtherKey)));
    assert!(seal(&[], &contents()).is_err());
}

#[test]
fn a_backup_that_is_truncated_or_changed_is_refused_as_a_whole() {
    let key = key();
    let sealed = seal(std::slice::from_ref(&key.recipient), &contents()).unwrap();
    for length in [sealed.len() - 1, sealed.len() - 40, sealed.len() / 2, 60] {
        assert!(matches!(opened(&key, &sealed[..length]), Err(BackupOpenError::Damaged)), "{length}");
    }
    let mut changed = sealed.clone();
    *changed.last_mut().unwrap() ^= 1;
    assert!(matches!(opened(&key, &changed), Err(BackupOpenError::Damaged)));
    for other in [&b""[..], b"apiVersion: keelway.dev/v1alpha1\n"] {
        assert!(matches!(opened(&key, other), Err(BackupOpenError::NotSealed)));
    }
}

#[test]
fn a_newer_format_names_the_release_that_wrote_it() {
    let newer = "{\"kind\":\"Backup\",\"format\":2,\"keelway\":\"0.9.0\",\"new\":{}}\n---\nwhatever";
    let error = BackupContents::parse(newer.as_bytes()).err().unwrap();
    assert_eq!(
        error.to_string(),
        "keelway 0.9.0 wrote it in format 2, and this release reads formats up to 1: use keelway 0.9.0 or newer"
    );
    for other in ["", "no header", "{\"kind\":\"Pod\",\"format\":1}\n---\n", "kind: Backup\n---\n"] {
        assert!(matches!(BackupContents::parse(other.as_bytes()), Err(BackupFormatError::NotABackup)), "{other}");
    }
}

#[test]
fn key_files_are_read_and_never_quoted() {
    let key = key();
    let public = key.file.lines().find_map(|line| line.strip_prefix("# public key: ")).unwrap();
    assert_eq!(recipients_of_file(&format!("# the operator\n\n{public}\n")).unwrap().len(), 1);
    assert_eq!(recipients_of_file(&key.file).err(), Some((3, RecipientError::SecretKey)));
    assert_eq!(recipients_of_file("# none\n").err(), Some((1, RecipientError::None)));
    assert_eq!("ssh-ed25519 AAAA".parse::<BackupRecipient>().err(), Some(RecipientError::Other));
    assert_eq!(BackupIdentities::parse("# none\n").err(), Some(BackupIdentityError::None));
    assert_eq!(BackupIdentities::parse(&format!("{}nonsense\n", key.file)).err(), Some(BackupIdentityError::Line(4)));
    assert_eq!(BackupIdentities::parse("age-encryption.org/v1\n-> scrypt").err(), Some(BackupIdentityError::Sealed));
}
