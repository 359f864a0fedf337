//! `keelway version`.

use clap::{Args, ValueEnum};
use keelway_api::release::MINORS;
use serde::Serialize;

use super::print;
use crate::{
    exit::{Code, CommandFailure},
    table::TextTable,
    terminal,
};

#[derive(Args)]
pub(crate) struct VersionArguments {
    /// The output format
    #[arg(short, long, value_enum, default_value = "text")]
    pub(crate) output: VersionOutput,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum VersionOutput {
    /// Lines for people
    Text,
    /// JSON
    Json,
    /// YAML
    Yaml,
}

/// The version of this program, and the minor versions that it supports.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct VersionReport {
    client_version: &'static str,
    releases: Vec<SupportedRelease>,
}

/// A minor version that clusters can run, with its newest tested patch release.
#[derive(Serialize)]
struct SupportedRelease {
    kubernetes: &'static str,
    etcd: &'static str,
}

pub(super) fn run(arguments: &VersionArguments) -> Result<Code, CommandFailure> {
    let releases = MINORS.iter().map(|row| SupportedRelease { kubernetes: row.tested, etcd: row.etcd }).collect();
    let version = VersionReport { client_version: env!("CARGO_PKG_VERSION"), releases };
    let text = match arguments.output {
        VersionOutput::Text => render(&version),
        VersionOutput::Json => serde_json::to_string_pretty(&version).map_err(CommandFailure::other)? + "\n",
        VersionOutput::Yaml => serde_saphyr::to_string(&version).map_err(CommandFailure::other)?,
    };
    print(&text)?;
    Ok(Code::Done)
}

fn render(version: &VersionReport) -> String {
    let mut table = TextTable::new(&["KUBERNETES", "ETCD"]);
    for release in &version.releases {
        table.row(vec![release.kubernetes.to_owned(), release.etcd.to_owned()]);
    }
    format!("Client Version: {}\n\n{}", version.client_version, table.render(terminal::columns()))
}
