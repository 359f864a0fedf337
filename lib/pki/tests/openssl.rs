//! Checks of certificates and keys with OpenSSL.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot set itself up fails")]

mod support;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use jiff::{Timestamp, ToSpan};
use keelway_pki::{
    Authority, AuthorityCertificate, AuthorityError, AuthorityKeyring, CertificateFacts, CertificateUsage, Generations,
    IssuedCertificate, PrivateKeyPem, RetiredAuthority, ServiceAccountKey, Validity,
};
use support::{authority, client, hours, issue, now, seeded, server};
use tempfile::TempDir;

/// A directory that only its owner can read. It is removed on drop.
struct Files(TempDir);

impl Files {
    fn new() -> Self {
        Self(tempfile::Builder::new().prefix("keelway-pki-openssl-").tempdir().unwrap())
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.path().join(name);
        fs::write(&path, text).unwrap();
        path
    }
}

/// Returns the output of openssl. If openssl fails, returns its errors.
fn openssl<'a>(arguments: impl IntoIterator<Item = &'a str>, file: &Path) -> Result<String, String> {
    let output =
        Command::new("openssl").args(arguments).arg(file).output().expect("openssl is installed (see `make setup`)");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
}

fn verify(bundle: &Path, leaf: &Path, purpose: &str, at: Timestamp) -> Result<String, String> {
    let (bundle, at) = (bundle.to_str().unwrap(), at.as_second().to_string());
    openssl(["verify", "-x509_strict", "-CAfile", bundle, "-purpose", purpose, "-attime", &at], leaf)
}

fn text(certificate: &Path) -> String {
    let text = openssl(["x509", "-noout", "-text", "-nameopt", "oneline", "-in"], certificate).unwrap();
    text.lines().map(str::trim).collect::<Vec<_>>().join("\n")
}

#[test]
fn chains_verify_for_their_purpose_and_time_only() {
    let files = Files::new();
    let authority = authority(1);
    let bundle = files.write("ca.crt", authority.certificate().pem());
    let server = files.write("server.crt", &issue(&authority, &server()).certificate_pem);
    let client = files.write("client.crt", &issue(&authority, &client()).certificate_pem);

    verify(&bundle, &server, "sslserver", now()).unwrap();
    verify(&bundle, &client, "sslclient", now()).unwrap();
    verify(&bundle, &client, "sslclient", now() - 5.minutes()).unwrap();
    verify(&bundle, &bundle, "any", now()).unwrap();

    let refused = |file: &Path, purpose, at| verify(&bundle, file, purpose, at).unwrap_err();
    assert!(refused(&server, "sslclient", now()).contains("unsuitable certificate purpose"));
    assert!(refused(&client, "sslserver", now()).contains("unsuitable certificate purpose"));
    assert!(refused(&client, "sslclient", now() + 25.hours()).contains("certificate has expired"));
    assert!(refused(&client, "sslclient", now() - 6.minutes()).contains("certificate is not yet valid"));
}

#[test]
fn a_bundle_verifies_certificates_of_any_generation() {
    let files = Files::new();
    let keyring = AuthorityKeyring {
        next: Some(authority(3)),
        active: authority(2),
        previous: Some(RetiredAuthority::Trusted(authority(1).certificate().clone())),
    };
    let bundle = files.write("bundle.crt", &keyring.bundle_pem());
    let alone = files.write("active.crt", &Generations::first(authority(2)).bundle_pem());
    for seed in [1, 2, 3] {
        let leaf = files.write("leaf.crt", &issue(&authority(seed), &client()).certificate_pem);
        verify(&bundle, &leaf, "sslclient", now()).unwrap();
        assert_eq!(verify(&alone, &leaf, "sslclient", now()).is_ok(), seed == 2, "generation {seed}");
    }
}

#[test]
fn nothing_below_a_leaf_verifies() {
    let files = Files::new();
    let authority = authority(1);
    let leaf = issue(&authority, &client());
    let trusted = files.write("leaf.crt", &leaf.certificate_pem);
    let other = files.write("other.crt", &issue(&authority, &server()).certificate_pem);
    verify(&trusted, &other, "sslserver", now()).unwrap_err();
}

