//! Mutated inputs: the bad and the good ones, truncated, extended, spliced and with changed bytes. Reading each one succeeds or returns
//! faults. It never panics or takes long. Each run has the same seed. The fuzz target in `lib/api/fuzz` continues from these inputs.

#![expect(clippy::unwrap_used, reason = "a step that fails fails the test")]

use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

use keelway_api::Documents;

const ROUNDS: usize = 10_000;
/// Far more than the slowest input needs on a busy machine. Input with quadratic or exponential cost takes longer.
const PATIENCE: Duration = Duration::from_secs(20);

/// George Marsaglia's 64-bit xorshift generator. It is good enough to choose positions and bytes.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % bound.max(1) as u64).unwrap()
    }
}

/// Fragments with a meaning in YAML or JSON.
const PIECES: &[&str] = &[
    "&a ",
    "*a",
    "<<: *a",
    "---\n",
    "...\n",
    "|\n",
    ">-\n",
    "? ",
    ": ",
    "- ",
    "{",
    "}",
    "[",
    "]",
    "\"",
    "'",
    "!!str ",
    "!x ",
    "#",
    "%YAML 1.2\n",
    "\t",
    "\r\n",
    "\0",
    "\u{feff}",
    "\u{85}",
    "null",
    "~",
    "-0",
    "1e999",
    "0x10",
    ".nan",
    "apiVersion: v1\n",
    "kind: Secret\n",
    "9999999999999999999999",
];

fn mutant(dice: &mut Dice, inputs: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = inputs[dice.below(inputs.len())].clone();
    for _ in 0..=dice.below(4) {
        let at = dice.below(bytes.len() + 1);
        match dice.below(7) {
            0 => bytes.truncate(at),
            1 => bytes.splice(at..at, PIECES[dice.below(PIECES.len())].bytes()).for_each(drop),
            2 => {
                let other = &inputs[dice.below(inputs.len())];
                let from = dice.below(other.len() + 1);
                bytes.splice(at.., other[from..].iter().copied()).for_each(drop);
            }
            3 => {
                let to = (at + dice.below(64)).min(bytes.len());
                bytes.drain(at..to);
            }
            4 => {
                let to = (at + dice.below(256)).min(bytes.len());
                let piece = bytes[at..to].to_vec();
                bytes.splice(at..at, piece).for_each(drop);
            }
            5 if at < bytes.len() => bytes[at] = u8::try_from(dice.below(256)).unwrap(),
            _ if at < bytes.len() => bytes[at] ^= 1 << dice.below(8),
            _ => bytes.push(b' '),
        }
    }
    bytes
}

fn inputs() -> Vec<Vec<u8>> {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let bad = fs::read_dir(tests.join("bad")).unwrap().map(|entry| entry.unwrap().path());
    let mut paths: Vec<_> = bad.filter(|path| path.extension().is_some_and(|found| found == "yaml")).collect();
    let cli = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../cli/tests/transcripts/documents.in");
    paths.extend(fs::read_dir(cli).unwrap().map(|entry| entry.unwrap().path()));
    paths.sort();
    paths.iter().map(|path| fs::read(path).unwrap()).collect()
}

#[test]
fn mutants_are_read_or_refused() {
    let inputs = inputs();
    let mut dice = Dice(0x9e37_79b9_7f4a_7c15);
    let (mut read, mut refused) = (0, 0);
    for round in 0..ROUNDS {
        let bytes = mutant(&mut dice, &inputs);
        let begun = Instant::now();
        match Documents::read(&bytes) {
            Ok(documents) => {
                read += 1;
                let written = documents.write();
                let again = Documents::read(written.as_bytes());
                assert!(
                    again.is_ok_and(|again| again.write() == written),
                    "round {round}: {}",
                    String::from_utf8_lossy(&bytes)
                );
            }
            Err(faults) => {
                refused += 1;
                assert!(!faults.0.is_empty(), "round {round}");
                assert!(!faults.to_string().is_empty(), "round {round}");
            }
        }
        assert!(begun.elapsed() < PATIENCE, "round {round}: {}", String::from_utf8_lossy(&bytes));
    }
    assert!(read > 50 && refused > ROUNDS / 2, "{read} were read, {refused} refused");
}
