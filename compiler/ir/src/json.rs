//! Numbers in JSON without loss: JSON has no infinities and no NaN, and a binary32 written in its own shortest
//! form may be misread by a reader that goes through binary64. So infinities and NaN are words, and a binary32
//! is written as the binary64 of the same value.

use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;

/// For `#[serde(with)]` on a binary64 field.
pub(crate) mod exact_f64 {
    use super::{Deserialize, Deserializer, Exact, Serialize, Serializer};

    pub(crate) fn serialize<S: Serializer>(x: &f64, serializer: S) -> Result<S::Ok, S::Error> {
        Exact(*x).serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
        Exact::deserialize(deserializer).map(|x| x.0)
    }
}

/// For `#[serde(with)]` on a list of binary32 numbers.
pub(crate) mod exact_f32s {
    use super::{Deserialize, Deserializer, Exact, Serializer};

    pub(crate) fn serialize<S: Serializer>(list: &[f32], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(list.iter().map(|x| Exact(f64::from(*x))))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<f32>, D::Error> {
        let list = Vec::<Exact>::deserialize(deserializer)?;
        // Exact for everything that `serialize` writes.
        Ok(list.into_iter().map(|x| x.0 as f32).collect())
    }
}

struct Exact(f64);

impl Serialize for Exact {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            x if x.is_finite() => serializer.serialize_f64(x),
            x if x.is_nan() => serializer.serialize_str("nan"),
            x if x > 0.0 => serializer.serialize_str("inf"),
            _ => serializer.serialize_str("-inf"),
        }
    }
}

impl<'de> Deserialize<'de> for Exact {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ExactVisitor)
    }
}

struct ExactVisitor;

impl Visitor<'_> for ExactVisitor {
    type Value = Exact;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number, \"inf\", \"-inf\" or \"nan\"")
    }

    fn visit_f64<E: Error>(self, x: f64) -> Result<Exact, E> {
        Ok(Exact(x))
    }

    fn visit_i64<E: Error>(self, x: i64) -> Result<Exact, E> {
        Ok(Exact(x as f64))
    }

    fn visit_u64<E: Error>(self, x: u64) -> Result<Exact, E> {
        Ok(Exact(x as f64))
    }

    fn visit_str<E: Error>(self, word: &str) -> Result<Exact, E> {
        match word {
            "inf" => Ok(Exact(f64::INFINITY)),
            "-inf" => Ok(Exact(f64::NEG_INFINITY)),
            "nan" => Ok(Exact(f64::NAN)),
            _ => Err(E::invalid_value(serde::de::Unexpected::Str(word), &self)),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{ConstExpr, Op};

    #[test]
    fn every_number_survives_json() {
        let bits = [0u32, 1, 0x8000_0000, 0x3dcc_cccd, 0x7f7f_ffff, 0x7f80_0000, 0xff80_0000, 0x0080_0000, 0x4b80_0001];
        let op = Op::Literal(bits.map(f32::from_bits).to_vec());
        let Op::Literal(back) = serde_json::from_str(&serde_json::to_string(&op).unwrap()).unwrap() else {
            panic!("not a literal");
        };
        assert_eq!(back.iter().map(|x| x.to_bits()).collect::<Vec<_>>(), bits);
        for x in [f64::INFINITY, f64::NEG_INFINITY, 0.1, -0.0, 5e-324, f64::MAX, 3.0] {
            let text = serde_json::to_string(&ConstExpr::Num(x)).unwrap();
            let ConstExpr::Num(back) = serde_json::from_str(&text).unwrap() else { panic!("not a number") };
            assert_eq!(back.to_bits(), x.to_bits(), "{text}");
        }
        assert_eq!(serde_json::to_string(&Op::Literal(vec![f32::NAN])).unwrap(), r#"{"literal":["nan"]}"#);
    }
}
