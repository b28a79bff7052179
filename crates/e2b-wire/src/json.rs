//! How protobuf's types stand in JSON where serde's own way differs.

use std::fmt;

use base64::Engine as _;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use bytes::Bytes;
use serde::de::{self, Deserializer, Visitor};
use serde::{Deserialize, Serialize, Serializer};

const LENIENT: GeneralPurposeConfig = GeneralPurposeConfig::new()
    .with_decode_padding_mode(DecodePaddingMode::Indifferent)
    .with_decode_allow_trailing_bits(true);
const STANDARD: GeneralPurpose = GeneralPurpose::new(&alphabet::STANDARD, LENIENT);
const URL_SAFE: GeneralPurpose = GeneralPurpose::new(&alphabet::URL_SAFE, LENIENT);

/// `bytes`: written in the standard alphabet with padding, read in either alphabet with or without.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Base64(pub Bytes);

impl<T: Into<Bytes>> From<T> for Base64 {
    fn from(bytes: T) -> Self {
        Self(bytes.into())
    }
}

impl Serialize for Base64 {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&STANDARD.encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for Base64 {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;

        impl Visitor<'_> for Text {
            type Value = Base64;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("base64")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Base64, E> {
                let engine = if text.contains(['-', '_']) { &URL_SAFE } else { &STANDARD };
                let bytes = engine.decode(text).map_err(|_| E::custom("these bytes are not base64"))?;
                Ok(Base64(bytes.into()))
            }
        }

        deserializer.deserialize_str(Text)
    }
}

/// `int64`: written as a string, read as a string or a number.
pub(crate) mod int64 {
    use std::fmt;

    use serde::de::{self, Deserializer, Visitor};
    use serde::{Serialize, Serializer};

    pub(crate) fn serialize<S: Serializer>(number: &i64, serializer: S) -> Result<S::Ok, S::Error> {
        number.to_string().serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i64, D::Error> {
        struct Number;

        impl Visitor<'_> for Number {
            type Value = i64;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a whole number, or one as text")
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<i64, E> {
                Ok(number)
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<i64, E> {
                i64::try_from(number).map_err(|_| E::custom("the number is too large"))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<i64, E> {
                text.parse().map_err(|_| E::custom(format!("`{}` is no whole number", super::cut(text))))
            }
        }

        deserializer.deserialize_any(Number)
    }
}

/// `null` where a value could stand means its default.
pub(crate) fn null_is_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// As much of a peer's text as an error shows.
fn cut(text: &str) -> String {
    text.chars().take(40).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_read_in_both_alphabets_with_or_without_padding() {
        for text in ["+/8=", "+/8", "-_8=", "-_8"] {
            let read: Base64 = serde_json::from_value(serde_json::json!(text)).unwrap();
            assert_eq!(read, Base64::from(vec![0xfb, 0xff]), "{text}");
        }
        assert_eq!(serde_json::to_string(&Base64::from(vec![0xfb, 0xff])).unwrap(), "\"+/8=\"");
        assert!(serde_json::from_str::<Base64>("\"a b\"").is_err());
    }

    #[test]
    fn a_long_number_is_text_and_may_be_a_number() {
        #[derive(Debug, PartialEq, Serialize, Deserialize)]
        struct Sized(#[serde(with = "int64")] i64);
        for text in ["\"9007199254740993\"", "9007199254740993"] {
            assert_eq!(serde_json::from_str::<Sized>(text).unwrap(), Sized(9_007_199_254_740_993));
        }
        assert_eq!(serde_json::to_string(&Sized(-1)).unwrap(), "\"-1\"");
        for bad in ["\"x\"", "18446744073709551615", "1.5"] {
            assert!(serde_json::from_str::<Sized>(bad).is_err(), "{bad}");
        }
    }
}
