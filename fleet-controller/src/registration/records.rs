//! Where the records of agents are: one ConfigMap with a key for each cluster. It outlives the objects of a cluster.

use k8s_openapi::api::core::v1::ConfigMap;
use keelway_component::requests::{call, ignore_conflict};
use kube::{
    Api, Client,
    api::{Patch, PostParams},
};
use serde_json::json;

use super::record::AgentRecord;
use crate::context::{FleetControllerError, applied};

/// The name of the ConfigMap, in `kube-system`.
const NAME: &str = "keelway-fleet-agents";

/// The records of all agents, as they were read.
pub(crate) struct AgentRecords {
    api: Api<ConfigMap>,
    read: ConfigMap,
}

impl AgentRecords {
    /// Reads the records from the API server, not from a cache: an approval may be very recent.
    pub(crate) async fn read(client: &Client) -> Result<Self, FleetControllerError> {
        let api = Api::<ConfigMap>::namespaced(client.clone(), "kube-system");
        let read = if let Some(read) = call("read the record of agents", api.get_opt(NAME)).await? {
            read
        } else {
            let empty = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": NAME } });
            call("create the record of agents", api.patch(NAME, &applied(), &Patch::Apply(&empty))).await?
        };
        Ok(Self { api, read })
    }

    /// Returns the record of a cluster's agent.
    pub(crate) fn of(&self, cluster: &str) -> Result<Option<AgentRecord>, FleetControllerError> {
        let text = self.read.data.as_ref().and_then(|data| data.get(cluster));
        text.map(|text| serde_json::from_str(text)).transpose().map_err(|source| FleetControllerError::Record {
            name: NAME,
            cluster: cluster.to_owned(),
            source,
        })
    }

    /// Writes the record of a cluster's agent, if no other replica wrote in between.
    pub(crate) async fn write(mut self, cluster: &str, record: &AgentRecord) -> Result<(), FleetControllerError> {
        let text = serde_json::to_string(record).unwrap_or_default();
        let data = self.read.data.get_or_insert_default();
        if data.get(cluster) == Some(&text) {
            return Ok(());
        }
        data.insert(cluster.to_owned(), text);
        self.read.metadata.managed_fields = None;
        let parameters = PostParams::default();
        let written = self.api.replace(NAME, &parameters, &self.read);
        match ignore_conflict("write the record of an agent", written).await? {
            Some(_) => Ok(()),
            None => Err(FleetControllerError::RecordChanged),
        }
    }
}
