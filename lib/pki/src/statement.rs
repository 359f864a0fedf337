//! The fields that all minted certificates have in common.

use rand_core::CryptoRng;
use rcgen::{CertificateParams, DistinguishedName};

use crate::Validity;

/// The number of octets of a serial number. RFC 5280, 4.1.2.2 allows 20.
const SERIAL_LENGTH: usize = 16;

/// Returns the parameters that an authority and a leaf certificate share. The dates are always set, because the defaults of rcgen are 1975 and
/// 4096.
pub(crate) fn statement<R: CryptoRng + ?Sized>(
    subject: DistinguishedName,
    validity: Validity,
    rng: &mut R,
) -> Result<CertificateParams, rcgen::Error> {
    let mut statement = CertificateParams::default();
    (statement.not_before, statement.not_after) = validity.to_x509()?;
    statement.serial_number = Some(serial(rng).to_vec().into());
    statement.distinguished_name = subject;
    Ok(statement)
}

/// Returns a random serial number. Its first two bits make it positive and constant in length.
fn serial<R: CryptoRng + ?Sized>(rng: &mut R) -> [u8; SERIAL_LENGTH] {
    let mut serial = [0; SERIAL_LENGTH];
    rng.fill_bytes(&mut serial);
    serial[0] = serial[0] & 0x7f | 0x40;
    serial
}
