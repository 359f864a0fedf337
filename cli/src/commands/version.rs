//! `keelway version`.

use keelway_api::release::RELEASES;
use serde::Serialize;

use super::print;
use crate::{
    args::{VersionArguments, VersionOutput},
    exit::{Code, Failure},
    table::Table,
    terminal,
};

/// What this program is and runs.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Version {
    client_version: &'static str,
    releases: Vec<Runs>,
}

/// A release that clusters can run.
#[derive(Serialize)]
struct Runs {
    kubernetes: &'static str,
    etcd: &'static str,
}

pub(super) fn run(arguments: &VersionArguments) -> Result<Code, Failure> {
    let releases = RELEASES.iter().map(|release| Runs { kubernetes: release.kubernetes, etcd: release.etcd }).collect();
    let version = Version { client_version: env!("CARGO_PKG_VERSION"), releases };
    let text = match arguments.output {
        VersionOutput::Text => render(&version),
        VersionOutput::Json => serde_json::to_string_pretty(&version).map_err(Failure::other)? + "\n",
        VersionOutput::Yaml => serde_saphyr::to_string(&version).map_err(Failure::other)?,
    };
    print(&text)?;
    Ok(Code::Done)
}

fn render(version: &Version) -> String {
    let mut table = Table::new(&["KUBERNETES", "ETCD"]);
    for release in &version.releases {
        table.row(vec![release.kubernetes.to_owned(), release.etcd.to_owned()]);
    }
    format!("Client Version: {}\n\n{}", version.client_version, table.render(terminal::columns()))
}
