//! The pass: load, observe, plan, mint, save, execute.
