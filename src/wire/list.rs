//! Lists that take memory as their elements arrive, not as their length claims.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

/// A list, encoded like a `Vec`. serde reserves at once what a `Vec` claims, and lists nested
/// in each other can all claim the same bytes. This one has room for at most half as many
/// elements more than have arrived, and for none more when it is complete.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct List<T>(pub Vec<T>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for List<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(Elements(PhantomData))
    }
}

struct Elements<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for Elements<T> {
    type Value = List<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<List<T>, A::Error> {
        let mut list = Vec::new();
        while let Some(element) = elements.next_element()? {
            if list.len() == list.capacity() {
                let to_come = elements.size_hint().unwrap_or(usize::MAX);
                list.reserve_exact(1 + to_come.min(list.len() / 2));
            }
            list.push(element);
        }
        Ok(List(list))
    }
}

/// For fields: reads a `Vec` as a [`List`].
pub(super) fn list<'de, D, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    List::deserialize(deserializer).map(|list| list.0)
}

/// [`list`] where there may be none.
pub(super) fn optional_list<'de, D, T>(deserializer: D) -> Result<Option<Vec<T>>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    Option::<List<T>>::deserialize(deserializer).map(|list| list.map(|list| list.0))
}
