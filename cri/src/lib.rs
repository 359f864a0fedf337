//! CRI client, and a fake runtime that passes the same contract.
