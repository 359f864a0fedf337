//! Snapshots of real etcd members, received, damaged, sealed, stored and expired. `tests/data` has two files that `etcdctl snapshot save` 3.7.0 wrote:
//! `small.db` after three writes, and `branches.db` with four hundred keys.

#![expect(clippy::unwrap_used, reason = "a test fails by it")]

use std::{
    fs,
    io::{self, Cursor, Read},
    os::unix::fs::PermissionsExt,
    path::Path,
    sync::Arc,
};

use futures::stream;
use jiff::{SignedDuration, Timestamp};
use keelway_snapshot::{
    DatabaseError, DirectorySink, Expiry, PageProblem, ReceiveError, Retention, SealError, SealedSnapshot, SealingKey,
    SnapshotFault, SnapshotManifest, SnapshotManifestError, SnapshotName, SnapshotOpenError, SnapshotOwner,
    SnapshotRepository, SnapshotVersions, check, receive,
};
use proptest::prelude::*;

const SMALL: &[u8] = include_bytes!("data/small.db");
const BRANCHES: &[u8] = include_bytes!("data/branches.db");
const DIGEST: usize = 32;

fn database(snapshot: &[u8]) -> &[u8] {
    &snapshot[..snapshot.len() - DIGEST]
}

fn key(byte: u8) -> SealingKey {
    SealingKey::from_bytes(&[byte; 32]).unwrap()
}

fn owner(id: &str) -> SnapshotOwner {
    SnapshotOwner { id: id.to_owned(), namespace: "default".to_owned(), name: "c1".to_owned() }
}

fn time(text: &str) -> Timestamp {
    text.parse().unwrap()
}

/// Receives these bytes in parts of 1000 bytes.
async fn received(bytes: &[u8], directory: &Path) -> Result<SealedSnapshot, ReceiveError<io::Error>> {
    let parts: Vec<io::Result<Vec<u8>>> = bytes.chunks(1000).map(|part| Ok(part.to_vec())).collect();
    receive(stream::iter(parts), key(1), directory).await
}

fn checked(database: &[u8]) -> Result<keelway_snapshot::DatabaseSummary, DatabaseError> {
    check(Cursor::new(database), database.len() as u64)
}

/// The expected values are the output of `etcdutl snapshot status` 3.7.0.
#[test]
fn a_database_has_the_hash_that_etcdutl_reports() {
    for (snapshot, hash, revision, size) in [(SMALL, 2_665_130_751, 4, 20_480), (BRANCHES, 1_301_072_008, 404, 155_648)]
    {
        let found = checked(database(snapshot)).unwrap();
        assert_eq!((found.hash, found.revision, found.total_size), (hash, revision, size));
        assert_eq!(found.version.as_deref(), Some("3.7.0"));
    }
}

#[test]
fn a_truncated_database_is_refused() {
    let whole = database(BRANCHES);
    for length in (0..whole.len()).step_by(512) {
        checked(&whole[..length]).unwrap_err();
    }
    assert!(matches!(checked(&whole[..whole.len() - 4096]), Err(DatabaseError::Length { .. })));
    assert!(matches!(checked(b"no database"), Err(DatabaseError::NoMeta)));
}

proptest! {
    /// The hash covers keys and values; the structure of pages is checked. Nothing of a damaged file makes the check panic.
    #[test]
    fn a_changed_byte_is_an_error_or_changes_nothing_that_is_read(at in 0..BRANCHES.len() - DIGEST, mask in 1_u8..) {
        let whole = checked(database(BRANCHES)).unwrap();
        let mut damaged = database(BRANCHES).to_vec();
        damaged[at] ^= mask;
        if let Ok(found) = checked(&damaged) && found.hash == whole.hash {
            prop_assert_eq!((found.revision, found.entries), (whole.revision, whole.entries));
        }
    }
}

