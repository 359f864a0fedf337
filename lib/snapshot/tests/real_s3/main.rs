//! The sink with a real S3-compatible store, versitygw, over TLS.
//!
//! It needs root, `unshare`, and Keelway's cache (`make images`).

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test's functions fail by panicking, and print their timings"
)]

#[path = "../../../../cluster-controller/tests/live/host.rs"]
mod host;
mod store;

use std::{fs, io, path::Path, sync::Arc, time::Instant};

use futures::stream;
use jiff::Timestamp;
use keelway_snapshot::{
    RepositoryError, S3Credentials, S3Settings, S3Sink, SealedSnapshot, SealingKey, SinkError, SnapshotName,
    SnapshotOwner, SnapshotRepository, SnapshotSink, SnapshotVersions, receive,
};
use sha2::{Digest, Sha256};
use store::{BUCKET, S3Store};

const BRANCHES: &[u8] = include_bytes!("../data/branches.db");
const PAGE: usize = 4096;

/// All cases use one store.
#[test]
fn snapshots_are_kept_in_a_bucket() {
    host::on_own_host("snapshots_are_kept_in_a_bucket", || {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        runtime.block_on(cases());
    });
}

async fn cases() {
    let store = S3Store::start(Path::new(host::WORK)).await;
    a_snapshot_is_stored_listed_and_deleted(&store).await;
    a_large_snapshot_is_uploaded_in_parts(&store).await;
    a_list_has_more_keys_than_one_response(&store).await;
    refusals_name_what_was_refused(&store).await;
}

fn sink(store: &S3Store, change: impl FnOnce(&mut S3Settings, &mut S3Credentials)) -> Arc<S3Sink> {
    let mut settings = S3Settings {
        endpoint: store.endpoint(),
        bucket: BUCKET.to_owned(),
        prefix: "keelway/test".to_owned(),
        region: "us-east-1".to_owned(),
    };
    let mut credentials = store.credentials();
    change(&mut settings, &mut credentials);
    Arc::new(S3Sink::new(settings, credentials, host::WORK.into()).unwrap())
}

fn repository(sink: Arc<S3Sink>) -> SnapshotRepository {
    let owner =
        SnapshotOwner { id: "0123456789abcdef".to_owned(), namespace: "default".to_owned(), name: "c1".to_owned() };
    SnapshotRepository::new(sink, owner)
}

async fn received(snapshot: Vec<u8>) -> SealedSnapshot {
    let parts: Vec<io::Result<Vec<u8>>> = snapshot.chunks(32 * 1024).map(|part| Ok(part.to_vec())).collect();
    receive(stream::iter(parts), key(), Path::new(host::WORK)).await.unwrap()
}

fn key() -> SealingKey {
    SealingKey::from_bytes(&[7; 32]).unwrap()
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_796_083_200 + second).unwrap()
}

async fn a_snapshot_is_stored_listed_and_deleted(store: &S3Store) {
    let repository = repository(sink(store, |_, _| {}));
    assert!(repository.list().await.unwrap().complete.is_empty());
    let sealed = received(BRANCHES.to_vec()).await;
    let (name, manifest) = repository.store(&sealed, SnapshotVersions::default(), at(0)).await.unwrap();
    assert_eq!(repository.list().await.unwrap().complete, [(name, manifest)]);
    let directory = store.bucket().join("keelway/test/default/c1/0123456789abcdef");
    let file = fs::read(directory.join(format!("{name}.db.age"))).unwrap();
    assert!(opened(&file) == BRANCHES);
    assert!(restored(&repository, &name).await == BRANCHES);
    repository.delete(&name).await.unwrap();
    repository.delete(&name).await.unwrap();
    assert!(repository.names().await.unwrap().is_empty());
    assert!(!directory.join(format!("{name}.db.age")).exists());
}

