//! Amounts of memory and of CPU as people write them into specs: `4Gi`, `500m`.

use core::{fmt, str::FromStr};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Units of memory, the largest first (Kubernetes API, `Quantity`).
const UNITS: [(&str, u64); 8] = [
    ("Ti", 1 << 40),
    ("T", 1_000_000_000_000),
    ("Gi", 1 << 30),
    ("G", 1_000_000_000),
    ("Mi", 1 << 20),
    ("M", 1_000_000),
    ("Ki", 1 << 10),
    ("k", 1_000),
];

/// An amount of memory in bytes, written as a Kubernetes Quantity: `4Gi`, `512Mi`, `4000000000`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String")]
pub struct Memory(u64);

/// The text is not an amount of memory.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not an amount of memory such as 4Gi or 512Mi")]
pub struct MemoryError(String);

/// CPU in thousandths of a core, written as a Kubernetes Quantity: `2`, `500m`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String")]
pub struct Cpu(u32);

/// The text is not an amount of CPU.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not an amount of CPU such as 2 or 500m")]
pub struct CpuError(String);

impl Memory {
    /// So many MiB.
    #[must_use]
    pub const fn mebibytes(mebibytes: u64) -> Self {
        Self(mebibytes << 20)
    }

    /// So many GiB.
    #[must_use]
    pub const fn gibibytes(gibibytes: u64) -> Self {
        Self(gibibytes << 30)
    }

    /// So many bytes.
    #[must_use]
    pub const fn of_bytes(bytes: u64) -> Self {
        Self(bytes)
    }

    /// How many bytes it is.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        self.0
    }

    /// Both together.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl Cpu {
    /// So many thousandths of a core.
    #[must_use]
    pub const fn of_millis(millis: u32) -> Self {
        Self(millis)
    }

    /// How many thousandths of a core it is.
    #[must_use]
    pub const fn millis(self) -> u32 {
        self.0
    }
}

impl FromStr for Memory {
    type Err = MemoryError;

    fn from_str(text: &str) -> Result<Self, MemoryError> {
        let unit = UNITS.iter().find_map(|(unit, bytes)| Some((text.strip_suffix(unit)?, *bytes)));
        let (number, unit) = unit.unwrap_or((text, 1));
        let amount = digits(number).and_then(|number| number.parse::<u64>().ok()?.checked_mul(unit));
        amount.map(Self).ok_or_else(|| MemoryError(text.to_owned()))
    }
}

impl FromStr for Cpu {
    type Err = CpuError;

    fn from_str(text: &str) -> Result<Self, CpuError> {
        let millis = match text.strip_suffix('m') {
            Some(millis) => digits(millis).and_then(|millis| millis.parse().ok()),
            None => digits(text).and_then(|cores| cores.parse::<u32>().ok()?.checked_mul(1000)),
        };
        millis.map(Self).ok_or_else(|| CpuError(text.to_owned()))
    }
}

/// A text of digits alone.
fn digits(text: &str) -> Option<&str> {
    Some(text).filter(|text| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()))
}

impl TryFrom<String> for Memory {
    type Error = MemoryError;

    fn try_from(text: String) -> Result<Self, MemoryError> {
        text.parse()
    }
}

impl TryFrom<String> for Cpu {
    type Error = CpuError;

    fn try_from(text: String) -> Result<Self, CpuError> {
        text.parse()
    }
}

impl From<Memory> for String {
    fn from(amount: Memory) -> Self {
        amount.to_string()
    }
}

impl From<Cpu> for String {
    fn from(amount: Cpu) -> Self {
        amount.to_string()
    }
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_whole = |(_, bytes): &&(&str, u64)| self.0 > 0 && self.0.is_multiple_of(*bytes);
        match UNITS.iter().filter(is_whole).max_by_key(|(_, bytes)| *bytes) {
            Some((unit, bytes)) => write!(f, "{}{unit}", self.0 / bytes),
            None => write!(f, "{}", self.0),
        }
    }
}

impl fmt::Display for Cpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_multiple_of(1000) { write!(f, "{}", self.0 / 1000) } else { write!(f, "{}m", self.0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_of_memory_are_written_as_they_are_read() {
        for (text, bytes, written) in [
            ("4Gi", 4 << 30, "4Gi"),
            ("2048Mi", 2 << 30, "2Gi"),
            ("1500Mi", 1500 << 20, "1500Mi"),
            ("4G", 4_000_000_000, "4G"),
            ("1k", 1000, "1k"),
            ("17", 17, "17"),
            ("0", 0, "0"),
        ] {
            let amount: Memory = text.parse().unwrap();
            assert_eq!((amount.bytes(), amount.to_string().as_str()), (bytes, written));
        }
        for text in ["", "Gi", "-1Gi", "1.5Gi", "1gi", "1 Gi", "4GB", "99999999Ti"] {
            assert_eq!(text.parse::<Memory>(), Err(MemoryError(text.to_owned())));
        }
    }

    #[test]
    fn amounts_of_cpu_are_written_as_they_are_read() {
        for (text, millis, written) in [("2", 2000, "2"), ("500m", 500, "500m"), ("3000m", 3000, "3"), ("0", 0, "0")] {
            let amount: Cpu = text.parse().unwrap();
            assert_eq!((amount.millis(), amount.to_string().as_str()), (millis, written));
        }
        for text in ["", "m", "0.5", "-1", "2k", "99999999999m"] {
            assert_eq!(text.parse::<Cpu>(), Err(CpuError(text.to_owned())));
        }
    }
}
