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
        if !report.added.is_empty() {
            writeln!(page, "{}", of_two_runs(report.added.len()))?;
        }
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

fn of_two_runs(added: usize) -> String {
    let tests = if added == 1 { "1 test".to_owned() } else { format!("{added} tests") };
    format!(
        "The figures are of a run of all tests, and of one of some tests after it. {tests} ran in the second only.\n"
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
    use std::{
        collections::{BTreeMap, BTreeSet},
        fs,
    };

    use super::ConformancePage;
    use crate::report::ConformanceReport;

    fn names(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn the_page_counts_and_names() {
        let report = ConformanceReport {
            passed: names(&["a", "b"]),
            repeated: names(&["b"]),
            failed: BTreeMap::from([("c".to_owned(), "x|y".to_owned())]),
            omitted: BTreeMap::from([("they are slow".to_owned(), names(&["d", "e", "f", "g"]))]),
            added: BTreeSet::new(),
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
        assert!(!page.contains("two runs") && !page.contains("in the second only"), "{page}");
        let report = ConformanceReport { added: names(&["b"]), ..report };
        let page = ConformancePage { version: "1.2.3", report: &report }.to_string();
        assert!(page.contains("1 test ran in the second only."), "{page}");
    }

    /// Returns this many names.
    fn some(kind: &str, count: &str) -> BTreeSet<String> {
        (0..count.parse().unwrap()).map(|number: usize| format!("{kind}{number}")).collect()
    }

    /// Reads the report from a page. Names that the page only counts are others.
    fn read(page: &str) -> ConformanceReport {
        let section = |title: &str| page.split(&format!("\n## {title}\n")).nth(1).unwrap_or_default();
        let until = |text: &str| text.split("\n## ").next().unwrap().to_owned();
        let rows = |text: &str| -> Vec<(String, String)> {
            let cells = text.lines().filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |")?.split_once(" | "));
            let read = |cell: &str| cell.replace("\\|", "|").replace("&lt;", "<");
            cells.map(|(left, right)| (read(left), read(right))).collect()
        };
        let counts: BTreeMap<String, String> = rows(&until(page)).into_iter().collect();
        let repeated = until(section("Passed at the second attempt"));
        let repeated: BTreeSet<String> =
            repeated.lines().filter_map(|line| line.strip_prefix("- ")).map(str::to_owned).collect();
        let passed = some("passed", &counts["passed"]).into_iter().skip(repeated.len());
        let omitted = rows(&until(section("Left out"))).into_iter().filter(|(tests, _)| tests != "Tests");
        let omitted = omitted.enumerate().map(|(at, (tests, why))| match tests.parse::<usize>() {
            Ok(_) => (why, some(&format!("omitted{at}-"), &tests)),
            Err(_) => (why, tests.split("; ").map(str::to_owned).collect()),
        });
        let added = page
            .split_once(" tests ran in the second only")
            .map_or("0", |(before, _)| before.rsplit(' ').next().unwrap());
        ConformanceReport {
            passed: passed.chain(repeated.clone()).collect(),
            repeated,
            failed: rows(&until(section("Failed"))).into_iter().filter(|(test, _)| test != "Test").collect(),
            omitted: omitted.collect(),
            added: some("added", added),
        }
    }

    #[test]
    fn the_page_is_as_a_run_writes_it() {
        let page = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/conformance.md")).unwrap();
        let version = page.split("conformance tests of Kubernetes ").nth(1).unwrap().split(' ').next().unwrap();
        assert_eq!(ConformancePage { version, report: &read(&page) }.to_string(), page);
    }
}