#[tokio::test]
async fn a_snapshot_is_sealed_as_it_was_sent() {
    let directory = tempfile::tempdir().unwrap();
    let sealed = received(BRANCHES, directory.path()).await.unwrap();
    assert_eq!(sealed.database.revision, 404);
    let files: Vec<_> = fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    let [file] = files.as_slice() else { panic!("{files:?}") };
    assert_eq!(fs::metadata(file).unwrap().permissions().mode() & 0o777, 0o600);
    let text = fs::read(file).unwrap();
    assert!(text.starts_with(b"age-encryption.org/v1\n"));
    assert!(!text.windows(10).any(|window| window == b"/registry/"));
    let mut opened = Vec::new();
    key(1).open(Cursor::new(&text)).unwrap().read_to_end(&mut opened).unwrap();
    assert!(opened == BRANCHES, "the sealed file holds what etcdctl would have saved");
    assert!(matches!(key(2).open(Cursor::new(&text)), Err(SealError::OtherKey)));
    drop(sealed);
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0, "an unused snapshot leaves nothing");
}

#[tokio::test]
async fn a_snapshot_that_was_damaged_on_its_way_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let mut changed = SMALL.to_vec();
    changed[9000] ^= 1;
    let refused = received(&changed, directory.path()).await.unwrap_err();
    assert!(matches!(refused, ReceiveError::Fault(SnapshotFault::Digest { .. })), "{refused}");
    let refused = received(&SMALL[..SMALL.len() - 1], directory.path()).await.unwrap_err();
    assert!(matches!(refused, ReceiveError::Fault(SnapshotFault::Truncated(_))), "{refused}");
    let parts = vec![Ok(SMALL.to_vec()), Err(io::Error::from(io::ErrorKind::ConnectionReset))];
    let refused = receive(stream::iter(parts), key(1), directory.path()).await.unwrap_err();
    assert!(matches!(refused, ReceiveError::Stream(_)), "{refused}");
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
}

/// The digest is right, and the database is not: the member itself is damaged.
#[tokio::test]
async fn a_damaged_database_with_a_right_digest_is_refused() {
    use sha2::{Digest, Sha256};
    let directory = tempfile::tempdir().unwrap();
    let damage = |page: usize| {
        let mut damaged = database(SMALL).to_vec();
        damaged[page * 4096] ^= 0xff;
        damaged
    };
    // Pages that are free are not read.
    let mut damaged = (2..5).map(damage).find(|damaged| checked(damaged).is_err()).unwrap();
    damaged.extend_from_slice(&Sha256::digest(&damaged));
    let refused = received(&damaged, directory.path()).await.unwrap_err();
    let expected = |error: &DatabaseError| matches!(error, DatabaseError::Page { problem: PageProblem::Number, .. });
    assert!(matches!(refused, ReceiveError::Fault(SnapshotFault::Database(error)) if expected(&error)));
    let mut other = vec![0; 4096];
    other.extend_from_slice(&Sha256::digest(&other));
    let refused = received(&other, directory.path()).await.unwrap_err();
    assert!(matches!(refused, ReceiveError::Fault(SnapshotFault::Database(DatabaseError::NoMeta))), "{refused}");
}

#[tokio::test]
async fn a_directory_keeps_the_snapshots_of_each_cluster() {
    let root = tempfile::tempdir().unwrap();
    let place = root.path().join("snapshots");
    let sink = Arc::new(DirectorySink::new(place.clone()));
    let repository = SnapshotRepository::new(sink.clone(), owner("0123456789abcdef"));
    assert!(repository.list().await.unwrap().complete.is_empty(), "a directory that does not exist is empty");
    let spool = repository.sink().spool().await.unwrap();
    for second in 0..3 {
        let sealed = received(SMALL, &spool).await.unwrap();
        let versions = SnapshotVersions { kubernetes: "1.37.0".to_owned(), ..SnapshotVersions::default() };
        let at = Timestamp::from_second(1_796_083_200 + second).unwrap();
        repository.store(&sealed, versions, at).await.unwrap();
    }
    assert_eq!(fs::metadata(&place).unwrap().permissions().mode() & 0o777, 0o700);
    let stored = repository.list().await.unwrap();
    let names: Vec<SnapshotName> = stored.complete.iter().map(|(name, _)| *name).collect();
    assert_eq!(names.first().unwrap().to_string(), "20261201T000000Z-4");
    assert_eq!((names.len(), stored.unreadable.len()), (3, 0));
    let other = SnapshotRepository::new(sink, owner("fedcba9876543210"));
    assert!(other.list().await.unwrap().complete.is_empty(), "another cluster of the same name has its own");
    repository.delete(&names[0]).await.unwrap();
    repository.delete(&names[0]).await.unwrap();
    assert_eq!(repository.names().await.unwrap(), names[1..]);
    let left = fs::read_dir(place.join("default/c1/0123456789abcdef")).unwrap().count();
    assert_eq!(left, 4, "each snapshot is a sealed file and a manifest");
}

