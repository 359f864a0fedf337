//! What the documentation promises to its reader, as commands that can be run.

use std::fs;

/// A command, and what it is to print.
#[derive(Debug, Clone)]
pub struct TranscriptStep {
    /// As it is written.
    pub command: String,
    /// Empty where it is left out.
    pub output: String,
}

/// The README's first console block.
pub fn of_readme() -> Vec<TranscriptStep> {
    let text = read("README.md");
    let (_, rest) = text.split_once("```console\n").unwrap();
    steps(rest.split_once("```").unwrap().0)
}

/// All console blocks of docs/tour.md.
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
