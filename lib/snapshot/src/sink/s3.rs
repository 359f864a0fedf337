//! An S3-compatible store as a sink. Requests are signed by rusty-s3 and sent by the HTTP and TLS libraries of the other clients.

mod client;

use std::{
    fs::File,
    io::{Read, Write},
    path::PathBuf,
    sync::Arc,
};

use async_trait::async_trait;
use hyper::body::Bytes;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::{CertificateDer, pem::PemObject};
use rusty_s3::{
    Bucket, Credentials, UrlStyle,
    actions::{CompleteMultipartUploadResponse, CreateMultipartUpload, ListObjectsV2},
};

use self::client::S3Client;
use super::{SinkError, SnapshotSink};
use crate::SealedSnapshot;

/// The size of a part of an upload, which is in memory while it is sent. 10,000 parts, the limit of S3, hold more than the largest database.
const PART: u64 = 8 * 1024 * 1024;

/// Where an S3-compatible store is, and which part of it is used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct S3Settings {
    /// The URL of the API, with https.
    pub endpoint: String,
    /// The bucket, which exists.
    pub bucket: String,
    /// What all keys begin with: empty, or a path without a slash at its ends.
    pub prefix: String,
    /// The region that requests are signed for.
    pub region: String,
}

/// The credentials of an S3-compatible store. They have no `Debug`.
#[derive(Clone)]
pub struct S3Credentials {
    /// The id of the access key.
    pub access_key_id: String,
    /// The secret of the access key.
    pub secret_access_key: String,
    /// The authorities of the store's certificate, in PEM. None: those of the operating system.
    pub authorities: Option<Vec<u8>>,
}

/// A bucket of an S3-compatible store.
pub struct S3Sink {
    bucket: Bucket,
    credentials: Credentials,
    prefix: String,
    client: S3Client,
    /// Where a snapshot waits until it is uploaded.
    spool: PathBuf,
}

impl S3Sink {
    /// Returns the sink. Sends no request.
    pub fn new(settings: S3Settings, credentials: S3Credentials, spool: PathBuf) -> Result<Self, SinkError> {
        let endpoint = settings.endpoint.parse().map_err(|_| SinkError::Settings("the endpoint is not a URL"))?;
        // Paths work with every store and every name of a bucket; names of hosts do not.
        let bucket = Bucket::new(endpoint, UrlStyle::Path, settings.bucket, settings.region);
        let bucket = bucket.map_err(|_| SinkError::Settings("the endpoint is not a URL with a host"))?;
        let prefix = if settings.prefix.is_empty() { String::new() } else { format!("{}/", settings.prefix) };
        let client = S3Client::new(tls(credentials.authorities.as_deref())?);
        let credentials = Credentials::new(credentials.access_key_id, credentials.secret_access_key);
        Ok(Self { bucket, credentials, prefix, client, spool })
    }

    async fn upload_at_once(&self, key: &str, content: Bytes) -> Result<(), SinkError> {
        let action = self.bucket.put_object(Some(&self.credentials), key);
        self.client.send("PutObject", &action, content).await.map(drop)
    }

    async fn upload_in_parts(&self, key: &str, snapshot: &SealedSnapshot) -> Result<(), SinkError> {
        let action = self.bucket.create_multipart_upload(Some(&self.credentials), key);
        let created = self.client.send("CreateMultipartUpload", &action, Bytes::new()).await?;
        let created = CreateMultipartUpload::parse_response(&created.text()?);
        let created = created.map_err(|_| SinkError::Response { operation: "CreateMultipartUpload" })?;
        let done = self.upload_parts(key, created.upload_id(), snapshot).await;
        if done.is_err() {
            // Parts of an upload that is not completed use space until it is aborted. The first error is the one that matters.
            let action = self.bucket.abort_multipart_upload(Some(&self.credentials), key, created.upload_id());
            let _ = self.client.send("AbortMultipartUpload", &action, Bytes::new()).await;
        }
        done
    }

    async fn upload_parts(&self, key: &str, upload: &str, snapshot: &SealedSnapshot) -> Result<(), SinkError> {
        let mut file = Parts::of(snapshot)?;
        let mut tags = Vec::new();
        for number in 1..=u16::MAX {
            let Some(content) = file.next()? else { break };
            let action = self.bucket.upload_part(Some(&self.credentials), key, number, upload);
            let sent = self.client.send("UploadPart", &action, content).await?;
            tags.push(sent.entity_tag.ok_or(SinkError::Response { operation: "UploadPart" })?);
        }
        let tags = tags.iter().map(String::as_str);
        let action = self.bucket.complete_multipart_upload(Some(&self.credentials), key, upload, tags);
        let body = action.clone().body().into();
        let done = self.client.send("CompleteMultipartUpload", &action, body).await?;
        // S3 can return 200 and an error in the body.
        let done = CompleteMultipartUploadResponse::parse(&done.text()?);
        done.map(drop).map_err(|_| SinkError::Response { operation: "CompleteMultipartUpload" })
    }
}

