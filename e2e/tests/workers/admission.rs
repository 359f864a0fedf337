//! The API server sends admission requests to a pod.

use base64::{Engine, engine::general_purpose::STANDARD};
use keelway_e2e::{
    deadline,
    worker_fleet::{AGNHOST, TestCluster},
};

pub(crate) fn by_a_pod(cluster: &TestCluster) {
    let rcgen::CertifiedKey { cert, signing_key } =
        rcgen::generate_simple_self_signed(["judge.default.svc".to_owned()]).unwrap();
    let (certificate, key) = (pem("CERTIFICATE", cert.der()), pem("PRIVATE KEY", &signing_key.serialize_der()));
    cluster.kubectl.apply(&format!(
        "
apiVersion: v1
kind: Secret
metadata: {{name: judge}}
type: kubernetes.io/tls
data: {{tls.crt: {certificate}, tls.key: {key}}}
---
apiVersion: v1
kind: Pod
metadata: {{name: judge, labels: {{app: judge}}}}
spec:
  nodeName: w1
  terminationGracePeriodSeconds: 1
  containers:
    - name: judge
      image: {AGNHOST}
      args: [webhook, --tls-cert-file=/tls/tls.crt, --tls-private-key-file=/tls/tls.key, --port=8443]
      volumeMounts: [{{name: tls, mountPath: /tls}}]
      readinessProbe: {{httpGet: {{path: /readyz, port: 8443, scheme: HTTPS}}, periodSeconds: 1}}
  volumes: [{{name: tls, secret: {{secretName: judge}}}}]
---
apiVersion: v1
kind: Service
metadata: {{name: judge}}
spec: {{selector: {{app: judge}}, ports: [{{port: 443, targetPort: 8443}}]}}
"
    ));
    cluster.kubectl.wait("condition=Ready", &["pod/judge"]);
    cluster.kubectl.apply(&format!(
        "
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {{name: judge}}
webhooks:
  - name: judge.example.com
    rules: [{{apiGroups: [''], apiVersions: [v1], operations: [CREATE], resources: [configmaps]}}]
    objectSelector: {{matchLabels: {{judged: 'true'}}}}
    clientConfig: {{service: {{namespace: default, name: judge, path: /always-deny}}, caBundle: {certificate}}}
    admissionReviewVersions: [v1]
    sideEffects: None
    failurePolicy: Fail
    timeoutSeconds: 5
"
    ));
    let judged = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: judged, labels: {judged: 'true'}}\n";
    // The API server applies a new webhook after a short delay, and admits all objects until then.
    deadline::until("the webhook denies", deadline::KUBERNETES, || {
        let finished = cluster.kubectl.run_with(&["apply", "--dry-run=server", "-f", "-"], judged.as_bytes());
        finished.code() != 0 && finished.stderr.contains("this webhook denies all requests")
    });
    let _ = cluster.kubectl.run(&["create", "configmap", "not-judged"]).succeeded();
    let _ = cluster.kubectl.run(&["delete", "validatingwebhookconfiguration", "judge"]).succeeded();
}

/// Returns PEM, encoded in base64 once more for a Secret.
fn pem(label: &str, der: &[u8]) -> String {
    let body = STANDARD.encode(der);
    let lines: Vec<_> = body.as_bytes().chunks(64).map(String::from_utf8_lossy).collect();
    STANDARD.encode(format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", lines.join("\n")))
}
