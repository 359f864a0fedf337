//! The commands and outputs that the documentation promises, as steps that tests can run.

use std::fs;

/// A command and its expected output.
#[derive(Debug, Clone)]
pub struct TranscriptStep {
    /// The command, as written.
    pub command: String,
    /// The output. Empty if the documentation omits it.
    pub output: String,
}

/// Returns the first console block of the README.
pub fn of_readme() -> Vec<TranscriptStep> {
    let text = read("README.md");
    let (_, rest) = text.split_once("```console\n").unwrap();
    steps(rest.split_once("```").unwrap().0)
}

/// Returns all console blocks of docs/tour.md.
pub fn of_tour() -> Vec<TranscriptStep> {
    let text = read("docs/tour.md");
    let blocks = text.split("```console\n").skip(1).map(|rest| rest.split_once("```").unwrap().0);
    blocks.flat_map(steps).collect()
}

fn read(path: &str) -> String {
    fs::read_to_string(format!("{}/../{path}", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

fn steps(block: &str) -> Vec<TranscriptStep> {
    let mut steps: Vec<TranscriptStep> = Vec::new();
    for line in block.lines() {
        match (line.strip_prefix("$ "), steps.last_mut()) {
            (Some(command), _) => steps.push(TranscriptStep { command: command.to_owned(), output: String::new() }),
            (None, Some(step)) => step.output.extend([line, "\n"]),
            (None, None) => panic!("a transcript begins with an answer"),
        }
    }
    steps
}
