//! versitygw on a directory, with a certificate of its own authority.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use keelway_cri::testing::cache;
use keelway_snapshot::S3Credentials;
use rcgen::{BasicConstraints, Certificate, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use tokio::{net::TcpStream, time::sleep};

pub(crate) const BUCKET: &str = "snapshots";
const ADDRESS: &str = "127.0.0.1:7070";
/// How long the store may take to listen.
const START: Duration = Duration::from_secs(20);

/// A running store, which ends with its host.
pub(crate) struct S3Store {
    authority: String,
    work: PathBuf,
    _process: Child,
}

/// Returns a certificate authority of this name.
pub(crate) fn authority(name: &str) -> (Certificate, Issuer<'static, KeyPair>) {
    let key = KeyPair::generate().unwrap();
    let mut parameters = CertificateParams::default();
    parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    parameters.distinguished_name.push(DnType::CommonName, name);
    let certificate = parameters.self_signed(&key).unwrap();
    (certificate, Issuer::new(parameters, key))
}

impl S3Store {
    /// Starts the store, with its files below this directory.
    pub(crate) async fn start(work: &Path) -> Self {
        let (authority, issuer) = authority("the store");
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap().signed_by(&key, &issuer);
        let file = |name: &str, content: &str| {
            let path = work.join(name);
            fs::write(&path, content).unwrap();
            path
        };
        let (certificate, key) = (file("s3.crt", &certificate.unwrap().pem()), file("s3.key", &key.serialize_pem()));
        for directory in ["s3/snapshots", "metadata"] {
            fs::create_dir_all(work.join(directory)).unwrap();
        }
        let mut command = Command::new(cache().unwrap().join("bin/versitygw"));
        command
            .env("ROOT_ACCESS_KEY", "admin")
            .env("ROOT_SECRET_KEY", "not-a-secret")
            .args(["--port", ADDRESS, "--quiet"]);
        command.arg("--cert").arg(certificate).arg("--key").arg(key);
        command.args(["posix", "--sidecar"]).arg(work.join("metadata")).arg(work.join("s3"));
        let process = command.stdin(Stdio::null()).spawn().unwrap();
        let deadline = Instant::now() + START;
        while TcpStream::connect(ADDRESS).await.is_err() {
            assert!(Instant::now() < deadline, "the store does not listen");
            sleep(Duration::from_millis(50)).await;
        }
        Self { authority: authority.pem(), work: work.to_owned(), _process: process }
    }

    #[expect(clippy::unused_self, reason = "the programs have to run meanwhile")]
    pub(crate) fn endpoint(&self) -> String {
        format!("https://{ADDRESS}")
    }

    pub(crate) fn bucket(&self) -> PathBuf {
        self.work.join("s3").join(BUCKET)
    }

    pub(crate) fn credentials(&self) -> S3Credentials {
        S3Credentials {
            access_key_id: "admin".to_owned(),
            secret_access_key: "not-a-secret".to_owned(),
            authorities: Some(self.authority.clone().into_bytes()),
        }
    }
}
