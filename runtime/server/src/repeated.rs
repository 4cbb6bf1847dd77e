//! Keys that stand twice in one object of a body: only one of them could count, and nobody could tell which was meant.

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::HashSet;
use std::fmt;

/// So many keys are looked through one by one.
const FEW: usize = 16;

/// The place of a key that its object has already, such as `messages[1].role`. A text that is no JSON has none.
pub(crate) fn repeated(json: &[u8]) -> Option<String> {
    let found = RefCell::default();
    let mut reader = serde_json::Deserializer::from_slice(json);
    // What is wrong with the text otherwise is told by whoever reads it.
    let _ = Keys(&found).deserialize(&mut reader);
    let steps = found.into_inner();
    if steps.is_empty() {
        return None;
    }
    let mut place = String::new();
    for step in steps.iter().rev() {
        match step {
            Step::Key(key) if place.is_empty() => place.push_str(key),
            Step::Key(key) => place.extend([".", key]),
            Step::Index(index) => place.push_str(&format!("[{index}]")),
        }
    }
    Some(place)
}

/// A step on the way from the key out to the whole.
enum Step {
    Key(String),
    Index(usize),
}

/// Looks at the keys of a value; where one is repeated, notes the way to it, from the inside out.
struct Keys<'a>(&'a RefCell<Vec<Step>>);

impl Keys<'_> {
    /// Something inside went wrong; if that was a key, the way to it leads over this step.
    fn on_the_way(&self, step: impl FnOnce() -> Step) {
        let mut steps = self.0.borrow_mut();
        if !steps.is_empty() {
            steps.push(step());
        }
    }
}

impl<'de> DeserializeSeed<'de> for Keys<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Keys<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        let mut index = 0;
        loop {
            match seq.next_element_seed(Keys(self.0)) {
                Ok(Some(())) => index += 1,
                Ok(None) => return Ok(()),
                Err(error) => {
                    self.on_the_way(|| Step::Index(index));
                    return Err(error);
                }
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let mut met = Met::default();
        while let Some(key) = map.next_key_seed(Key)? {
            if !met.is_new(&key) {
                self.0.borrow_mut().push(Step::Key(key.into_owned()));
                return Err(A::Error::custom("repeated"));
            }
            if let Err(error) = map.next_value_seed(Keys(self.0)) {
                self.on_the_way(|| Step::Key(key.into_owned()));
                return Err(error);
            }
            met.add(key);
        }
        Ok(())
    }
}

/// The keys of an object so far.
#[derive(Default)]
struct Met<'de> {
    few: Vec<Cow<'de, str>>,
    /// All of them, once they are many.
    many: HashSet<Cow<'de, str>>,
}

impl<'de> Met<'de> {
    fn is_new(&self, key: &str) -> bool {
        if self.many.is_empty() { !self.few.iter().any(|met| met == key) } else { !self.many.contains(key) }
    }

    fn add(&mut self, key: Cow<'de, str>) {
        if self.many.is_empty() && self.few.len() < FEW {
            self.few.push(key);
        } else {
            self.many.extend(std::mem::take(&mut self.few));
            self.many.insert(key);
        }
    }
}

/// A key, borrowed where it stands as it is in the text.
struct Key;

impl<'de> DeserializeSeed<'de> for Key {
    type Value = Cow<'de, str>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Cow<'de, str>, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'de> Visitor<'de> for Key {
    type Value = Cow<'de, str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_borrowed_str<E>(self, key: &'de str) -> Result<Cow<'de, str>, E> {
        Ok(Cow::Borrowed(key))
    }

    fn visit_str<E>(self, key: &str) -> Result<Cow<'de, str>, E> {
        Ok(Cow::Owned(key.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repeated_key_is_found_at_its_place() {
        let many: String = (0..40).map(|i| format!("\"k{i}\": {i}, ")).collect();
        for (text, place) in [
            ("{\"a\": 1, \"a\": 2}".to_owned(), Some("a")),
            ("{\"a\": {\"b\": [1, {\"c\": 1, \"d\": 2, \"c\": 3}]}}".into(), Some("a.b[1].c")),
            ("[[{\"c\": 1, \"c\": 3}]]".into(), Some("[0][0].c")),
            // Spelt otherwise it is the same key.
            ("{\"a\": 1, \"\\u0061\": 2}".into(), Some("a")),
            (format!("{{{many}\"k39\": 0}}"), Some("k39")),
            (format!("{{{many}\"k3\": 0}}"), Some("k3")),
            (format!("{{{many}\"k\": 0}}"), None),
            ("{\"a\": {\"a\": [{\"a\": 1}, {\"a\": 1.5e3}]}, \"b\": null, \"A\": true}".into(), None),
            // What comes first is told, and what is no JSON is told by others.
            ("{\"a\": 1, \"a\"".into(), Some("a")),
            ("{\"a\": ".into(), None),
            ("".into(), None),
        ] {
            assert_eq!(repeated(text.as_bytes()).as_deref(), place, "{text}");
        }
        assert_eq!(repeated("[".repeat(100_000).as_bytes()), None);
    }
}
