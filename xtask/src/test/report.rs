//! Parses the output of a test binary.

/// The outcome of a test binary, as libtest prints it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct TestReport {
    pub(crate) passed: u32,
    pub(crate) failed: Vec<String>,
}

impl TestReport {
    /// Parses a log. Only the last summary counts: a test that runs itself on a separate host prints the summary of that run first.
    pub(crate) fn parse(log: &str) -> Self {
        let mut report = Self::default();
        let mut names: Vec<&str> = Vec::new();
        for line in log.lines() {
            if line == "failures:" {
                names.clear();
            } else if let Some(name) = line.strip_prefix("    ") {
                names.push(name);
            } else if let Some(summary) = line.strip_prefix("test result: ") {
                report.passed = passed(summary);
                let listed = names.drain(..).map(str::to_owned);
                report.failed = if summary.starts_with("FAILED") { listed.collect() } else { Vec::new() };
            } else if !line.is_empty() {
                names.clear();
            }
        }
        report
    }
}

/// Returns the number in `ok. 3 passed; 0 failed; ..`.
fn passed(summary: &str) -> u32 {
    let words: Vec<&str> = summary.split_whitespace().collect();
    words.windows(2).find(|pair| pair[1] == "passed;").and_then(|pair| pair[0].parse().ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::TestReport;

    const LOG: &str = "
running 3 tests
test one ... ok
test module::two ... FAILED
test three ... FAILED

failures:

---- module::two stdout ----
    indented words of a test
failures:
    not a name

---- three stdout ----
thread 'three' panicked

failures:
    module::two
    three

test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 2.11s
";

    #[test]
    fn failed_tests_are_read_from_the_last_list() {
        let report = TestReport { passed: 1, failed: ["module::two", "three"].map(str::to_owned).to_vec() };
        assert_eq!(TestReport::parse(LOG), report);
    }

    #[test]
    fn only_the_last_summary_counts() {
        let log = format!("{LOG}\ntest result: ok. 14 passed; 0 failed; 2 ignored\n");
        assert_eq!(TestReport::parse(&log), TestReport { passed: 14, failed: Vec::new() });
    }
}
