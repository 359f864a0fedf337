//! What the README promises to its reader, as commands that can be run.

use std::fs;

/// A command, and what it is to print.
#[derive(Debug, Clone)]
pub struct Step {
    /// As in the README.
    pub command: String,
    /// Empty where the README leaves it out.
    pub output: String,
}

/// The README's first console block.
pub fn of_readme() -> Vec<Step> {
    let text = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../README.md")).unwrap();
    let (_, rest) = text.split_once("```console\n").unwrap();
    let (block, _) = rest.split_once("```").unwrap();
    let mut steps: Vec<Step> = Vec::new();
    for line in block.lines() {
        match (line.strip_prefix("$ "), steps.last_mut()) {
            (Some(command), _) => steps.push(Step { command: command.to_owned(), output: String::new() }),
            (None, Some(step)) => step.output.extend([line, "\n"]),
            (None, None) => panic!("the README's transcript begins with an answer"),
        }
    }
    steps
}
