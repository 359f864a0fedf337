//! Quantities of Kubernetes in thousandths: `4`, `500m`, `16Gi`, `1.5`, `1e3`.

/// How a quantity that is no whole number of thousandths is rounded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum QuantityRounding {
    /// For what is needed.
    Up,
    /// For what is there.
    Down,
}

/// Reads a quantity.
pub(crate) fn thousandths(quantity: &str, rounding: QuantityRounding) -> Option<i128> {
    let (number, numerator, denominator) = split(quantity)?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits: i128 = format!("{whole}{fraction}").parse().ok()?;
    let scale = 10_i128.checked_pow(u32::try_from(fraction.len()).ok()?)?.checked_mul(denominator)?;
    let product = digits.checked_mul(numerator)?;
    let is_broken = product.rem_euclid(scale) != 0 && rounding == QuantityRounding::Up;
    Some(product.div_euclid(scale) + i128::from(is_broken))
}

/// Returns the number of a quantity, and the factor of its suffix in thousandths as a fraction.
fn split(quantity: &str) -> Option<(&str, i128, i128)> {
    const BINARY: [&str; 6] = ["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    const DECIMAL: [&str; 7] = ["", "k", "M", "G", "T", "P", "E"];
    const SMALL: [&str; 3] = ["m", "u", "n"];
    let end = quantity.find(|c: char| !(c.is_ascii_digit() || matches!(c, '.' | '-' | '+')));
    let (number, suffix) = quantity.split_at(end.unwrap_or(quantity.len()));
    let power = |base: i128, exponent: usize| base.checked_pow(u32::try_from(exponent).ok()?);
    if let Some(index) = SMALL.iter().position(|known| *known == suffix) {
        return Some((number, 1, power(1000, index)?));
    }
    if let Some(index) = BINARY.iter().position(|known| *known == suffix) {
        return Some((number, power(1024, index + 1)?.checked_mul(1000)?, 1));
    }
    if let Some(index) = DECIMAL.iter().position(|known| *known == suffix) {
        return Some((number, power(1000, index)?.checked_mul(1000)?, 1));
    }
    let exponent: i32 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
    let factor = power(10, usize::try_from(exponent.unsigned_abs()).ok()?)?;
    if exponent < 0 { Some((number, 1000, factor)) } else { Some((number, factor.checked_mul(1000)?, 1)) }
}

/// Returns a quantity as API servers accept it.
pub(crate) fn text(thousandths: i128) -> String {
    match thousandths % 1000 {
        0 => (thousandths / 1000).to_string(),
        _ => format!("{thousandths}m"),
    }
}

/// Returns a quantity of a resource for people. Bytes are in the largest unit of which there is at least one, rounded down to a tenth.
pub(crate) fn readable(resource: &str, thousandths: i128) -> String {
    const UNITS: [(&str, u32); 4] = [("Ti", 4), ("Gi", 3), ("Mi", 2), ("Ki", 1)];
    let is_bytes = ["memory", "ephemeral-storage"].contains(&resource) || resource.starts_with("hugepages-");
    let unit = UNITS.iter().find(|(_, exponent)| thousandths >= 1000 * 1024_i128.pow(*exponent));
    match unit.filter(|_| is_bytes) {
        None => text(thousandths),
        Some((unit, exponent)) => {
            let tenths = thousandths / (100 * 1024_i128.pow(*exponent));
            match tenths % 10 {
                0 => format!("{}{unit}", tenths / 10),
                rest => format!("{}.{rest}{unit}", tenths / 10),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_needed_is_rounded_up_and_what_is_there_down() {
        let both = |text| (thousandths(text, QuantityRounding::Up), thousandths(text, QuantityRounding::Down));
        for (text, up, down) in
            [("1", 1000, 1000), ("500m", 500, 500), ("1500u", 2, 1), ("1n", 1, 0), ("1.0001", 1001, 1000)]
        {
            assert_eq!(both(text), (Some(up), Some(down)), "{text}");
        }
        assert_eq!(both("1Ki"), (Some(1_024_000), Some(1_024_000)));
        assert_eq!(both("15e-1"), (Some(1500), Some(1500)));
        assert_eq!(both("1E"), both("1e18"));
        assert_eq!(both("many"), (None, None));
    }

    #[test]
    fn people_read_units() {
        assert_eq!(readable("cpu", 1500), "1500m");
        assert_eq!(readable("nvidia.com/gpu", 8000), "8");
        assert_eq!(readable("memory", 1000 * (5 << 30)), "5Gi");
        assert_eq!(readable("memory", 1000 * (1600 << 20)), "1.5Gi");
        assert_eq!(readable("memory", 512_000), "512");
    }
}
