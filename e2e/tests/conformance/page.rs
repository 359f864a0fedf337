//! `docs/conformance.md`.

use std::{collections::BTreeSet, fmt};

use crate::report::ConformanceReport;

/// The most tests whose names are in one cell.
const FEW: usize = 3;

/// The page about one run.
pub(crate) struct ConformancePage<'a> {
    /// The version of Kubernetes.
    pub(crate) version: &'a str,
    pub(crate) report: &'a ConformanceReport,
}

impl fmt::Display for ConformancePage<'_> {
    fn fmt(&self, page: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { version, report } = self;
        let omitted: usize = report.omitted.values().map(BTreeSet::len).sum();
        writeln!(page, "{}", intro(version))?;
        writeln!(page, "| Conformance tests | |\n|---|---|")?;
        writeln!(page, "| passed | {} |", report.passed.len())?;
        writeln!(page, "| of these, at the second attempt | {} |", report.repeated.len())?;
        writeln!(page, "| failed | {} |", report.failed.len())?;
        writeln!(page, "| left out | {omitted} |")?;
        if !report.failed.is_empty() {
            writeln!(page, "\n## Failed\n\n| Test | Failure |\n|---|---|")?;
            report.failed.iter().try_for_each(|(name, why)| row(page, name, why))?;
        }
        if !report.repeated.is_empty() {
            writeln!(page, "\n## Passed at the second attempt\n")?;
            report.repeated.iter().try_for_each(|name| writeln!(page, "- {}", cell(name)))?;
        }
        writeln!(page, "\n## Left out\n\n| Tests | Why |\n|---|---|")?;
        report.omitted.iter().try_for_each(|(why, names)| row(page, &listed(names), why))
    }
}

fn intro(version: &str) -> String {
    format!(
        "\
# Conformance

`make conformance` runs the conformance tests of Kubernetes {version} and writes this page. The cluster has one replica of each control plane
component, two ingresses with a gateway each on two public machines, and two workers, each behind a NAT of its own. It is Keelway's default cluster:
no test has a setting of its own.

The run is not a certification. It leaves out tests that need the cluster for themselves, and its test images are made from Debian packages and from
the Go module of the release, under the names of the public images.
"
    )
}

fn row(page: &mut fmt::Formatter<'_>, left: &str, right: &str) -> fmt::Result {
    writeln!(page, "| {} | {} |", cell(left), cell(right))
}

/// Returns the names of a few tests, or the number of many.
fn listed(names: &BTreeSet<String>) -> String {
    if names.len() > FEW {
        return names.len().to_string();
    }
    names.iter().map(String::as_str).collect::<Vec<_>>().join("; ")
}

/// Returns a text as the cell of a table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::ConformancePage;
    use crate::report::ConformanceReport;

    #[test]
    fn the_page_counts_and_names() {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<String>>();
        let report = ConformanceReport {
            passed: names(&["a", "b"]),
            repeated: names(&["b"]),
            failed: BTreeMap::from([("c".to_owned(), "x|y".to_owned())]),
            omitted: BTreeMap::from([("they are slow".to_owned(), names(&["d", "e", "f", "g"]))]),
        };
        let page = ConformancePage { version: "1.2.3", report: &report }.to_string();
        for line in [
            "| passed | 2 |",
            "| of these, at the second attempt | 1 |",
            "| failed | 1 |",
            "| left out | 4 |",
            "| c | x\\|y |",
            "- b",
            "| 4 | they are slow |",
        ] {
            assert!(page.lines().any(|written| written == line), "{line} is missing:\n{page}");
        }
    }
}
