//! The terminal of this program.

use std::io::{self, IsTerminal};

use keelway_cri::exec::Size;
use rustix::{
    stdio::{stdin, stdout},
    termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr},
};

/// A terminal in raw mode: it delivers every key to the program. The mode is restored on drop.
pub(crate) struct RawTerminal(Termios);

impl RawTerminal {
    /// Puts the terminal of stdin into raw mode.
    pub(crate) fn of_stdin() -> io::Result<Self> {
        let before = tcgetattr(stdin())?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(stdin(), OptionalActions::Now, &raw)?;
        Ok(Self(before))
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        // A destructor cannot return an error.
        let _ = tcsetattr(stdin(), OptionalActions::Now, &self.0);
    }
}

/// Returns the size of the terminal of stdout, or `None` if stdout is not a terminal.
pub(crate) fn size() -> Option<Size> {
    if !io::stdout().is_terminal() {
        return None;
    }
    let found = tcgetwinsize(stdout()).ok()?;
    (found.ws_col > 0).then_some(Size { width: found.ws_col, height: found.ws_row })
}

/// Returns the number of columns for a table, or `None` if stdout is not a terminal.
pub(crate) fn columns() -> Option<usize> {
    let size = size()?;
    let configured = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
    configured.filter(|columns| *columns > 0).or(Some(size.width.into()))
}
