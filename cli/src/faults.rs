//! Reports faults of documents to people, with the line of each.

use std::io::Write;

use keelway_api::fault::{Fault, Faults};
use miette::{GraphicalReportHandler, GraphicalTheme, LabeledSpan, MietteDiagnostic, NamedSource, Report};

use crate::input::Input;

/// The largest number of faults that are reported one by one.
const TOLD: usize = 100;
/// The longest line that is quoted, and the largest input of which lines are quoted, in bytes.
const QUOTED_LINE: usize = 400;
const QUOTED_INPUT: usize = 4 << 20;

/// Writes faults to stderr, up to the limit.
pub(crate) fn report(faults: &Faults, input: &Input, color: bool) {
    let theme = if color { GraphicalTheme::unicode() } else { GraphicalTheme::none() };
    let handler = GraphicalReportHandler::new_themed(theme).with_context_lines(0).with_links(false);
    for fault in faults.0.iter().take(TOLD) {
        let report = diagnostic(fault, input);
        let mut text = String::new();
        if handler.render_report(&mut text, report.as_ref()).is_err() {
            text = format!("{fault}\n");
        }
        let _ = std::io::stderr().write_all(text.as_bytes());
    }
    if faults.0.len() > TOLD {
        let _ = writeln!(std::io::stderr(), "  .. and {} more faults", faults.0.len() - TOLD);
    }
}

fn diagnostic(fault: &Fault, input: &Input) -> Report {
    let place = match (fault.document.as_str(), fault.field.as_str()) {
        ("", "") => String::new(),
        (document, "") => format!("{document}: "),
        ("", field) => format!("{field}: "),
        (document, field) => format!("{document}, {field}: "),
    };
    let line = if fault.line > 0 { format!(" (line {})", fault.line) } else { String::new() };
    let diagnostic = MietteDiagnostic::new(format!("{place}{}{line}", fault.problem)).with_help(fault.help.clone());
    match quoted(fault, input) {
        Some((start, length)) => {
            let source = NamedSource::new(&input.name, input.text().into_owned());
            Report::new(diagnostic.with_label(LabeledSpan::at(start..start + length, "here"))).with_source_code(source)
        }
        None => Report::new(diagnostic),
    }
}

/// Returns the position of the faulty line in bytes. A line of a Secret is never quoted.
fn quoted(fault: &Fault, input: &Input) -> Option<(usize, usize)> {
    if fault.line == 0 || input.bytes.len() > QUOTED_INPUT || fault.document.contains("Secret") {
        return None;
    }
    let index = usize::try_from(fault.line - 1).ok()?;
    let text = input.text();
    let start: usize = text.split_inclusive('\n').take(index).map(str::len).sum();
    let line = text.split_inclusive('\n').nth(index)?;
    let indent = line.len() - line.trim_start().len();
    let length = line.trim().len();
    (length > 0 && line.len() <= QUOTED_LINE).then_some((start + indent, length))
}
