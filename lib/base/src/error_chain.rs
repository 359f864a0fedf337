//! An error with its causes, as text.

use std::{error::Error, fmt, iter};

/// Displays an error and its causes on one line.
///
/// Some errors of other crates already contain their cause. It is not repeated.
#[derive(Debug, Clone, Copy)]
pub struct ErrorChain<'a>(pub &'a dyn Error);

impl fmt::Display for ErrorChain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&chain_text(self.0))
    }
}

/// Returns an error and its causes in one line, as [`ErrorChain`] displays them.
#[must_use]
pub fn chain_text(error: &dyn Error) -> String {
    causes(error)
        .map(ToString::to_string)
        .fold(error.to_string(), |text, cause| if text.ends_with(&cause) { text } else { format!("{text}: {cause}") })
}

/// Returns the innermost cause, which often has the useful part: `Connection refused`, `certificate expired`.
#[must_use]
pub fn root_cause(error: &dyn Error) -> String {
    causes(error).last().map_or_else(|| error.to_string(), ToString::to_string)
}

fn causes<'a>(error: &'a (dyn Error + 'a)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    iter::successors(error.source(), |cause| Error::source(*cause))
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[derive(Debug, thiserror::Error)]
    enum NestedError {
        #[error("cannot read a.yaml")]
        Read(#[source] io::Error),
        #[error("cannot start: {0}")]
        Repeats(#[source] Box<NestedError>),
    }

    #[test]
    fn causes_follow_once() {
        let read = NestedError::Read(io::Error::other("disk failed"));
        assert_eq!(chain_text(&read), "cannot read a.yaml: disk failed");
        assert_eq!(root_cause(&read), "disk failed");
        let repeats = NestedError::Repeats(Box::new(read));
        assert_eq!(ErrorChain(&repeats).to_string(), "cannot start: cannot read a.yaml: disk failed");
        assert_eq!(root_cause(&io::Error::other("alone")), "alone");
    }
}
