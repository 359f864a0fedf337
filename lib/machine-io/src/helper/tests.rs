//! Tests which helper can open a request, and which requests a helper accepts.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use keelway_api::machine::{OnChange, PodFile};
use tempfile::TempDir;

use keelway_api::{hypervisor::Applied, name::PodName};

use super::*;
use crate::helper::serve::HelperKeyDirectory;

const SECRET: &[u8] = b"-----BEGIN PRIVATE KEY----- of a component -----END PRIVATE KEY-----";

fn identity(installation: &str, machine: &str) -> HelperIdentity {
    HelperIdentity { installation: installation.parse().unwrap(), machine: machine.parse().unwrap() }
}

fn own() -> HelperIdentity {
    identity("00000000000000aa", "hv-1")
}

fn pod() -> PodName {
    PodName { cluster: "0123456789abcdef".parse().unwrap(), component: "etcd-0".parse().unwrap() }
}

fn write(path: &str, content: &[u8]) -> MachineOperation {
    let file = PodFile { path: path.to_owned(), content: content.to_vec(), on_change: OnChange::Restart };
    MachineOperation::WriteFile { pod: pod(), user: 20_017, file }
}

fn label(work: &MachineOperation, generation: u64) -> SealLabel {
    SealLabel { subject: work.subject(), fence: Some(ConfigFence { term: 1, generation }) }
}

/// A machine's files, and the key directory of its helper.
struct Served {
    root: TempDir,
    _home: TempDir,
    home: HelperKeyDirectory,
    key: HelperPublicKey,
}

