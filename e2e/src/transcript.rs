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
    blocks(&text, "console").flat_map(steps).collect()
}

/// A section of a tour: the files that it shows, and its commands.
#[derive(Debug, Clone)]
pub struct TourSection {
    /// The heading.
    pub title: String,
    /// The name and the content of each YAML block. Its first line is a comment with the name.
    pub files: Vec<(String, String)>,
    /// The commands.
    pub steps: Vec<TranscriptStep>,
}

/// Returns the sections of docs/fleet-tour.md.
pub fn of_fleet_tour() -> Vec<TourSection> {
    let text = read("docs/fleet-tour.md");
    text.split("\n## ").skip(1).map(section).collect()
}

/// Returns the commands in the shell blocks of a section of a page, one for each line. Comments behind `  #` are removed.
pub fn shell_commands(page: &str, title: &str) -> Vec<String> {
    let section = section_of(page, title);
    let lines = blocks(&section, "sh").flat_map(str::lines).map(|line| line.split("  #").next().unwrap_or(line).trim());
    lines.filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

/// Returns the first shell block in a section of a page.
pub fn shell_block(page: &str, title: &str) -> String {
    let first = shell_blocks(page, title).into_iter().next();
    first.unwrap_or_else(|| panic!("{title} has no commands"))
}

/// Returns the shell blocks in a section of a page. The lines of a command may end inside quotes.
pub fn shell_blocks(page: &str, title: &str) -> Vec<String> {
    let section = section_of(page, title);
    blocks(&section, "sh").map(|block| block.trim_end().to_owned()).collect()
}

/// Returns the line of a section of a page that begins with this text.
pub fn table_row(page: &str, title: &str, begins: &str) -> String {
    let section = section_of(page, title);
    let row = section.lines().find(|line| line.starts_with(begins));
    row.unwrap_or_else(|| panic!("{title} has no row {begins}")).to_owned()
}

fn section_of(page: &str, title: &str) -> String {
    let text = read(page);
    let section = text.split("\n## ").find(|section| section.lines().next() == Some(title));
    section.unwrap_or_else(|| panic!("{page} has no section {title}")).to_owned()
}

fn section(text: &str) -> TourSection {
    let files = blocks(text, "yaml").map(|block| {
        let (name, content) = block.strip_prefix("# ").and_then(|block| block.split_once('\n')).unwrap();
        (name.to_owned(), content.to_owned())
    });
    TourSection {
        title: text.lines().next().unwrap_or_default().to_owned(),
        files: files.collect(),
        steps: blocks(text, "console").flat_map(steps).collect(),
    }
}

fn blocks<'a>(text: &'a str, language: &str) -> impl Iterator<Item = &'a str> {
    let mark = format!("```{language}\n");
    let rests: Vec<&str> = text.split(&mark).skip(1).collect();
    rests.into_iter().map(|rest| rest.split_once("```").unwrap().0)
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
