//! Foreign JSON, kept byte for byte.
//!
//! Bodies (inputs, messages, arguments, results …) come from outside and are stored exactly as given,
//! without the white space outside strings. They are never parsed and printed again: key order, number
//! spelling, doubled keys and lone-surrogate escapes survive. Reading looks at one level at a time, and
//! the last of doubled keys counts, as in JavaScript.

use serde::de::{DeserializeSeed, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// Bodies nest at most this many levels.
pub const DEPTH_MAX: usize = 1_000;

/// A JSON value from outside, compact, byte for byte as it was given. Cheap to clone.
#[derive(Clone)]
pub struct Raw(Arc<RawValue>);

/// Why some text cannot be a body.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum RawError {
    /// The text is not one JSON value.
    #[error("not JSON: {0}")]
    Syntax(String),
    /// The value nests too deeply.
    #[error("nests {depth} levels deep, more than the {DEPTH_MAX} that are allowed")]
    TooDeep {
        /// Levels found.
        depth: usize,
    },
}

impl Raw {
    /// Takes one JSON value and removes the white space outside its strings.
    pub fn parse(text: &str) -> Result<Self, RawError> {
        // Depth first: no parser below is trusted with unbounded nesting.
        let depth = depth(text);
        if depth > DEPTH_MAX {
            return Err(RawError::TooDeep { depth });
        }
        let value: &RawValue =
            serde_json::from_str(text).map_err(|source| RawError::Syntax(source.to_string()))?;
        if is_compact(value.get()) {
            return Ok(Self(value.to_owned().into()));
        }
        Ok(Self::trusted(compact(value.get().to_owned())))
    }

    /// Plain text, kept as a JSON string.
    pub fn text(text: &str) -> Self {
        let mut spelled = String::with_capacity(text.len() + 2);
        spell(text, &mut spelled);
        Self::trusted(spelled)
    }

    /// A JSON object or array as it is, anything else as text: the rule for inputs, results and replies.
    ///
    /// Nesting beyond [`DEPTH_MAX`] is an error, never text.
    pub fn structured_or_text(text: &str) -> Result<Self, RawError> {
        let first = text.trim_start_matches([' ', '\t', '\r', '\n']);
        if first.starts_with(['{', '[']) {
            match Self::parse(text) {
                Err(RawError::Syntax(_)) => {}
                decided => return decided,
            }
        }
        Ok(Self::text(text))
    }

    /// Takes JSON that this library composed around bodies or took out of one; `None` for what is not JSON.
    ///
    /// Its depth is not looked at: it follows from that of the bodies.
    pub fn composed(text: &str) -> Option<Self> {
        RawValue::from_string(compact(text.to_owned())).ok().map(|raw| Self(raw.into()))
    }

    /// Builds a body from text that this library composed itself.
    fn trusted(text: String) -> Self {
        #[expect(clippy::expect_used, reason = "callers pass text that was just validated or composed")]
        Self(RawValue::from_string(text).expect("composed JSON is valid").into())
    }

    /// The body as it fits where one level more stands around it: one that has none to spare as the text of its JSON.
    #[must_use]
    pub fn inside_one(&self) -> Self {
        if depth(self.get()) < DEPTH_MAX { self.clone() } else { Self::text(self.get()) }
    }

    /// The stored bytes.
    pub fn get(&self) -> &str {
        self.0.get()
    }

    /// Lower-case hex SHA-256 of the stored bytes.
    pub fn sha256(&self) -> String {
        sha256_hex(self.get().as_bytes())
    }

    /// The value, one level deep.
    pub fn view(&self) -> View<'_> {
        View::of(self.get())
    }
}

impl PartialEq for Raw {
    fn eq(&self, other: &Self) -> bool {
        self.get() == other.get()
    }
}

impl Eq for Raw {}

impl fmt::Debug for Raw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.get())
    }
}

impl Serialize for Raw {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Raw {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Box::<RawValue>::deserialize(deserializer).map(|raw| Self(raw.into()))
    }
}