impl Served {
    fn new() -> Self {
        let (root, folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let home = HelperKeyDirectory::at(&folder.path().join("home")).unwrap();
        let key = STANDARD.decode(home.key(&own()).unwrap()).unwrap();
        Self { root, _home: folder, home, key: HelperPublicKey::from_bytes(&key).unwrap() }
    }

    /// Sends a request as a driver does.
    async fn does(&self, work: &MachineOperation, label: &SealLabel) -> HelperResponse {
        let sealed = SealedWork::seal(&self.key, &own(), label, work).unwrap();
        self.takes(&sealed, &label.text()).await
    }

    async fn takes(&self, sealed: &SealedWork, label: &str) -> HelperResponse {
        self.home.serve(fs::File::open(self.root.path()).unwrap().into(), label, sealed).await
    }

    /// Sends the first requests of a first config.
    async fn is_taken(&self) {
        let work = MachineOperation::WriteOwner(own().installation);
        done(self.does(&work, &label(&work, 1)).await);
        let directories = ["", "/etcd-0", "/etcd-0/files"].map(|below| {
            keelway_machine::layout::MachineDirectory::of_files(format!("{}{below}", pod().cluster), 20_017)
        });
        let work = MachineOperation::MakeDirectories(directories.to_vec());
        done(self.does(&work, &label(&work, 1)).await);
    }

    fn file(&self, name: &str) -> PathBuf {
        self.root.path().join("var/lib/keelway").join(pod().to_string()).join("files").join(name)
    }
}

fn done(answer: HelperResponse) -> OperationResult {
    let said = format!("{answer:?}");
    let HelperResponse::Done(done) = answer else { panic!("{said}") };
    done
}

fn refused(answer: HelperResponse) -> String {
    let said = format!("{answer:?}");
    let HelperResponse::Refused(why) = answer else { panic!("{said}") };
    why
}

#[test]
fn only_whom_it_is_sealed_to_opens_it() {
    let (keys, others) = (HelperKeyPair::generate(), HelperKeyPair::generate());
    let work = write("pki/ca.key", SECRET);
    let label = label(&work, 3);
    let sealed = SealedWork::seal(&keys.public(), &own(), &label, &work).unwrap();
    let opened = sealed.open(&keys, &own(), &label.text()).unwrap();
    assert!(matches!(opened, MachineOperation::WriteFile { file, .. } if file.content == SECRET));

    let fails =
        |keys: &HelperKeyPair, identity: &HelperIdentity, label: &str| sealed.open(keys, identity, label).is_err();
    assert!(fails(&others, &own(), &label.text()), "another key");
    assert!(fails(&keys, &identity("00000000000000aa", "hv-2"), &label.text()), "another machine");
    assert!(fails(&keys, &identity("00000000000000ab", "hv-1"), &label.text()), "another installation");
    let elsewhere = SealLabel { subject: label.subject.replace("ca.key", "sa.key"), ..label.clone() };
    assert!(fails(&keys, &own(), &elsewhere.text()), "another path");
    let later = SealLabel { fence: Some(ConfigFence { term: 1, generation: 4 }), ..label.clone() };
    assert!(fails(&keys, &own(), &later.text()), "another config");

    for index in 0..sealed.text.len() {
        let mut flipped = sealed.clone();
        flipped.text[index] ^= 1 << (index % 8);
        assert!(flipped.open(&keys, &own(), &label.text()).is_err(), "byte {index}");
    }
    for index in 0..sealed.key.len() {
        let mut flipped = sealed.clone();
        flipped.key[index] ^= 1 << (index % 7);
        assert!(flipped.open(&keys, &own(), &label.text()).is_err(), "byte {index} of the key");
    }
    for length in 0..sealed.text.len() {
        let cut = SealedWork { text: sealed.text[..length].to_vec(), ..sealed.clone() };
        assert!(cut.open(&keys, &own(), &label.text()).is_err(), "cut at {length}");
    }
}

#[test]
fn arguments_hold_nothing_of_it_and_fit() {
    let keys = HelperKeyPair::generate();
    let content = [SECRET, &vec![b'x'; 700 << 10]].concat();
    let work = write("pki/ca.key", &content);
    let label = label(&work, 3);
    let words = arguments(&label, &SealedWork::seal(&keys.public(), &own(), &label, &work).unwrap()).unwrap();
    assert!(words.len() > 5, "{}", words.len());
    assert!(words.iter().all(|word| word.len() < 128 << 10));
    assert!(words.iter().map(String::len).sum::<usize>() < 2 << 20);
    let all = words.concat();
    let encoded = STANDARD.encode(SECRET);
    assert!(!all.contains("PRIVATE KEY") && !all.contains(&encoded[8..48]));
    assert!(serde_json::to_string(&work).unwrap().contains(&encoded[8..48]), "it is there before it is sealed");

    let long = write("large", &vec![b'x'; 2 << 20]);
    let label = self::label(&long, 3);
    let sealed = SealedWork::seal(&keys.public(), &own(), &label, &long).unwrap();
    let error = arguments(&label, &sealed).unwrap_err();
    assert!(error.to_string().contains("keelway-hypervisor-agent"), "{error}");
}

#[tokio::test]
async fn a_helper_does_what_the_latest_config_asks_for() {
    let served = Served::new();
    served.is_taken().await;
    let first = write("ca.key", b"first");
    let sealed = SealedWork::seal(&served.key, &own(), &label(&first, 2), &first).unwrap();
    done(served.takes(&sealed, &label(&first, 2).text()).await);
    assert_eq!(fs::read(served.file("ca.key")).unwrap(), b"first");
    let second = write("ca.key", b"second");
    done(served.does(&second, &label(&second, 3)).await);
    // Requests of an earlier config are refused, even before the later one is recorded.
    let why = refused(served.takes(&sealed, &label(&first, 2).text()).await);
    assert!(why.contains("stale"), "{why}");
    assert_eq!(fs::read(served.file("ca.key")).unwrap(), b"second");

    // The machine's own record counts as well, because a new helper starts without a memory.
    let applied = Applied { term: 1, generation: 9, digest: String::new() };
    let record = MachineOperation::RecordApplied(applied);
    done(served.does(&record, &label(&record, 9)).await);
    let anew = Served { root: served.root, ..Served::new() };
    let why = refused(anew.does(&second, &label(&second, 8)).await);
    assert!(why.contains("stale"), "{why}");
    done(anew.does(&second, &label(&second, 9)).await);
}

#[tokio::test]
async fn a_helper_refuses_what_is_not_its_own() {
    let served = Served::new();
    let work = write("ca.key", SECRET);
    let why = refused(served.does(&work, &label(&work, 1)).await);
    assert!(why.contains("no installation yet"), "{why}");
    served.is_taken().await;

    let unfenced = SealLabel { fence: None, ..label(&work, 1) };
    assert!(refused(served.does(&work, &unfenced).await).contains("no config"));
    let lies = SealLabel { subject: "look".to_owned(), ..label(&work, 1) };
    assert!(refused(served.does(&work, &lies).await).contains("label"));
    for path in ["../../../owner", "/etc/passwd", "a/../../b", "", "a//b"] {
        let work = write(path, SECRET);
        assert!(refused(served.does(&work, &label(&work, 1)).await).contains("neither below"), "{path}");
    }
    assert!(matches!(served.home.key(&identity("00000000000000ab", "hv-1")), Err(serve::HelperRefusal::Another)));

    // After a person adopts the machine, the earlier owner is refused.
    let taken = MachineOperation::WriteOwner("00000000000000bb".parse().unwrap());
    done(served.does(&taken, &SealLabel { subject: taken.subject(), fence: None }).await);
    assert!(refused(served.does(&work, &label(&work, 5)).await).contains("00000000000000bb"));
    // Queries need no config.
    let look = MachineOperation::Look;
    let found = done(served.does(&look, &SealLabel { subject: look.subject(), fence: None }).await);
    assert!(matches!(found, OperationResult::Found(found) if found.observed.owner.is_some()));
}

#[test]
fn a_key_is_for_nobody_elses_eyes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("home");
    let home = HelperKeyDirectory::at(&path).unwrap();
    let public = home.key(&own()).unwrap();
    assert_eq!(public, home.key(&own()).unwrap(), "it is made once");
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&path), mode(&path.join("key"))), (0o700, 0o600));
    assert!(!fs::read_to_string(path.join("key")).unwrap().contains(&public));
}

#[tokio::test]
async fn a_helper_asks_loopback_and_nobody_else() {
    let served = Served::new();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let _ = tokio::io::AsyncReadExt::read(&mut stream, &mut [0; 1024]).await;
        let answer = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n";
        tokio::io::AsyncWriteExt::write_all(&mut stream, answer).await.unwrap();
    });
    let get = |address: &str| {
        MachineOperation::Get(HttpQuery { address: address.parse().unwrap(), path: "/healthz".to_owned(), tls: None })
    };
    let served = &served;
    let asks = |work: MachineOperation| async move {
        let label = SealLabel { subject: work.subject(), fence: None };
        served.does(&work, &label).await
    };
    assert!(matches!(done(asks(get(&address.to_string())).await), OperationResult::Answered(Ok(503))));
    let gone = done(asks(get("127.0.0.1:1")).await);
    assert!(matches!(&gone, OperationResult::Answered(Err(why)) if why.contains("refused")), "{gone:?}");
    assert!(refused(asks(get("10.0.0.1:80")).await).contains("loopback"));
}