/// The parts of a sealed file.
struct Parts {
    file: File,
    path: PathBuf,
}

impl Parts {
    fn of(snapshot: &SealedSnapshot) -> Result<Self, SinkError> {
        let path = snapshot.file.path().to_owned();
        match snapshot.reopen() {
            Ok(file) => Ok(Self { file, path }),
            Err(cause) => Err(SinkError::File { operation: "read", path, cause }),
        }
    }

    /// Returns the next part; none at the end.
    fn next(&mut self) -> Result<Option<Bytes>, SinkError> {
        let mut content = Vec::new();
        let read = (&mut self.file).take(PART).read_to_end(&mut content);
        read.map_err(|cause| SinkError::File { operation: "read", path: self.path.clone(), cause })?;
        Ok((!content.is_empty()).then(|| content.into()))
    }
}

fn tls(authorities: Option<&[u8]>) -> Result<ClientConfig, SinkError> {
    let mut roots = RootCertStore::empty();
    match authorities {
        Some(pem) => {
            for certificate in CertificateDer::pem_slice_iter(pem) {
                let certificate = certificate.map_err(|_| SinkError::Settings("ca.crt is not PEM"))?;
                roots
                    .add(certificate)
                    .map_err(|_| SinkError::Settings("ca.crt has a certificate that is no authority"))?;
            }
        }
        None => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
    }
    if roots.is_empty() {
        let problem =
            "no certificate authorities: this machine has none, and the Secret of the credentials has no ca.crt";
        return Err(SinkError::Settings(problem));
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions();
    let builder = builder.map_err(|_| SinkError::Settings("this build has no TLS"))?;
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
}

#[async_trait]
impl SnapshotSink for S3Sink {
    async fn spool(&self) -> Result<PathBuf, SinkError> {
        Ok(self.spool.clone())
    }

    async fn put_snapshot(&self, key: &str, snapshot: &SealedSnapshot) -> Result<(), SinkError> {
        let key = format!("{}{key}", self.prefix);
        if snapshot.sealed_size > PART {
            return self.upload_in_parts(&key, snapshot).await;
        }
        let content = Parts::of(snapshot)?.next()?.unwrap_or_default();
        self.upload_at_once(&key, content).await
    }

    async fn get_snapshot(&self, key: &str) -> Result<File, SinkError> {
        let key = format!("{}{key}", self.prefix);
        let action = self.bucket.get_object(Some(&self.credentials), &key);
        let failed = |cause| SinkError::File { operation: "write to", path: self.spool.clone(), cause };
        // The file has no name, so that it disappears with this process.
        let mut file = tempfile::tempfile_in(&self.spool).map_err(failed)?;
        self.client.download("GetObject", &action, |part| file.write_all(part).map_err(failed)).await?;
        Ok(file)
    }

    async fn put(&self, key: &str, content: Vec<u8>) -> Result<(), SinkError> {
        self.upload_at_once(&format!("{}{key}", self.prefix), content.into()).await
    }

    async fn get(&self, key: &str) -> Result<Vec<u8>, SinkError> {
        let key = format!("{}{key}", self.prefix);
        let action = self.bucket.get_object(Some(&self.credentials), &key);
        Ok(self.client.send("GetObject", &action, Bytes::new()).await?.body.into())
    }

    async fn list(&self, prefix: &str) -> Result<Vec<String>, SinkError> {
        let prefix = format!("{}{prefix}", self.prefix);
        let mut found = Vec::new();
        let mut next: Option<String> = None;
        loop {
            let mut action = self.bucket.list_objects_v2(Some(&self.credentials));
            action.with_prefix(prefix.as_str());
            if let Some(token) = next {
                action.with_continuation_token(token);
            }
            let page = self.client.send("ListObjectsV2", &action, Bytes::new()).await?.text()?;
            let page = ListObjectsV2::parse_response(&page);
            let page = page.map_err(|_| SinkError::Response { operation: "ListObjectsV2" })?;
            let keys = page.contents.into_iter().map(|object| object.key);
            found.extend(keys.filter_map(|key| Some(key.strip_prefix(&self.prefix)?.to_owned())));
            next = page.next_continuation_token;
            if next.is_none() {
                return Ok(found);
            }
        }
    }

    async fn delete(&self, key: &str) -> Result<(), SinkError> {
        let key = format!("{}{key}", self.prefix);
        let action = self.bucket.delete_object(Some(&self.credentials), &key);
        match self.client.send("DeleteObject", &action, Bytes::new()).await {
            Err(SinkError::Refused { status: 404, .. }) => Ok(()),
            done => done.map(drop),
        }
    }
}
