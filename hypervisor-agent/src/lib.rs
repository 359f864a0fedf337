//! The machine's side: files, converge, execution.