#[test]
fn an_authority_has_the_extensions_of_an_authority() {
    let files = Files::new();
    let text = text(&files.write("ca.crt", authority(1).certificate().pem()));
    for part in [
        "Issuer: CN = kubernetes",
        "Subject: CN = kubernetes",
        "Signature Algorithm: ecdsa-with-SHA256",
        "ASN1 OID: prime256v1",
        "X509v3 Basic Constraints: critical\nCA:TRUE, pathlen:0",
        "X509v3 Key Usage: critical\nDigital Signature, Certificate Sign, CRL Sign",
        "X509v3 Subject Key Identifier:",
        "Not Before: Nov 21 11:55:00 2026 GMT",
        "Not After : Nov 18 12:00:00 2036 GMT",
    ] {
        assert!(text.contains(part), "{part} is missing in\n{text}");
    }
}

#[test]
fn leaves_have_their_names_and_usages() {
    let files = Files::new();
    let authority = authority(1);
    let server = text(&files.write("server.crt", &issue(&authority, &server()).certificate_pem));
    for part in [
        "Issuer: CN = kubernetes",
        "Subject: CN = kube-apiserver",
        "X509v3 Basic Constraints: critical\nCA:FALSE",
        "X509v3 Key Usage: critical\nDigital Signature\n",
        "X509v3 Extended Key Usage:\nTLS Web Server Authentication\n",
        "X509v3 Subject Alternative Name:\nDNS:kubernetes.default.svc, DNS:*.c1.example.org, \
         IP Address:10.96.0.1, IP Address:FD00:0:0:0:0:0:0:1",
        "X509v3 Authority Key Identifier:",
    ] {
        assert!(server.contains(part), "{part} is missing in\n{server}");
    }
    let client = text(&files.write("client.crt", &issue(&authority, &client()).certificate_pem));
    for part in [
        "Subject: O = \"keelway:admins, with a comma\", CN = kubernetes-admin",
        "X509v3 Extended Key Usage:\nTLS Web Client Authentication\n",
    ] {
        assert!(client.contains(part), "{part} is missing in\n{client}");
    }
    assert!(!client.contains("Subject Alternative Name"));
}

#[test]
fn both_usages_at_once() {
    let files = Files::new();
    let authority = Authority::mint("etcd-ca", hours(87600), &mut seeded(1)).unwrap();
    let mut peer = server();
    peer.usages = vec![CertificateUsage::ServerAuth, CertificateUsage::ClientAuth];
    let bundle = files.write("ca.crt", authority.certificate().pem());
    let leaf = files.write("peer.crt", &issue(&authority, &peer).certificate_pem);
    verify(&bundle, &leaf, "sslserver", now()).unwrap();
    verify(&bundle, &leaf, "sslclient", now()).unwrap();
}

#[test]
fn dates_past_2049_are_written_the_other_way() {
    let files = Files::new();
    let far: Timestamp = "2061-02-03T04:05:06Z".parse().unwrap();
    let validity = Validity::new(now(), far).unwrap();
    let authority = Authority::mint("kubernetes", validity, &mut seeded(1)).unwrap();
    let file = files.write("ca.crt", authority.certificate().pem());
    assert!(text(&file).contains("Not After : Feb  3 04:05:06 2061 GMT"));
    verify(&file, &file, "any", far - 1.second()).unwrap();
    verify(&file, &file, "any", far + 1.second()).unwrap_err();
}

