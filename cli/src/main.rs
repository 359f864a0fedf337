//! The program; all of it is in the library.

use std::process::ExitCode;

/// Documents and configs are many small texts, which the C library's allocator spends a third of a pass on.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    keelway_cli::main()
}
