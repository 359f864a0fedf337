//! The report of ginkgo.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::omitted;

/// The most characters of a failure.
const MESSAGE: usize = 200;

/// What became of each conformance test. Names are those of Kubernetes' list (`test/conformance/testdata/conformance.yaml`).
#[derive(Debug, Default, PartialEq)]
pub(crate) struct ConformanceReport {
    pub(crate) passed: BTreeSet<String>,
    /// Those that passed after they had failed once.
    pub(crate) repeated: BTreeSet<String>,
    /// The beginning of the failure of each.
    pub(crate) failed: BTreeMap<String, String>,
    /// The names by the reason why they did not run.
    pub(crate) omitted: BTreeMap<String, BTreeSet<String>>,
    /// Those that a run of all tests left out, and that ran later.
    pub(crate) added: BTreeSet<String>,
}

impl ConformanceReport {
    /// Reads the JSON report.
    pub(crate) fn read(report: &str) -> Self {
        let suites: Value = serde_json::from_str(report).unwrap();
        let mut read = Self::default();
        for spec in suites[0]["SpecReports"].as_array().unwrap() {
            read.add(spec);
        }
        read
    }

    /// Adds the tests of a later run that this one left out. What this run found stays.
    pub(crate) fn complete(&mut self, later: Self) {
        let ran: BTreeSet<String> = self.passed.iter().chain(self.failed.keys()).cloned().collect();
        self.passed.extend(later.passed.difference(&ran).cloned());
        self.repeated.extend(later.repeated.difference(&ran).cloned());
        self.failed.extend(later.failed.into_iter().filter(|(name, _)| !ran.contains(name)));
        let all = self.passed.iter().chain(self.failed.keys());
        self.added = all.filter(|name| !ran.contains(*name)).cloned().collect();
        for names in self.omitted.values_mut() {
            names.retain(|name| !self.added.contains(name));
        }
        self.omitted.retain(|_, names| !names.is_empty());
    }

    fn add(&mut self, spec: &Value) {
        let (name, state) = (name(spec), spec["State"].as_str().unwrap());
        if spec["LeafNodeType"] != "It" {
            // The suite itself could not begin or end.
            if state != "passed" && state != "skipped" {
                self.failed.insert(spec["LeafNodeType"].to_string(), message(spec));
            }
            return;
        }
        if !name.contains("[Conformance]") {
            return;
        }
        match state {
            "passed" => {
                if spec["NumAttempts"].as_u64() > Some(1) {
                    self.repeated.insert(name.clone());
                }
                self.passed.insert(name);
            }
            "skipped" | "pending" => {
                let by_itself = || format!("the test skips itself: {}", message(spec));
                let reason = omitted::reason(&name).unwrap_or_else(by_itself);
                self.omitted.entry(reason).or_default().insert(name);
            }
            _ => {
                self.failed.insert(name, message(spec));
            }
        }
    }
}

fn name(spec: &Value) -> String {
    let containers = spec["ContainerHierarchyTexts"].as_array().into_iter().flatten();
    let texts = containers.chain([&spec["LeafNodeText"]]).filter_map(Value::as_str);
    texts.collect::<Vec<_>>().join(" ")
}

/// Returns the beginning of the failure of a spec in one line.
fn message(spec: &Value) -> String {
    let message = spec["Failure"]["Message"].as_str().unwrap_or_default();
    let line = message.split_whitespace().collect::<Vec<_>>().join(" ");
    line.chars().take(MESSAGE).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::{Value, json};

    use super::ConformanceReport;

    fn spec(text: &str, state: &str, attempts: u64, message: &str) -> Value {
        json!({
            "ContainerHierarchyTexts": ["[sig-node] Pods"],
            "LeafNodeType": "It",
            "LeafNodeText": text,
            "State": state,
            "NumAttempts": attempts,
            "Failure": {"Message": message},
        })
    }

    fn read(specs: &[Value]) -> ConformanceReport {
        ConformanceReport::read(&json!([{"SpecReports": specs}]).to_string())
    }

    #[test]
    fn each_conformance_test_is_counted_once() {
        let report = read(&[
            spec("run [Conformance]", "passed", 1, ""),
            spec("run again [Conformance]", "passed", 2, ""),
            spec("end [Conformance]", "failed", 2, "timed out\n  after 5 s"),
            spec("fill a Node [Serial] [Conformance]", "skipped", 0, ""),
            spec("need Windows [Conformance]", "skipped", 1, "no Windows here"),
            spec("are of no interest", "failed", 1, "no"),
        ]);
        let again = "[sig-node] Pods run again [Conformance]";
        assert_eq!(report.passed.iter().collect::<Vec<_>>(), ["[sig-node] Pods run [Conformance]", again]);
        assert_eq!(report.repeated.iter().collect::<Vec<_>>(), [again]);
        assert_eq!(report.failed["[sig-node] Pods end [Conformance]"], "timed out after 5 s");
        assert_eq!(report.failed.len(), 1);
        let reasons: Vec<&String> = report.omitted.keys().collect();
        assert!(reasons[0].starts_with("`[Serial]`: "), "{reasons:?}");
        assert_eq!(reasons[1], "the test skips itself: no Windows here");
    }

    #[test]
    fn a_later_run_adds_only_what_was_left_out() {
        let mut report = read(&[
            spec("run [Conformance]", "passed", 1, ""),
            spec("end [Conformance]", "failed", 2, "timed out"),
            spec("need a program [Conformance]", "skipped", 1, "no program"),
            spec("fill a Node [Serial] [Conformance]", "skipped", 0, ""),
        ]);
        report.complete(read(&[
            spec("run [Conformance]", "failed", 2, "no"),
            spec("end [Conformance]", "passed", 1, ""),
            spec("need a program [Conformance]", "passed", 2, ""),
            spec("begin [Conformance]", "failed", 2, "no"),
        ]));
        let name = |text: &str| format!("[sig-node] Pods {text} [Conformance]");
        let names = |texts: &[&str]| texts.iter().map(|text| name(text)).collect::<BTreeSet<_>>();
        assert_eq!(report.passed, names(&["run", "need a program"]));
        assert_eq!(report.repeated, names(&["need a program"]));
        assert_eq!(report.failed.into_keys().collect::<BTreeSet<_>>(), names(&["end", "begin"]));
        assert_eq!(report.added, names(&["need a program", "begin"]));
        let omitted: Vec<_> = report.omitted.into_values().collect();
        assert_eq!(omitted, [names(&["fill a Node [Serial]"])]);
    }

    #[test]
    fn a_suite_that_cannot_begin_has_failed() {
        let setup = json!({
            "LeafNodeType": "SynchronizedBeforeSuite",
            "State": "failed",
            "Failure": {"Message": "Nodes are not ready"},
        });
        assert_eq!(read(&[setup]).failed["\"SynchronizedBeforeSuite\""], "Nodes are not ready");
    }
}