#[test]
fn a_manifest_is_read_only_for_its_snapshot_and_cluster() {
    let name: SnapshotName = "20261127T115200Z-4".parse().unwrap();
    let manifest = SnapshotManifest {
        format: 1,
        name: name.to_string(),
        cluster: owner("0123456789abcdef"),
        versions: SnapshotVersions::default(),
        database: checked(database(SMALL)).unwrap(),
        digest: "00".to_owned(),
        sealed_size: 1,
        sealed_digest: "00".to_owned(),
    };
    let text = String::from_utf8(manifest.to_json().unwrap()).unwrap();
    let parse = |text: &str, id| SnapshotManifest::parse(text.as_bytes(), &name, &owner(id));
    assert_eq!(parse(&text, "0123456789abcdef").unwrap(), manifest);
    assert!(matches!(parse(&text, "fedcba9876543210"), Err(SnapshotManifestError::Foreign { .. })));
    let newer = text.replace("\"format\": 1", "\"format\": 2, \"new\": {}");
    assert!(matches!(parse(&newer, "0123456789abcdef"), Err(SnapshotManifestError::Newer(2))));
    let renamed = text.replace("Z-4\"", "Z-5\"");
    assert!(matches!(parse(&renamed, "0123456789abcdef"), Err(SnapshotManifestError::Renamed(_))));
    assert!(matches!(parse("{}", "0123456789abcdef"), Err(SnapshotManifestError::Unreadable(_))));
}

#[test]
fn names_sort_by_time_and_are_read_back() {
    let early = SnapshotName::of(time("2026-11-27T11:52:00.7Z"), 48213);
    let late = SnapshotName::of(time("2026-12-01T00:00:00Z"), 5);
    assert_eq!((early.to_string(), early < late), ("20261127T115200Z-48213".to_owned(), true));
    assert_eq!(early.to_string().parse(), Ok(early));
    for text in ["", "20261127T115200Z", "20261127T115200Z-", "20261127T115200Z-048", "../x", "20261327T115200Z-1"] {
        text.parse::<SnapshotName>().unwrap_err();
    }
}

#[test]
fn retention_keeps_the_newest_and_names_what_it_deletes() {
    let name = |hour| SnapshotName::of(time(&format!("2026-11-27T{hour:02}:00:00Z")), hour);
    let all: Vec<SnapshotName> = (0..6).map(name).collect();
    let now = time("2026-11-27T06:00:00Z");
    let keep = |keep, hours: Option<i64>| Retention { keep, max_age: hours.map(SignedDuration::from_hours) };
    assert_eq!(keep(6, None).expired(&all, now), []);
    assert_eq!(keep(4, None).expired(&all, now), [(name(0), Expiry::Newer(4)), (name(1), Expiry::Newer(4))]);
    let hours = SignedDuration::from_hours(5);
    assert_eq!(keep(6, Some(5)).expired(&all, now), [(name(0), Expiry::Older(hours))]);
    let none_left = keep(6, Some(0)).expired(&all, now);
    assert!(none_left.len() == 5 && !none_left.iter().any(|(expired, _)| *expired == name(5)));
    assert_eq!(keep(0, None).expired(&all, now).len(), 5);
    assert_eq!(keep(4, None).expired(&[], now), []);
}

#[test]
fn a_key_is_one_of_age() {
    assert!(key(1).expose_text().starts_with("AGE-SECRET-KEY-1"));
    assert!(SealingKey::from_bytes(&[1; 31]).is_err());
}

