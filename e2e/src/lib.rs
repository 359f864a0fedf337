//! Live tests on real machines.