/// For `Option<Raw>` fields: a field that is there is `Some`, also when its value is `null`.
pub fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Raw>, D::Error> {
    Raw::deserialize(deserializer).map(Some)
}

/// One JSON value, looked at one level deep. Text that is not JSON is [`View::Other`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum View<'a> {
    /// `null`
    Null,
    /// `true` or `false`
    Bool(bool),
    /// A number, in its own spelling.
    Number(&'a str),
    /// A string, decoded; a lone surrogate became U+FFFD.
    String(String),
    /// An array; the items are raw JSON.
    Array(Vec<&'a str>),
    /// An object in its own order, doubled keys included; the values are raw JSON.
    Object(Object<'a>),
    /// Not JSON.
    Other,
}

/// The members of an object, in file order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Object<'a>(pub Vec<(String, &'a str)>);

impl<'a> View<'a> {
    /// Looks at `text`, which may have white space around it.
    pub fn of(text: &'a str) -> Self {
        let text = text.trim_matches([' ', '\t', '\r', '\n']);
        let seen = match text.as_bytes().first() {
            Some(b'{') => members(text).map(Self::Object),
            Some(b'[') => items(text).map(Self::Array),
            Some(b'"') => decode_string(text).map(Self::String),
            Some(b't') if text == "true" => Some(Self::Bool(true)),
            Some(b'f') if text == "false" => Some(Self::Bool(false)),
            Some(b'n') if text == "null" => Some(Self::Null),
            Some(b'-' | b'0'..=b'9') => {
                serde_json::from_str::<&RawValue>(text).ok().map(|_| Self::Number(text))
            }
            _ => None,
        };
        seen.unwrap_or(Self::Other)
    }

    /// The object, if it is one.
    pub fn object(self) -> Option<Object<'a>> {
        match self {
            Self::Object(object) => Some(object),
            _ => None,
        }
    }

    /// The string, if it is one.
    pub fn string(self) -> Option<String> {
        match self {
            Self::String(string) => Some(string),
            _ => None,
        }
    }

    /// The items, if it is an array.
    pub fn array(self) -> Option<Vec<&'a str>> {
        match self {
            Self::Array(items) => Some(items),
            _ => None,
        }
    }
}

impl<'a> Object<'a> {
    /// The raw value of `key`; of doubled keys the last.
    pub fn get(&self, key: &str) -> Option<&'a str> {
        self.0.iter().rev().find(|(name, _)| name == key).map(|(_, value)| *value)
    }

    /// The value of `key`, one level deep.
    pub fn view(&self, key: &str) -> Option<View<'a>> {
        self.get(key).map(View::of)
    }

    /// The value of `key`, if it is a string.
    pub fn string(&self, key: &str) -> Option<String> {
        self.view(key)?.string()
    }

    /// The value of `key`, if it is an array.
    pub fn array(&self, key: &str) -> Option<Vec<&'a str>> {
        self.view(key)?.array()
    }

    /// The value of `key`, if it is an object.
    pub fn object(&self, key: &str) -> Option<Object<'a>> {
        self.view(key)?.object()
    }

    /// The first key that occurs twice, if one does.
    pub fn doubled(&self) -> Option<&str> {
        let mut seen = std::collections::HashSet::new();
        self.0.iter().map(|(key, _)| key.as_str()).find(|key| !seen.insert(*key))
    }
}

/// Writes an object of raw values; the spelling of keys is serde_json's.
#[derive(Debug, Default)]
pub struct ObjectWriter(String);

impl ObjectWriter {
    /// Adds a member whose value is raw JSON.
    #[must_use]
    pub fn raw(mut self, key: &str, value: &str) -> Self {
        // With what stands around it, and the brace at the end: a long value is not moved for that.
        self.0.reserve(key.len() + value.len() + 8);
        self.0.push(if self.0.is_empty() { '{' } else { ',' });
        spell(key, &mut self.0);
        self.0.push(':');
        self.0.push_str(value);
        self
    }