/// A sink with one snapshot, and its name.
async fn stored(place: &Path) -> (SnapshotRepository, SnapshotName) {
    let sink = Arc::new(DirectorySink::new(place.to_owned()));
    let repository = SnapshotRepository::new(sink, owner("0123456789abcdef"));
    let sealed = received(BRANCHES, &repository.sink().spool().await.unwrap()).await.unwrap();
    let at = time("2026-11-27T11:52:00Z");
    let (name, _) = repository.store(&sealed, SnapshotVersions::default(), at).await.unwrap();
    (repository, name)
}

#[tokio::test]
async fn an_opened_snapshot_is_what_the_member_sent() {
    let place = tempfile::tempdir().unwrap();
    let (repository, name) = stored(place.path()).await;
    let opened = repository.open(&name, key(1)).await.unwrap();
    assert_eq!((opened.length, opened.manifest.database.revision), (BRANCHES.len() as u64, 404));
    let (mut parts, mut read) = (opened.into_parts(), Vec::new());
    while let Some(part) = parts.recv().await {
        read.extend(part.unwrap());
    }
    assert!(read == BRANCHES, "{} of {} bytes", read.len(), BRANCHES.len());
}

#[tokio::test]
async fn a_snapshot_that_cannot_be_used_is_not_opened() {
    let place = tempfile::tempdir().unwrap();
    let (repository, name) = stored(place.path()).await;
    let open = async |byte| repository.open(&name, key(byte)).await.err();
    let other_key = open(2).await.unwrap();
    assert!(matches!(other_key, SnapshotOpenError::Fault(SnapshotFault::Seal(SealError::OtherKey))));
    assert!(!other_key.is_of_stored_file(), "the right key opens it");
    let missing: SnapshotName = "20261127T115200Z-5".parse().unwrap();
    let missing = repository.open(&missing, key(1)).await.err().unwrap();
    assert!(matches!(missing, SnapshotOpenError::Missing) && !missing.is_of_stored_file());

    let of_cluster = place.path().join("default/c1/0123456789abcdef");
    let (sealed, manifest) = (of_cluster.join(format!("{name}.db.age")), of_cluster.join(format!("{name}.json")));
    let (whole, text) = (fs::read(&sealed).unwrap(), fs::read_to_string(&manifest).unwrap());
    fs::write(&sealed, &whole[..whole.len() - 1]).unwrap();
    let truncated = open(1).await.unwrap();
    assert!(matches!(truncated, SnapshotOpenError::Length { .. }) && truncated.is_of_stored_file());
    let mut damaged = whole.clone();
    damaged[whole.len() / 2] ^= 1;
    fs::write(&sealed, &damaged).unwrap();
    let damaged = open(1).await.unwrap();
    assert!(matches!(damaged, SnapshotOpenError::Fault(SnapshotFault::File(_))) && damaged.is_of_stored_file());
    fs::write(&sealed, &whole).unwrap();
    fs::write(&manifest, text.replace("0123456789abcdef", "fedcba9876543210")).unwrap();
    let foreign = open(1).await;
    assert!(matches!(foreign, Some(SnapshotOpenError::Manifest(SnapshotManifestError::Foreign { .. }))), "{foreign:?}");
    fs::write(&manifest, text.replace("\"revision\": 404", "\"revision\": 405")).unwrap();
    assert!(matches!(open(1).await, Some(SnapshotOpenError::Other)), "another manifest");
    let later = of_cluster.join("20261127T115200Z-405.json");
    fs::write(&later, text.replace("Z-404", "Z-405")).unwrap();
    fs::copy(&sealed, of_cluster.join("20261127T115200Z-405.db.age")).unwrap();
    let renamed: SnapshotName = "20261127T115200Z-405".parse().unwrap();
    assert!(
        matches!(repository.open(&renamed, key(1)).await.err(), Some(SnapshotOpenError::Other)),
        "an older snapshot"
    );
    fs::write(&manifest, text).unwrap();
    assert!(open(1).await.is_none());
}
