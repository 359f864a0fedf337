//! Splits an input into chunks. Each is one document with its text and its first line.

use serde::de::IgnoredAny;

use crate::fault::Fault;

/// The maximum size of an input. The documents of ten thousand clusters are far smaller.
pub(crate) const LARGEST_INPUT: usize = 256 << 20;
/// The maximum number of documents of an input.
pub(crate) const MOST_DOCUMENTS: usize = 1_000_000;
/// The maximum size of a document. kube-apiserver accepts no larger request (`MaxRequestBodyBytes`), so no larger object exists.
pub(crate) const LARGEST_DOCUMENT: usize = 3 << 20;

const MARK: char = '\u{feff}';

/// One document of the input, or text between documents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Chunk<'a> {
    /// The text, including separator line and line breaks: all chunks together are the input.
    pub(crate) text: &'a str,
    /// The first line of the text in the input, counted from 1.
    pub(crate) line: u64,
}

/// Returns the input as text.
pub(crate) fn text(bytes: &[u8]) -> Result<&str, Fault> {
    if bytes.len() > LARGEST_INPUT {
        return Err(Fault::of(
            "",
            format!("the input has {} bytes", bytes.len()),
            format!("split it: Keelway reads at most {LARGEST_INPUT}"),
        ));
    }
    let text = core::str::from_utf8(bytes).map_err(|error| {
        let (good, _) = bytes.split_at(error.valid_up_to());
        at(core::str::from_utf8(good).unwrap_or_default(), "is not UTF-8", "write the documents in UTF-8")
    })?;
    match text.split_once('\0') {
        None => Ok(text),
        Some((good, _)) => {
            Err(at(good, "is NUL", "remove it: YAML does not allow this character; check that this is a text file"))
        }
    }
}

fn at(before: &str, problem: &str, help: &str) -> Fault {
    Fault {
        line: 1 + breaks(before),
        ..Fault::of("", format!("byte {} of the input {problem}", before.len() + 1), help)
    }
}

/// Splits at YAML's markers `---` and `...`, and between consecutive JSON objects.
///
/// A marker cannot be inside a scalar (YAML 1.2.2, rule 206 `c-forbidden`), so checking the beginnings of lines is sufficient.
pub(crate) fn split(text: &str) -> Vec<Chunk<'_>> {
    let mut chunks = Vec::new();
    let mut open = OpenChunk::default();
    let mut number = 1;
    let mut position = 0;
    for line in lines(text) {
        if is_marker(line, "---") && open.ends_at_start() {
            open.close(text, position, &mut chunks);
        }
        if open.is_empty(position) {
            open = OpenChunk::at(position, number);
        }
        open.take(line);
        position += line.len();
        number += 1;
        if is_marker(line, "...") {
            open.close(text, position, &mut chunks);
            open = OpenChunk::at(position, number);
        }
    }
    open.close(text, position, &mut chunks);
    chunks
}

/// The current chunk.
#[derive(Default)]
struct OpenChunk {
    start: usize,
    line: u64,
    part: ChunkPart,
}

#[derive(Default, PartialEq, Eq)]
enum ChunkPart {
    /// Nothing, or blank lines and comments.
    #[default]
    Prefix,
    /// Directives. They belong to the document whose `---` follows.
    Directives,
    /// The document.
    Content,
}

impl OpenChunk {
    fn at(start: usize, line: u64) -> Self {
        Self { start, line, part: ChunkPart::Prefix }
    }

    fn is_empty(&self, position: usize) -> bool {
        self.start == position
    }

    fn ends_at_start(&self) -> bool {
        self.part != ChunkPart::Directives
    }

    fn take(&mut self, line: &str) {
        let line = line.trim_start_matches(MARK);
        let blank = line.trim().is_empty() || line.trim_start().starts_with('#');
        if is_marker(line, "---") {
            self.part = ChunkPart::Content;
        } else if self.part != ChunkPart::Content && line.starts_with('%') {
            self.part = ChunkPart::Directives;
        } else if !blank {
            self.part = ChunkPart::Content;
        }
    }

    fn close<'a>(&mut self, text: &'a str, end: usize, chunks: &mut Vec<Chunk<'a>>) {
        if let Some(text) = text.get(self.start..end).filter(|text| !text.is_empty()) {
            objects(Chunk { text, line: self.line }, chunks);
        }
        self.start = end;
        self.part = ChunkPart::Prefix;
    }
}

/// Splits a stream of JSON objects into one chunk each, as kubectl reads them.
fn objects<'a>(chunk: Chunk<'a>, chunks: &mut Vec<Chunk<'a>>) {
    let mut rest = chunk;
    if let Some(start) = object_start(chunk.text) {
        let mut stream =
            serde_json::Deserializer::from_str(chunk.text.get(start..).unwrap_or_default()).into_iter::<IgnoredAny>();
        let mut cut = 0;
        while let Some(Ok(IgnoredAny)) = stream.next() {
            let Some((object, tail)) = chunk.text.split_at_checked(start + stream.byte_offset()) else {
                break;
            };
            if !tail.trim_start().starts_with('{') {
                break;
            }
            let end = object.len() + line_break(tail);
            chunks.push(Chunk { text: chunk.text.get(cut..end).unwrap_or_default(), line: rest.line });
            let done = chunk.text.get(cut..end).unwrap_or_default();
            rest = Chunk { text: chunk.text.get(end..).unwrap_or_default(), line: rest.line + breaks(done) };
            cut = end;
        }
    }
    if !rest.text.is_empty() {
        chunks.push(rest);
    }
}

