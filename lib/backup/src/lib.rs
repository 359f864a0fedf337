//! A backup of documents: one file with the documents, their Secrets, and the list of the snapshots of each cluster. All of it is sealed in the format
//! of age (<https://age-encryption.org/v1>), so that the program `age` opens it without Keelway. No IO.

mod contents;
mod identity;
mod recipient;
mod seal;

pub use contents::{BackupContents, BackupFormatError, BackupHeader, ClusterSnapshots, FORMAT, ListedSnapshot};
pub use identity::{BackupIdentities, BackupIdentityError};
pub use recipient::{BackupRecipient, RecipientError, recipients_of_file};
pub use seal::{BackupOpenError, BackupSealError, open, seal};
