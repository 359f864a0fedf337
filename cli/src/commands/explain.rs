//! `keelway explain`.

use std::fmt::Write;

use keelway_api::explain::{Explanation, explain};

use super::print;
use crate::{
    exit::{Code, CommandFailure},
    table::TextTable,
    terminal,
};

pub(super) fn run(question: &str) -> Result<Code, CommandFailure> {
    let found = explain(question).map_err(|error| CommandFailure::usage(error.problem, error.help))?;
    print(&render(&found))?;
    Ok(Code::Done)
}

fn render(found: &Explanation) -> String {
    let mut text = format!("KIND:      {}\nVERSION:   keelway.dev/v1alpha1\n", found.kind);
    // Writing to a String cannot fail.
    if !found.path.is_empty() {
        let _ = writeln!(text, "FIELD:     {} <{}>", found.path, found.form);
    }
    if let Some(default) = &found.default {
        let _ = writeln!(text, "DEFAULT:   {default}");
    }
    if !found.description.is_empty() {
        let _ = writeln!(text, "\nDESCRIPTION:\n{}", textwrap(&found.description));
    }
    if !found.fields.is_empty() {
        let mut table = TextTable::new(&["FIELD", "TYPE", "REQUIRED"]);
        for field in &found.fields {
            let required = if field.required { "yes" } else { "" };
            table.row(vec![field.name.to_owned(), field.form.clone(), required.to_owned()]);
        }
        let _ = write!(text, "\n{}", table.render(terminal::columns()));
        for field in &found.fields {
            let _ = writeln!(text, "\n{}\n{}", field.name, textwrap(&field.description));
        }
    }
    text
}

/// Wraps text into lines of at most 80 columns, indented by two.
fn textwrap(text: &str) -> String {
    const WIDTH: usize = 78;
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= WIDTH => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines.iter().map(|line| format!("  {line}")).collect::<Vec<_>>().join("\n")
}
