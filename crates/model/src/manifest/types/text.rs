//! Values that may be written in more than one way.

use serde::de::value::MapAccessDeserializer;
use serde::de::{self, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Serialize, Serializer};
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

/// Text or a number: `cpuLimit: 2` is as good as `cpuLimit: "2"`.
pub(super) fn quantity<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<String>, D::Error> {
    deserializer.deserialize_any(TextOrNumber {
        expected: "a quantity such as `500m` or `64Mi`",
        fractions: true,
    })
}

/// A name, or a number without quotes.
pub(super) fn user<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    deserializer.deserialize_any(TextOrNumber {
        expected: "the name or the number of a user",
        fractions: false,
    })
}

struct TextOrNumber {
    expected: &'static str,
    fractions: bool,
}

impl Visitor<'_> for TextOrNumber {
    type Value = Option<String>;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expected)
    }
    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(None)
    }
    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Some(text.to_owned()))
    }
    fn visit_i64<E>(self, number: i64) -> Result<Self::Value, E> {
        Ok(Some(number.to_string()))
    }
    fn visit_u64<E>(self, number: u64) -> Result<Self::Value, E> {
        Ok(Some(number.to_string()))
    }
    fn visit_f64<E: de::Error>(self, number: f64) -> Result<Self::Value, E> {
        if self.fractions {
            return Ok(Some(number.to_string()));
        }
        Err(E::invalid_type(de::Unexpected::Float(number), &self))
    }
}

/// `true` or `false`, or a mapping, which is true with more to say.
pub(super) fn switch<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    struct Switch<T>(PhantomData<T>);
    impl<'de, T: Deserialize<'de> + Default> Visitor<'de> for Switch<T> {
        type Value = Option<T>;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("`true`, `false` or a mapping")
        }
        fn visit_bool<E>(self, on: bool) -> Result<Self::Value, E> {
            Ok(on.then(T::default))
        }
        fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
            let text: String = text.chars().take(40).collect();
            Err(E::custom(format!(
                "expected `true`, `false` or a mapping, found `{text}`"
            )))
        }
        fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
            T::deserialize(MapAccessDeserializer::new(map)).map(Some)
        }
    }
    deserializer.deserialize_any(Switch(PhantomData))
}

/// The counterpart of [`switch`].
pub(super) fn write_switch<S: Serializer, T: Serialize + Default + PartialEq>(
    value: &Option<T>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match value {
        Some(value) if *value != T::default() => value.serialize(serializer),
        value => serializer.serialize_bool(value.is_some()),
    }
}

/// SMI writes headers as a list of one-entry mappings; a plain mapping is accepted too.
pub(super) fn header_map<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<BTreeMap<String, String>, D::Error> {
    struct Headers;
    impl<'de> Visitor<'de> for Headers {
        type Value = BTreeMap<String, String>;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a mapping of header names to regular expressions")
        }
        fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
            BTreeMap::deserialize(MapAccessDeserializer::new(map))
        }
        fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
            let mut all = BTreeMap::new();
            while let Some(some) = seq.next_element::<BTreeMap<String, String>>()? {
                for (name, value) in some {
                    if all.contains_key(&name) {
                        let message = format!("header `{name}` is given twice");
                        return Err(serde::de::Error::custom(message));
                    }
                    all.insert(name, value);
                }
            }
            Ok(all)
        }
    }
    deserializer.deserialize_any(Headers)
}