    /// Adds a member whose value is a string.
    #[must_use]
    pub fn string(self, key: &str, value: &str) -> Self {
        let mut spelled = String::with_capacity(value.len() + 2);
        spell(value, &mut spelled);
        self.raw(key, &spelled)
    }

    /// The finished object, compact.
    pub fn finish(mut self) -> Raw {
        if self.0.is_empty() {
            self.0.push('{');
        }
        self.0.push('}');
        Raw::trusted(compact(self.0))
    }
}

/// Whether two values mean the same: white space, key order and escapes apart, numbers by their spelling.
///
/// The keys in `apart` are not compared on the outermost level. One of both must be known to nest no deeper than what
/// is composed around bodies.
pub fn same(left: &str, right: &str, apart: &[&str]) -> bool {
    match (View::of(left), View::of(right)) {
        (View::Other, _) | (_, View::Other) => false,
        (View::Array(left), View::Array(right)) => {
            left.len() == right.len() && left.iter().zip(&right).all(|(left, right)| same(left, right, &[]))
        }
        (View::Object(left), View::Object(right)) => {
            let keys = |object: &Object<'_>| {
                object
                    .0
                    .iter()
                    .map(|(key, _)| key.clone())
                    .filter(|key| !apart.contains(&key.as_str()))
                    .collect::<std::collections::BTreeSet<_>>()
            };
            let (ours, theirs) = (keys(&left), keys(&right));
            ours == theirs
                && ours.iter().all(|key| match (left.get(key), right.get(key)) {
                    (Some(left), Some(right)) => same(left, right, &[]),
                    _ => false,
                })
        }
        (left, right) => left == right,
    }
}

