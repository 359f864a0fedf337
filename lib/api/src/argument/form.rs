//! The type of an argument's value.

use core::fmt;

use crate::duration::Span;

/// The type of an argument's value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ArgumentType {
    /// A whole number.
    Number {
        /// The minimum.
        least: u32,
        /// The maximum.
        most: u32,
    },
    /// A number of at least 0, with or without a fraction.
    Decimal {
        /// The maximum.
        most: u32,
    },
    /// A duration of at least one second.
    Duration,
    /// The first and the last port of a range.
    Ports,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// Full names of Prometheus metrics, separated by commas.
    Metrics,
}

/// The maximum duration. Nothing that a control plane waits for takes longer. Durations of Go end at 292 years.
const LONGEST: Span = Span::hours(8760);

impl ArgumentType {
    /// Returns whether a text is a valid value.
    #[must_use]
    pub fn accepts(self, value: &str) -> bool {
        match self {
            Self::Number { least, most } => parse_integer(value).is_some_and(|number| (least..=most).contains(&number)),
            Self::Decimal { most } => decimal(value).is_some_and(|number| number <= f64::from(most)),
            Self::Duration => value.parse().is_ok_and(|span: Span| span.seconds() > 0 && span <= LONGEST),
            Self::Ports => {
                let port =
                    |text: &str| text.parse::<u16>().ok().filter(|port| *port > 0 && parse_integer(text).is_some());
                let (first, last) = value.split_once('-').unwrap_or_default();
                port(first).zip(port(last)).is_some_and(|(first, last)| first <= last)
            }
            Self::Choice(words) => words.contains(&value),
            Self::Metrics => value.split(',').all(is_metric),
        }
    }
}

/// Parses a number that consists of digits only. Go and Rust treat other characters, such as a sign, differently.
fn parse_integer(text: &str) -> Option<u32> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

fn decimal(text: &str) -> Option<f64> {
    let (before, after) = text.split_once('.').unwrap_or((text, "0"));
    [before, after].into_iter().all(|digits| parse_integer(digits).is_some()).then(|| text.parse().ok())?
}

/// Returns whether the text is the name of a metric (Prometheus, "Data model").
fn is_metric(text: &str) -> bool {
    let letter = |c: char| c.is_ascii_alphabetic() || matches!(c, '_' | ':');
    text.starts_with(letter) && text.chars().all(|c| letter(c) || c.is_ascii_digit())
}

/// Describes the type as errors and tables print it.
impl fmt::Display for ArgumentType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number { least, most } => write!(f, "an integer from {least} to {most}, in quotes"),
            Self::Decimal { most } => write!(f, "a number from 0 to {most}, such as \"0.5\", in quotes"),
            Self::Duration => write!(f, "a duration from 1s to {LONGEST}, such as 1h30m"),
            Self::Ports => write!(f, "a range of ports, such as 30000-32767"),
            Self::Choice(words) => write!(f, "{}", words.join(" or ")),
            Self::Metrics => write!(f, "full names of metrics, separated by commas"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(form: ArgumentType, right: &[&str], wrong: &[&str]) {
        for value in right {
            assert!(form.accepts(value), "{value:?} is {form}");
        }
        for value in wrong {
            assert!(!form.accepts(value), "{value:?} is not {form}");
        }
    }

    #[test]
    fn values_are_checked_by_type() {
        let number = ArgumentType::Number { least: 1, most: 10 };
        check(number, &["1", "10"], &["0", "11", "-1", "+1", "1.5", "", "1 --anonymous-auth=true", "99999999999"]);
        let decimal = ArgumentType::Decimal { most: 1 };
        check(decimal, &["0", "1", "0.55", "1.0"], &["1.1", "-0.5", "1e-3", ".5", "1.", "NaN", "inf", "", "0.5.5"]);
        check(
            ArgumentType::Duration,
            &["1s", "1h30m", "8760h"],
            &["0s", "soon", "10", "-1h", "500ms", "8761h", "2562048h"],
        );
        check(
            ArgumentType::Ports,
            &["30000-32767", "80-80"],
            &["30000", "32767-30000", "0-10", "1-65536", "+1-2", "-", "30000+10", "1-2-3", ""],
        );
        check(ArgumentType::Choice(&["json", "text"]), &["json"], &["yaml", "JSON", ""]);
        check(ArgumentType::Metrics, &["a_total", "a:b,c1"], &["", "a,", "a b", "1a", "a,--v=9"]);
    }
}
