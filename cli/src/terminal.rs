//! The terminal that this program was started in.

use std::io::{self, IsTerminal};

use keelway_cri::exec::Size;
use rustix::{
    stdio::{stdin, stdout},
    termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr},
};

/// A terminal that hands every key to whoever reads, until this is dropped.
pub(crate) struct RawTerminal(Termios);

impl RawTerminal {
    /// Of stdin.
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
        // There is nobody left to tell.
        let _ = tcsetattr(stdin(), OptionalActions::Now, &self.0);
    }
}

/// How large the terminal is that stdout writes to; `None` where it is none.
pub(crate) fn size() -> Option<Size> {
    if !io::stdout().is_terminal() {
        return None;
    }
    let found = tcgetwinsize(stdout()).ok()?;
    (found.ws_col > 0).then_some(Size { width: found.ws_col, height: found.ws_row })
}

/// How many columns a table may have on stdout; as many as it needs where that is no terminal.
pub(crate) fn columns() -> Option<usize> {
    let size = size()?;
    let told = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
    told.filter(|columns| *columns > 0).or(Some(size.width.into()))
}