/// Returns whether a chunk is one JSON object with nothing after it. Another JSON object may follow it.
pub(crate) fn is_object(text: &str) -> bool {
    let content = object_start(text).and_then(|start| text.get(start..));
    content.is_some_and(|content| serde_json::from_str::<IgnoredAny>(content).is_ok())
}

/// Returns whether a chunk starts with a JSON object. Such a chunk may follow a JSON object.
pub(crate) fn begins_with_object(text: &str) -> bool {
    let mut stream = serde_json::Deserializer::from_str(text).into_iter::<IgnoredAny>();
    text.trim_start().starts_with('{') && stream.next().is_some_and(|object| object.is_ok())
}

fn breaks(text: &str) -> u64 {
    let broken = lines(text).filter(|line| line.ends_with(['\n', '\r']));
    u64::try_from(broken.count()).unwrap_or(u64::MAX)
}

/// Returns the number of bytes up to and including the first line break, or 0 if other characters than blanks precede it.
fn line_break(tail: &str) -> usize {
    let blanks = tail.len() - tail.trim_start_matches([' ', '\t']).len();
    match tail.get(blanks..).unwrap_or_default() {
        rest if rest.starts_with("\r\n") => blanks + 2,
        rest if rest.starts_with(['\n', '\r']) => blanks + 1,
        _ => 0,
    }
}

/// Returns the position of the content of a chunk, if it starts with `{`.
fn object_start(text: &str) -> Option<usize> {
    let mut position = 0;
    for line in lines(text) {
        let content = line.trim_start_matches(MARK);
        let content = match content.strip_prefix("---") {
            Some(rest) if is_marker(content, "---") => rest,
            _ => content,
        }
        .trim_start();
        if content.starts_with('{') {
            return Some(position + line.len() - content.len());
        }
        if !content.is_empty() && !content.starts_with('#') {
            return None;
        }
        position += line.len();
    }
    None
}

/// Returns whether `line` starts with this document marker, followed by white space or nothing.
pub(crate) fn is_marker(line: &str, marker: &str) -> bool {
    line.trim_start_matches(MARK)
        .strip_prefix(marker)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '\t', '\n', '\r']))
}

/// Returns the lines of a text with their line breaks. YAML has three types of line break.
pub(crate) fn lines(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    core::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let bytes = rest.as_bytes();
        let end = bytes.iter().position(|byte| matches!(byte, b'\n' | b'\r')).map_or(bytes.len(), |found| {
            let wide = bytes.get(found..found + 2) == Some(b"\r\n".as_slice());
            found + if wide { 2 } else { 1 }
        });
        let (line, tail) = rest.split_at_checked(end)?;
        rest = tail;
        Some(line)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunks(text: &str) -> Vec<(&str, u64)> {
        split(text).into_iter().map(|chunk| (chunk.text, chunk.line)).collect()
    }

    #[test]
    fn markers_split_and_nothing_is_lost() {
        assert_eq!(
            chunks("# c\n---\na: 1\n--- # x\nb: |\n  ---\n ---\n---x: 2\n"),
            [("# c\n", 1), ("---\na: 1\n", 2), ("--- # x\nb: |\n  ---\n ---\n---x: 2\n", 4)]
        );
        assert_eq!(chunks(""), []);
        assert_eq!(chunks("---"), [("---", 1)]);
        assert_eq!(chunks("a: 1\r---\r\nb: 2"), [("a: 1\r", 1), ("---\r\nb: 2", 2)]);
    }

    #[test]
    fn directives_stay_with_their_document() {
        assert_eq!(
            chunks("a: 1\n...\n# d\n%YAML 1.2\n---\nb: 2\n"),
            [("a: 1\n...\n", 1), ("# d\n%YAML 1.2\n---\nb: 2\n", 3)]
        );
        assert_eq!(chunks("a:\n%b\n---\nc: 1\n"), [("a:\n%b\n", 1), ("---\nc: 1\n", 3)]);
    }

    #[test]
    fn json_objects_are_a_document_each() {
        assert_eq!(
            chunks("{\"a\":\n1}\n{\"b\":2} {\"c\":3}\n"),
            [("{\"a\":\n1}\n", 1), ("{\"b\":2}", 3), (" {\"c\":3}\n", 3)]
        );
        assert_eq!(chunks("--- {\"a\":1}\n{\"b\":2}\n...\n"), [("--- {\"a\":1}\n", 1), ("{\"b\":2}\n...\n", 2)]);
        assert_eq!(chunks("{a: 1}\n"), [("{a: 1}\n", 1)]);
    }

    #[test]
    fn invalid_utf_8_is_refused_with_its_position() {
        assert!(text(b"a\nb\xff").unwrap_err().problem.contains("byte 4 of the input is not UTF-8"));
        assert_eq!(text(b"a\nb\xff").unwrap_err().line, 2);
        assert_eq!(text(b"a\n\n\0").unwrap_err().line, 3);
    }
}