/// Lower-case hex SHA-256.
pub fn sha256_hex(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// Lower-case hex of some bytes.
pub fn hex(bytes: &[u8]) -> String {
    let digit = |nibble: u8| char::from(if nibble < 10 { b'0' + nibble } else { b'a' + nibble - 10 });
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

/// How deep brackets nest outside strings; needs no stack, and the text need not be JSON.
pub fn depth(text: &str) -> usize {
    let (mut level, mut deepest) = (0usize, 0usize);
    outside_strings(text, |byte| match byte {
        b'{' | b'[' => {
            level += 1;
            deepest = deepest.max(level);
        }
        b'}' | b']' => level = level.saturating_sub(1),
        _ => {}
    });
    deepest
}

/// Whether a text has no white space outside strings.
pub fn is_compact(text: &str) -> bool {
    let mut compact = true;
    outside_strings(text, |byte| compact &= !matches!(byte, b' ' | b'\t' | b'\r' | b'\n'));
    compact
}

/// Visits the bytes that belong to no string, quotes neither. Strings are skipped at memory speed.
fn outside_strings(text: &str, mut visit: impl FnMut(u8)) {
    let mut rest = text.as_bytes();
    while let Some((before, behind)) =
        memchr::memchr(b'"', rest).and_then(|quote| rest.split_at_checked(quote))
    {
        for byte in before {
            visit(*byte);
        }
        rest = behind.get(1..).unwrap_or_default();
        loop {
            // A string that is not ended reaches to the end of the text.
            let Some(at) = memchr::memchr2(b'"', b'\\', rest) else { return };
            let escape = rest.get(at) == Some(&b'\\');
            rest = rest.get(at + 1 + usize::from(escape)..).unwrap_or_default();
            if !escape {
                break;
            }
        }
    }
    for byte in rest {
        visit(*byte);
    }
}

/// Removes white space outside strings.
fn compact(text: String) -> String {
    // What has none, which is nearly everything, is only looked at, and at memory speed.
    if is_compact(&text) {
        return text;
    }
    let mut scan = Strings::default();
    text.chars()
        .filter(|char| {
            // Only ASCII decides; other characters occur inside strings alone.
            let byte = u8::try_from(*char).unwrap_or(b'x');
            scan.inside(byte) || !matches!(char, ' ' | '\t' | '\r' | '\n')
        })
        .collect()
}

/// Follows whether a byte belongs to a JSON string (its quotes included).
#[derive(Default)]
struct Strings {
    within: bool,
    escaped: bool,
}

impl Strings {
    fn inside(&mut self, byte: u8) -> bool {
        if !self.within {
            self.within = byte == b'"';
            return self.within;
        }
        if self.escaped {
            self.escaped = false;
        } else if byte == b'\\' {
            self.escaped = true;
        } else if byte == b'"' {
            self.within = false;
        }
        true
    }
}

/// Spells a string as serde_json does.
fn spell(text: &str, out: &mut String) {
    #[expect(clippy::expect_used, reason = "a string always serializes")]
    out.push_str(&serde_json::to_string(text).expect("a string serializes"));
}

fn decode_string(text: &str) -> Option<String> {
    struct Decoded(String);
    impl<'de> Deserialize<'de> for Decoded {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            TextSeed.deserialize(deserializer).map(Decoded)
        }
    }
    serde_json::from_str::<Decoded>(text).ok().map(|decoded| decoded.0)
}

/// Where a JSON text holds escapes of half a surrogate pair.
pub fn lone_surrogates(text: &str) -> impl Iterator<Item = Range<usize>> {
    const ESCAPE: usize = 6;
    let bytes = text.as_bytes();
    let mut from = 0;
    std::iter::from_fn(move || {
        loop {
            let at = from + memchr::memchr(b'\\', bytes.get(from..).unwrap_or_default())?;
            match (code_unit(bytes, at), code_unit(bytes, at + ESCAPE)) {
                (Some(0xD800..=0xDBFF), Some(0xDC00..=0xDFFF)) => from = at + 2 * ESCAPE,
                (Some(0xD800..=0xDFFF), _) => {
                    from = at + ESCAPE;
                    return Some(at..from);
                }
                (Some(_), _) => from = at + ESCAPE,
                (None, _) => from = at + 2,
            }
        }
    })
}

/// The code unit of the `\uXXXX` at `at`, if there is one.
fn code_unit(bytes: &[u8], at: usize) -> Option<u16> {
    let digits = bytes.get(at..at + 6)?.strip_prefix(b"\\u")?;
    u16::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

/// Reads a string by its bytes: serde_json hands a lone surrogate out only that way.
struct TextSeed;

impl<'de> DeserializeSeed<'de> for TextSeed {
    type Value = String;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<String, D::Error> {
        deserializer.deserialize_bytes(self)
    }
}

impl Visitor<'_> for TextSeed {
    type Value = String;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }
    fn visit_bytes<E>(self, bytes: &[u8]) -> Result<String, E> {
        Ok(from_wtf8(bytes))
    }
    fn visit_str<E>(self, text: &str) -> Result<String, E> {
        Ok(text.to_owned())
    }
}

/// A lone surrogate is three bytes here, and one U+FFFD afterwards.
fn from_wtf8(bytes: &[u8]) -> String {
    if let Ok(text) = std::str::from_utf8(bytes) {
        return text.to_owned();
    }
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        // 0xED begins each encoded surrogate; its two continuation bytes come as chunks of their own.
        if chunk.invalid().first() == Some(&0xED) {
            text.push(char::REPLACEMENT_CHARACTER);
        }
    }
    text
}

fn members(text: &str) -> Option<Object<'_>> {
    struct Members;
    impl<'de> Visitor<'de> for Members {
        type Value = Vec<(String, &'de str)>;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }
        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut members = Vec::new();
            while let Some(key) = map.next_key_seed(TextSeed)? {
                members.push((key, map.next_value::<&RawValue>()?.get()));
            }
            Ok(members)
        }
    }
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let members = deserializer.deserialize_map(Members).ok()?;
    deserializer.end().ok()?;
    Some(Object(members))
}

