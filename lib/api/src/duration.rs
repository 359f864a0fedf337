//! Durations as Kubernetes writes them: `8760h`, `1h30m`, `90s`.

use core::{fmt, str::FromStr, time::Duration};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A span of whole seconds, written as Go writes it (`time.ParseDuration` with the units h, m and s).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String")]
pub struct Span(u64);

/// The text is not a duration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a duration such as 8760h, 1h30m or 90s")]
pub struct SpanError(String);

impl Span {
    /// A span of this many minutes.
    #[must_use]
    pub const fn minutes(minutes: u64) -> Self {
        Self(minutes * 60)
    }

    /// A span of this many hours.
    #[must_use]
    pub const fn hours(hours: u64) -> Self {
        Self(hours * 3600)
    }

    /// A span of this many seconds.
    #[must_use]
    pub const fn of_seconds(seconds: u64) -> Self {
        Self(seconds)
    }

    /// The length in seconds.
    #[must_use]
    pub const fn seconds(self) -> u64 {
        self.0
    }
}

impl From<Span> for Duration {
    fn from(span: Span) -> Self {
        Self::from_secs(span.0)
    }
}

fn parse(text: &str) -> Option<u64> {
    let mut total = 0_u64;
    let mut rest = text;
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit())?;
        let (number, tail) = rest.split_at(digits);
        let unit = match tail.chars().next()? {
            'h' => 3600,
            'm' => 60,
            's' => 1,
            _ => return None,
        };
        total = total.checked_add(number.parse::<u64>().ok()?.checked_mul(unit)?)?;
        rest = tail.get(1..)?;
    }
    Some(total)
}

impl FromStr for Span {
    type Err = SpanError;
    fn from_str(text: &str) -> Result<Self, SpanError> {
        parse(text).map(Self).ok_or_else(|| SpanError(text.to_owned()))
    }
}

impl TryFrom<String> for Span {
    type Error = SpanError;
    fn try_from(text: String) -> Result<Self, SpanError> {
        text.parse()
    }
}

impl From<Span> for String {
    fn from(span: Span) -> Self {
        span.to_string()
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (hours, minutes, seconds) = (self.0 / 3600, self.0 / 60 % 60, self.0 % 60);
        if hours > 0 {
            write!(f, "{hours}h")?;
        }
        if minutes > 0 {
            write!(f, "{minutes}m")?;
        }
        if seconds > 0 || self.0 == 0 {
            write!(f, "{seconds}s")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_written_as_they_are_read() {
        for text in ["8760h", "1h30m", "90m", "1h1s", "0s"] {
            let span: Span = text.parse().unwrap();
            assert_eq!(span.to_string().parse::<Span>().unwrap(), span);
        }
        assert_eq!("90m".parse::<Span>().unwrap().to_string(), "1h30m");
    }

    #[test]
    fn an_invalid_duration_is_refused() {
        for text in ["", "1", "h", "1d", "-1h", "1.5h", "99999999999999999999h"] {
            assert!(text.parse::<Span>().is_err(), "{text}");
        }
    }
}
