//! The period during which a certificate is valid.

use jiff::{SignedDuration, Timestamp};
use time::OffsetDateTime;
use x509_parser::time::ASN1Time;

/// The time between the start of validity and the minting of a certificate. A machine whose clock is this much behind accepts the certificate
/// immediately. The signer of kube-controller-manager also allows five minutes.
pub const CLOCK_SKEW: SignedDuration = SignedDuration::from_mins(5);

/// The period of validity of a certificate: whole seconds, both ends included (RFC 5280, 4.1.2.5). It is never empty and starts in 1970 or later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Validity {
    not_before: Timestamp,
    not_after: Timestamp,
}

/// The error for dates that a certificate cannot have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ValidityError {
    /// The end is not after the start.
    #[error("the validity from {not_before} to {not_after} is empty")]
    Empty {
        /// The requested first second.
        not_before: Timestamp,
        /// The requested last second.
        not_after: Timestamp,
    },
    /// The start is before 1970.
    #[error("the validity begins at {not_before}, before 1970")]
    TooEarly {
        /// The requested first second.
        not_before: Timestamp,
    },
    /// The start or the end is outside the range of timestamps.
    #[error("{lifetime} after {now} is out of the range of dates")]
    TooLong {
        /// The time of minting.
        now: Timestamp,
        /// The requested lifetime.
        lifetime: SignedDuration,
    },
}

impl Validity {
    /// Returns the period from `not_before` to `not_after`. Fractions of a second are cut off, because X.509 has none.
    pub fn new(not_before: Timestamp, not_after: Timestamp) -> Result<Self, ValidityError> {
        if not_before.as_second() < 0 {
            return Err(ValidityError::TooEarly { not_before });
        }
        let (not_before, not_after) = (whole_second(not_before), whole_second(not_after));
        if not_before >= not_after {
            return Err(ValidityError::Empty { not_before, not_after });
        }
        Ok(Self { not_before, not_after })
    }

    /// Returns the period of a certificate that is minted at `now` and ends `lifetime` later. It starts [`CLOCK_SKEW`] before `now`.
    pub fn starting(now: Timestamp, lifetime: SignedDuration) -> Result<Self, ValidityError> {
        let too_long = |_| ValidityError::TooLong { now, lifetime };
        let not_after = now.checked_add(lifetime).map_err(too_long)?;
        let not_before = now.checked_sub(CLOCK_SKEW).map_err(too_long)?;
        Self::new(not_before, not_after)
    }

    /// Returns the intersection with `outer`. A leaf certificate is limited in this way if its authority ends earlier.
    pub fn within(self, outer: Self) -> Result<Self, ValidityError> {
        Self::new(self.not_before.max(outer.not_before), self.not_after.min(outer.not_after))
    }

    /// Returns the first second of the period.
    #[must_use]
    pub fn not_before(self) -> Timestamp {
        self.not_before
    }

    /// Returns the last second of the period.
    #[must_use]
    pub fn not_after(self) -> Timestamp {
        self.not_after
    }

    /// Returns whether `now` is in the period.
    #[must_use]
    pub fn contains(self, now: Timestamp) -> bool {
        let now = now.as_second();
        (self.not_before.as_second()..=self.not_after.as_second()).contains(&now)
    }

    /// Returns the time of renewal: after two thirds of the period. The remaining third is for repairing whatever prevents renewal.
    #[must_use]
    pub fn renew_at(self) -> Timestamp {
        let (from, to) = (self.not_before.as_second(), self.not_after.as_second());
        Timestamp::from_second(from + (to - from) * 2 / 3).unwrap_or(self.not_after)
    }

    /// Returns the first and the last second in the type of rcgen.
    pub(crate) fn to_x509(self) -> Result<(OffsetDateTime, OffsetDateTime), rcgen::Error> {
        Ok((time_to_x509(self.not_before)?, time_to_x509(self.not_after)?))
    }

