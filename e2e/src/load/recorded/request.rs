//! The requests of a recorded load.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use http::Method;
use serde_json::{Value, json};

use super::{RecordedLoadState, history::RecordedHistory};
use crate::{
    linearizability::{ListAction, RegisterAction, TimedAction},
    load::{KeepAliveConnection, client::retry},
};

/// How long a request is retried: all members may be killed at once, and then no API server responds until a majority works again.
const PATIENCE: Duration = Duration::from_secs(60);
const OBJECTS: &str = "/api/v1/namespaces/default/configmaps";
/// The label of the objects in the list of a load.
const LABEL: &str = "recorded-load";

/// One attempt of a request, and what it does.
struct RecordedAttempt<A> {
    method: Method,
    path: String,
    body: String,
    /// The result is not known before the response.
    action: A,
}

impl RecordedLoadState {
    pub(super) async fn write(&self, kept: &mut KeepAliveConnection, register: u64) {
        let name = format!("{}-register-{register}", self.name);
        let attempt = || {
            let number = self.number();
            self.apply(&name, number, false, RegisterAction::Write(number))
        };
        let record =
            |history: &mut RecordedHistory, action| history.registers.entry(register).or_default().push(action);
        self.request(kept, "write", attempt, |action, _| action, record).await;
    }

    pub(super) async fn read(&self, kept: &mut KeepAliveConnection, register: u64) {
        let path = format!("{OBJECTS}/{}-register-{register}", self.name);
        let attempt = || RecordedAttempt {
            method: Method::GET,
            path: path.clone(),
            body: String::new(),
            action: RegisterAction::Read(None),
        };
        let record =
            |history: &mut RecordedHistory, action| history.registers.entry(register).or_default().push(action);
        self.request(kept, "read", attempt, |_, object| RegisterAction::Read(number(object)), record).await;
    }

    /// Returns the number of the object.
    pub(super) async fn create(&self, kept: &mut KeepAliveConnection) -> Option<u64> {
        let attempt = || {
            let number = self.number();
            self.apply(&format!("{}-{number}", self.name), number, true, ListAction::Create(number))
        };
        let done = self.request(kept, "create", attempt, |action, _| action, RecordedHistory::add_to_list).await;
        done.and_then(|action| if let ListAction::Create(number) = action { Some(number) } else { None })
    }

    pub(super) async fn delete(&self, kept: &mut KeepAliveConnection, number: u64) {
        let attempt = || RecordedAttempt {
            method: Method::DELETE,
            path: format!("{OBJECTS}/{}-{number}", self.name),
            body: String::new(),
            action: ListAction::Delete(number),
        };
        let result = |action, answer: &Value| {
            if answer["status"] == "Failure" { ListAction::NotFound(number) } else { action }
        };
        self.request(kept, "delete", attempt, result, RecordedHistory::add_to_list).await;
    }

    pub(super) async fn list(&self, kept: &mut KeepAliveConnection) {
        let attempt = || RecordedAttempt {
            method: Method::GET,
            path: format!("{OBJECTS}?labelSelector={LABEL}%3D{}", self.name),
            body: String::new(),
            action: ListAction::List(BTreeSet::new()),
        };
        let result = |_, answer: &Value| {
            let items = answer["items"].as_array().into_iter().flatten();
            ListAction::List(items.filter_map(number).collect())
        };
        self.request(kept, "list", attempt, result, RecordedHistory::add_to_list).await;
    }

    /// Returns a server-side apply.
    fn apply<A>(&self, name: &str, number: u64, listed: bool, action: A) -> RecordedAttempt<A> {
        let labels = if listed { json!({ LABEL: self.name }) } else { json!({}) };
        let body = json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": { "name": name, "labels": labels },
            "data": { "number": number.to_string() },
        });
        let path = format!("{OBJECTS}/{name}?fieldManager=load&force=true");
        RecordedAttempt { method: Method::PATCH, path, body: body.to_string(), action }
    }

    /// Sends one request, with retries until the window ends, and records each attempt. Returns what it did. `result` completes an action by the
    /// response.
    async fn request<A: Clone>(
        &self,
        kept: &mut KeepAliveConnection,
        what: &str,
        attempt: impl Fn() -> RecordedAttempt<A>,
        result: impl Fn(A, &Value) -> A,
        record: impl Fn(&mut RecordedHistory, TimedAction<A>),
    ) -> Option<A> {
        let started = Instant::now();
        let mut done = None;
        let asked = retry(kept, PATIENCE, async |kept| {
            let RecordedAttempt { method, path, body, action } = attempt();
            let invoked = self.started.elapsed();
            let answer = self.client.attempt(kept, &method, &path, &body).await;
            let returned = answer.is_ok().then(|| self.started.elapsed());
            let action = answer.as_ref().map_or_else(|_| action.clone(), |value| result(action.clone(), value));
            done = returned.map(|_| action.clone());
            record(&mut self.recorded().1, TimedAction { invoked, returned, action });
            answer
        })
        .await;
        self.recorded().0.count(what, &asked, started.elapsed());
        done
    }
}

fn number(object: &Value) -> Option<u64> {
    object["data"]["number"].as_str()?.parse().ok()
}