/// Returns the database that a restore reads from the store.
async fn restored(repository: &SnapshotRepository, name: &SnapshotName) -> Vec<u8> {
    let (mut parts, mut database) = (repository.open(name, key()).await.unwrap().into_parts(), Vec::new());
    while let Some(part) = parts.recv().await {
        database.extend(part.unwrap());
    }
    database
}

fn opened(sealed: &[u8]) -> Vec<u8> {
    let mut plain = Vec::new();
    io::Read::read_to_end(&mut key().open(io::Cursor::new(sealed)).unwrap(), &mut plain).unwrap();
    plain
}

/// Returns the snapshot with free pages at its end, so that it has this size.
fn grown(size: usize) -> Vec<u8> {
    let mut database = BRANCHES[..BRANCHES.len() - 32].to_vec();
    database.resize(size.next_multiple_of(PAGE), 0);
    let pages = (database.len() / PAGE) as u64;
    for meta in [16, PAGE + 16] {
        database[meta + 40..meta + 48].copy_from_slice(&pages.to_le_bytes());
        let sum = database[meta..meta + 56]
            .iter()
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
        database[meta + 56..meta + 64].copy_from_slice(&sum.to_le_bytes());
    }
    let digest = Sha256::digest(&database);
    database.extend_from_slice(&digest);
    database
}

async fn a_large_snapshot_is_uploaded_in_parts(store: &S3Store) {
    let snapshot = grown(20 << 20);
    let sealed = received(snapshot.clone()).await;
    let repository = repository(sink(store, |_, _| {}));
    let began = Instant::now();
    let (name, manifest) = repository.store(&sealed, SnapshotVersions::default(), at(1)).await.unwrap();
    println!("uploaded {} bytes in {:?}", manifest.sealed_size, began.elapsed());
    let directory = store.bucket().join("keelway/test/default/c1/0123456789abcdef");
    let file = fs::read(directory.join(format!("{name}.db.age"))).unwrap();
    assert_eq!(file.len() as u64, manifest.sealed_size);
    assert!(opened(&file) == snapshot);
    assert!(restored(&repository, &name).await == snapshot);
    repository.delete(&name).await.unwrap();
}

async fn a_list_has_more_keys_than_one_response(store: &S3Store) {
    let directory = store.bucket().join("keelway/test/default/c1/0123456789abcdef");
    fs::create_dir_all(&directory).unwrap();
    let names: Vec<SnapshotName> = (0..1200).map(|second| SnapshotName::of(at(second), 1)).collect();
    for name in &names {
        fs::write(directory.join(format!("{name}.json")), "{}").unwrap();
    }
    assert!(repository(sink(store, |_, _| {})).names().await.unwrap() == names);
    fs::remove_dir_all(directory).unwrap();
}

async fn refusals_name_what_was_refused(store: &S3Store) {
    let failure = async |sink: Arc<S3Sink>| match repository(sink).names().await.unwrap_err() {
        RepositoryError::Sink(error) => error,
        RepositoryError::Manifest(error) => panic!("{error}"),
    };
    let wrong_secret =
        failure(sink(store, |_, credentials| "other".clone_into(&mut credentials.secret_access_key))).await;
    assert!(matches!(&wrong_secret, SinkError::Refused { status: 403, code, .. } if code == "SignatureDoesNotMatch"));
    let no_bucket = failure(sink(store, |settings, _| "nowhere".clone_into(&mut settings.bucket))).await;
    assert_eq!(no_bucket.to_string(), "cannot ListObjectsV2: the S3 store returned 404 NoSuchBucket");
    let stranger = store::authority("a stranger").0.pem().into_bytes();
    let untrusted = failure(sink(store, |_, credentials| credentials.authorities = Some(stranger))).await;
    assert!(matches!(&untrusted, SinkError::Connect { .. }), "{untrusted}");
    let missing = sink(store, |_, _| {}).get("default/c1/none.json").await.unwrap_err();
    assert!(matches!(&missing, SinkError::Refused { status: 404, code, .. } if code == "NoSuchKey"), "{missing}");
}
