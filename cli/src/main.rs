//! The `keelway` program. Its code is in the library.

use std::process::ExitCode;

/// Documents and configs consist of many small texts. With the allocator of the C library, a pass spends a third of its time on allocations.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    keelway_cli::main()
}