#[test]
fn keys_are_read_and_belong_together() {
    let files = Files::new();
    let key = ServiceAccountKey::mint(&mut seeded(1)).unwrap();
    let private = files.write("sa.key", key.private_pem().expose());
    assert_eq!(openssl(["pkey", "-pubout", "-in"], &private).unwrap(), key.public_pem().as_str());
    openssl(["pkey", "-check", "-noout", "-in"], &private).unwrap();

    let leaf = issue(&authority(1), &client());
    let of_key = openssl(["pkey", "-pubout", "-in"], &files.write("leaf.key", leaf.key_pem.expose())).unwrap();
    let of_certificate =
        openssl(["x509", "-pubkey", "-noout", "-in"], &files.write("leaf.crt", &leaf.certificate_pem)).unwrap();
    assert_eq!(of_key, of_certificate);
}

/// Creates a self-signed authority with OpenSSL. Returns the file of the certificate, and the key.
fn made_by_openssl(files: &Files, subject: &str, extra: &str) -> (PathBuf, PrivateKeyPem) {
    let (certificate, key) = (files.0.path().join("ca.crt"), files.0.path().join("ca.key"));
    let arguments = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 3650 \
         -addext keyUsage=keyCertSign"
        .split(' ');
    let subject = ["-subj", subject, "-keyout", key.to_str().unwrap(), "-out"];
    openssl(arguments.chain(extra.split(' ')).chain(subject), &certificate).unwrap();
    (certificate, PrivateKeyPem::new(fs::read_to_string(&key).unwrap()))
}

/// Returns a name with the types of its strings, which Go compares and OpenSSL does not.
fn name(which: &str, certificate: &Path) -> String {
    let text = openssl(["x509", "-noout", "-nameopt", "RFC2253,show_type", which, "-in"], certificate).unwrap();
    text.split_once('=').unwrap().1.to_owned()
}

/// Issues a certificate under an authority that OpenSSL created. It is valid from the first second of the authority.
fn issued_below(certificate: &Path, key: &PrivateKeyPem) -> (Timestamp, IssuedCertificate) {
    let authority = Authority::from_pem(&fs::read_to_string(certificate).unwrap(), key).unwrap();
    let begin = authority.certificate().validity().not_before();
    let mut request = client();
    request.validity = Validity::new(begin, begin + 1.hour()).unwrap();
    (begin, issue(&authority, &request))
}

#[test]
fn an_authority_that_openssl_made_issues_leafs() {
    let files = Files::new();
    let subject = "/C=DE/O=Example, Inc./OU=one/CN=Root \u{fc}/emailAddress=root@example.org";
    let (certificate, key) = made_by_openssl(&files, subject, "-utf8");
    let (begin, leaf) = issued_below(&certificate, &key);
    let leaf = files.write("leaf.crt", &leaf.certificate_pem);
    verify(&certificate, &leaf, "sslclient", begin).unwrap();
    assert_eq!(name("-issuer", &leaf), name("-subject", &certificate));
    assert!(name("-issuer", &leaf).contains("C=PRINTABLESTRING:DE"));
}

#[test]
fn an_authority_without_a_key_identifier_issues_leafs() {
    let files = Files::new();
    let (certificate, key) = made_by_openssl(&files, "/CN=Root", "-addext subjectKeyIdentifier=none");
    let facts = CertificateFacts::from_pem(&fs::read_to_string(&certificate).unwrap()).unwrap();
    assert_eq!(facts.key_id, None);
    let (_, leaf) = issued_below(&certificate, &key);
    assert!(CertificateFacts::from_pem(&leaf.certificate_pem).unwrap().authority_key_id.is_some());
    let leaf = files.write("leaf.crt", &leaf.certificate_pem);
    openssl(["verify", "-no_check_time", "-CAfile", certificate.to_str().unwrap()], &leaf).unwrap();
}

#[test]
fn an_authority_whose_name_would_change_is_refused() {
    let files = Files::new();
    for subject in ["/O=Example/OU=one/OU=two/CN=Root", "/O=Example/OU=one+CN=Root"] {
        let (certificate, key) = made_by_openssl(&files, subject, "-multivalue-rdn");
        let pem = fs::read_to_string(&certificate).unwrap();
        assert!(matches!(Authority::from_pem(&pem, &key), Err(AuthorityError::Name)), "{subject}");
        AuthorityCertificate::from_pem(&pem).unwrap();
    }
}