fn items(text: &str) -> Option<Vec<&str>> {
    struct Items;
    impl<'de> Visitor<'de> for Items {
        type Value = Vec<&'de str>;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an array")
        }
        fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
            let mut items = Vec::new();
            while let Some(item) = seq.next_element::<&RawValue>()? {
                items.push(item.get());
            }
            Ok(items)
        }
    }
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let items = deserializer.deserialize_seq(Items).ok()?;
    deserializer.end().ok()?;
    Some(items)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(text: &str) -> Raw {
        Raw::parse(text).expect("valid")
    }

    #[test]
    fn bytes_survive_but_white_space_outside_strings() {
        let given = "{ \"b\" : 1e2,\t\"a\":[ 18446744073709551616 ,-0],\r\n\"a\":\"\\ud83d x\\u0000\" }";
        let kept = "{\"b\":1e2,\"a\":[18446744073709551616,-0],\"a\":\"\\ud83d x\\u0000\"}";
        assert_eq!(raw(given).get(), kept);
        assert!(is_compact(kept));
        assert!(!is_compact(given));
        assert_eq!(raw(" 1e400 ").get(), "1e400");
    }

    #[test]
    fn a_quote_behind_escapes_does_not_end_a_string() {
        assert_eq!(raw(r#"[ "a\\" , "b \" c" ]"#).get(), r#"["a\\","b \" c"]"#);
        assert_eq!(raw("[\"語 \u{2028} x\" ]").get(), "[\"語 \u{2028} x\"]");
    }

    #[test]
    fn the_last_of_doubled_keys_counts() {
        let raw = raw(r#"{"a":1,"a":"\ud800y","us\u0065r":null}"#);
        let object = raw.view().object().expect("object");
        assert_eq!(object.string("a").as_deref(), Some("\u{fffd}y"));
        assert_eq!(object.doubled(), Some("a"));
        assert_eq!(object.get("user"), Some("null"));
    }

    #[test]
    fn depth_is_limited_without_recursion() {
        let nested = |levels: usize| "[".repeat(levels) + &"]".repeat(levels);
        assert_eq!(raw(&nested(1_000)).get(), nested(1_000));
        assert_eq!(Raw::parse(&nested(1_001)), Err(RawError::TooDeep { depth: 1_001 }));
        assert_eq!(Raw::parse(&nested(100_000)), Err(RawError::TooDeep { depth: 100_000 }));
        assert_eq!(depth(r#"["[[[", {"a\"{":1}]"#), 2);
    }

    #[test]
    fn structured_or_text_takes_objects_and_arrays_only() {
        let kept = |text| Raw::structured_or_text(text).expect("fits").get().to_owned();
        assert_eq!(kept("{\"a\": 1}\n"), "{\"a\":1}");
        assert_eq!(kept("17"), "\"17\"");
        assert_eq!(kept("{oops"), "\"{oops\"");
        assert!(Raw::structured_or_text(&"[".repeat(2_000)).is_err());
    }

    #[test]
    fn same_ignores_order_and_escapes_but_not_numbers() {
        assert!(same(r#"{"a":1,"b":["x"]}"#, r#"{ "b":["\u0078"], "a":1 }"#, &[]));
        assert!(!same(r#"{"a":1}"#, r#"{"a":1.0}"#, &[]));
        assert!(same(r#"{"a":1,"t":2}"#, r#"{"t":3,"a":1}"#, &["t"]));
        assert!(!same(r#"{"a":1,"t":2}"#, r#"{"a":1,"c":2}"#, &["t"]));
    }

    #[test]
    fn null_is_a_value_that_is_there() {
        #[derive(Deserialize)]
        struct Holder {
            #[serde(default, deserialize_with = "present")]
            content: Option<Raw>,
        }
        let holder: Holder = serde_json::from_str(r#"{"content":null}"#).expect("parses");
        assert_eq!(holder.content.expect("there").get(), "null");
        let holder: Holder = serde_json::from_str("{}").expect("parses");
        assert!(holder.content.is_none());
    }
}
