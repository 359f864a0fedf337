//! The kubeconfig of a component that connects to an API server.

use alloc::format;
use core::{fmt::Display, net::SocketAddr};

use keelway_api::{
    machine::{OnChange, PodFile},
    role::{Role, SECURE},
};

use super::{FILES, MissingKey, PodInputs, text};
use crate::secret_names::API_SERVER_NAME;

impl PodInputs<'_> {
    /// Names the API server on the same machine, else the first by name. Certificates are files, which clients read again when they change.
    pub(super) fn kubeconfig(&self, on_change: OnChange) -> Result<PodFile, MissingKey> {
        if let Some(hosting) = self.world.hosting() {
            return Ok(Self::kubeconfig_of(&hosting.api_server(), on_change));
        }
        let beside = self.siblings(Role::KubeApiserver).find(|(_, _, machine)| machine.name == self.machine.name);
        let (_, spec, machine) = beside
            .or_else(|| self.siblings(Role::KubeApiserver).next())
            .ok_or_else(|| MissingKey::new("an API server"))?;
        let address =
            machine.private.first().ok_or_else(|| MissingKey::new("a private address of its API server's machine"))?;
        Ok(Self::kubeconfig_of(&SocketAddr::new(*address, spec.port(SECURE)), on_change))
    }

    /// Names this address of the API.
    pub(crate) fn kubeconfig_of(server: &impl Display, on_change: OnChange) -> PodFile {
        // Nothing in it needs to be escaped in JSON.
        let content = format!(
            r#"{{
  "apiVersion": "v1",
  "kind": "Config",
  "clusters": [
    {{
      "name": "cluster",
      "cluster": {{
        "server": "https://{server}",
        "certificate-authority": "{FILES}/ca.crt",
        "tls-server-name": "{API_SERVER_NAME}"
      }}
    }}
  ],
  "users": [
    {{
      "name": "user",
      "user": {{
        "client-certificate": "{FILES}/client.crt",
        "client-key": "{FILES}/client.key"
      }}
    }}
  ],
  "contexts": [
    {{
      "name": "context",
      "context": {{
        "cluster": "cluster",
        "user": "user"
      }}
    }}
  ],
  "current-context": "context"
}}
"#,
        );
        text("kubeconfig.json", content, on_change)
    }
}