    pub(crate) fn from_x509(validity: &x509_parser::certificate::Validity) -> Result<Self, ValidityError> {
        Self::new(time_from_x509(validity.not_before), time_from_x509(validity.not_after))
    }
}

fn whole_second(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

fn time_to_x509(time: Timestamp) -> Result<OffsetDateTime, rcgen::Error> {
    OffsetDateTime::from_unix_timestamp(time.as_second()).map_err(|_| rcgen::Error::Time)
}

/// A certificate without an end (99991231235959Z, RFC 5280, 4.1.2.5) ends some hours after the maximum timestamp, and becomes that maximum.
fn time_from_x509(time: ASN1Time) -> Timestamp {
    Timestamp::from_second(time.timestamp()).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use x509_parser::prelude::FromDer;

    /// Returns any second from 1970 to the end of 9996.
    fn time() -> impl Strategy<Value = Timestamp> {
        (0_i64..253_300_000_000).prop_map(|second| Timestamp::from_second(second).unwrap())
    }

    fn validity() -> impl Strategy<Value = Validity> {
        (time(), time()).prop_filter_map("empty", |(a, b)| Validity::new(a.min(b), a.max(b)).ok())
    }

    proptest! {
        #[test]
        fn survives_x509(validity in validity()) {
            let (not_before, not_after) = validity.to_x509().unwrap();
            let read = x509_parser::certificate::Validity {
                not_before: ASN1Time::new(not_before),
                not_after: ASN1Time::new(not_after),
            };
            prop_assert_eq!(Validity::from_x509(&read), Ok(validity));
        }

        #[test]
        fn renewal_leaves_a_third(validity in validity()) {
            let begin = validity.not_before().as_second();
            let end = validity.not_after().as_second();
            let renew = validity.renew_at().as_second();
            prop_assert!(begin <= renew && renew < end);
            prop_assert!(((end - renew) - (end - begin) / 3).abs() <= 1);
        }

        #[test]
        fn within_is_the_intersection(inner in validity(), outer in validity(), now in time()) {
            let both = inner.contains(now) && outer.contains(now);
            if let Ok(part) = inner.within(outer) {
                prop_assert_eq!(part.contains(now), both);
            } else {
                let end = inner.not_after().min(outer.not_after());
                prop_assert!(end <= inner.not_before().max(outer.not_before()));
            }
        }
    }

    #[test]
    fn begins_before_it_is_minted() {
        let now: Timestamp = "2026-11-21T12:00:00.75Z".parse().unwrap();
        let validity = Validity::starting(now, SignedDuration::from_mins(10)).unwrap();
        assert_eq!(validity.not_before(), "2026-11-21T11:55:00Z".parse().unwrap());
        assert_eq!(validity.not_after(), "2026-11-21T12:10:00Z".parse().unwrap());
    }

    #[test]
    fn impossible_dates_are_refused() {
        let now: Timestamp = "2026-11-21T12:00:00Z".parse().unwrap();
        assert!(matches!(Validity::new(now, now), Err(ValidityError::Empty { .. })));
        assert!(matches!(
            Validity::new("1969-12-31T23:59:59Z".parse().unwrap(), now),
            Err(ValidityError::TooEarly { .. })
        ));
        assert!(matches!(
            Validity::starting(now, SignedDuration::from_hours(24 * 365 * 9000)),
            Err(ValidityError::TooLong { .. })
        ));
    }

    #[test]
    fn no_end_is_read_as_the_last_timestamp() {
        let (_, not_after) = ASN1Time::from_der(b"\x18\x0f99991231235959Z").unwrap();
        let not_before = ASN1Time::new(OffsetDateTime::UNIX_EPOCH);
        let no_end = x509_parser::certificate::Validity { not_before, not_after };
        assert_eq!(Validity::from_x509(&no_end).unwrap().not_after().as_second(), Timestamp::MAX.as_second());
    }
}
