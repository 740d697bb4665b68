//! The replay policy: which tools may run again, which need approval, which are held when unknown.
//!
//! Pure: reads the bytes of a policy file and classifies calls. It never guesses from a tool's name, a schema
//! or model text: a tool that is not listed is `never`, and where a rule cannot be decided the strictest
//! counts. Anything in a file that is not understood is an error, never ignored.

use crate::chain;
use crate::json::{self, Object, View};
use crate::record::{ApprovalRule, Hash, Replay, UnknownRule, decimal};
use serde_json::value::RawValue;
use std::fmt;
use std::str::FromStr;

/// The format of policy files that this version reads.
pub const FORMAT: &str = "turnkeep-policy/1";
/// Attempts without progress before a turn is parked, where a policy does not say.
pub const ATTEMPTS_MAX: u64 = 5;

/// What a policy says about one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rule {
    /// Whether the call may run again.
    pub replay: Replay,
    /// Whether a person has to agree first.
    pub approval: Option<ApprovalRule>,
    /// What happens when its outcome is unknown.
    pub unknown: Option<UnknownRule>,
}

/// The replay policy in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    listed: Vec<Listed>,
    attempts_max: u64,
    origin: Origin,
}

/// Where a policy comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Origin {
    BuiltIn,
    /// A file whose bytes have this digest.
    File(Hash),
    Unreadable,
}

/// Why a policy file is refused. `Display` names the file and the line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("policy {name}, line {line}: {problem}")]
pub struct PolicyError {
    /// The name of the file, as the caller gave it.
    pub name: String,
    /// Line of the file, from 1.
    pub line: usize,
    /// What is wrong there.
    pub problem: Problem,
}

/// What is wrong with a policy file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// Not text.
    #[error("not UTF-8")]
    NotUtf8,
    /// Not JSON.
    #[error("not JSON: {0}")]
    Syntax(String),
    /// Deeper than any policy needs, and than is safe to read.
    #[error("nests {0} levels deep, more than the {max} that are allowed", max = json::DEPTH_MAX)]
    TooDeep(usize),
    /// A value of another type than its place asks for.
    #[error("{place} must be {expected}")]
    Shape {
        /// Where.
        place: &'static str,
        /// What belongs there.
        expected: &'static str,
    },
    /// A key that stands twice in one object.
    #[error("key {key:?} occurs twice in {place}")]
    DoubledKey {
        /// Where.
        place: &'static str,
        /// The key.
        key: String,
    },
    /// A key that this version does not know.
    #[error("unknown field {key:?} in {place} (known: {known})")]
    UnknownField {
        /// Where.
        place: &'static str,
        /// The key.
        key: String,
        /// The keys that are known.
        known: String,
    },
    /// A field that has to be there.
    #[error("{place} has no {key:?}")]
    Missing {
        /// Where.
        place: &'static str,
        /// The key.
        key: &'static str,
    },
    /// A word that this version does not know.
    #[error("unknown value {value} of {key:?} ({expected})")]
    UnknownValue {
        /// The field.
        key: &'static str,
        /// Its value, as spelled.
        value: String,
        /// What is known.
        expected: String,
    },
    /// Two rules that one call could fit.
    #[error("a second rule for tool {tool:?} that can match the same call as the one on line {other}")]
    Overlap {
        /// The tool.
        tool: String,
        /// Line of the first rule.
        other: usize,
    },
}

impl Policy {
    /// The policy that holds where no file is given: tools known to change nothing are safe, all else is never.
    pub fn built_in() -> Self {
        let safe = |tool: &str, matching: Option<Where>| Listed {
            tool: tool.to_owned(),
            matching,
            rule: Rule { replay: Replay::Safe, ..STRICTEST_UNLISTED },
            line: 0,
        };
        let search = Where(vec![("action".to_owned(), "\"search\"".to_owned())]);
        Self {
            listed: vec![
                safe("read", None),
                safe("memory", Some(search)),
                safe("get_self_state", None),
                safe("agent_sessions", None),
                safe("agent_session_read", None),
                safe("mcp_tool_search", None),
            ],
            attempts_max: ATTEMPTS_MAX,
            origin: Origin::BuiltIn,
        }
    }

    /// What is known where the file cannot be read: nothing, so that everything is never.
    pub fn unreadable() -> Self {
        Self { listed: Vec::new(), attempts_max: ATTEMPTS_MAX, origin: Origin::Unreadable }
    }

    /// Reads the bytes of a policy file; `name` is what an error calls it.
    pub fn parse(bytes: &[u8], name: &str) -> Result<Self, PolicyError> {
        let text = std::str::from_utf8(bytes).map_err(|source| PolicyError {
            name: name.to_owned(),
            line: line_at(bytes, source.valid_up_to()),
            problem: Problem::NotUtf8,
        })?;
        Reader { text, name }.policy()
    }

    /// What the policy says about a call of `tool` with `args`, a JSON text.
    pub fn classify(&self, tool: &str, args: &str) -> Rule {
        let rules: Vec<&Listed> = self.listed.iter().filter(|listed| listed.tool == tool).collect();
        let plain = rules.iter().find(|listed| listed.matching.is_none());
        if rules.is_empty() {
            return STRICTEST_UNLISTED;
        }
        if let (Some(plain), [_]) = (plain, rules.as_slice()) {
            return plain.rule;
        }
        // Doubled keys: a tool may read the other one than we do, so a `where` on them decides nothing.
        let Some(args) = View::of(args).object().filter(|args| args.doubled().is_none()) else {
            return strictest(&rules);
        };
        rules
            .iter()
            .find(|listed| listed.matching.as_ref().is_some_and(|matching| matching.fits(&args)))
            .or(plain)
            .map_or_else(|| strictest(&rules), |listed| listed.rule)
    }

    /// After how many attempts without progress a turn is parked; at least 1.
    pub fn attempts_max(&self) -> u64 {
        self.attempts_max
    }

    /// Digest of the file's bytes; none for the built-in list.
    pub fn sha256(&self) -> Option<&Hash> {
        match &self.origin {
            Origin::File(sha256) => Some(sha256),
            Origin::BuiltIn | Origin::Unreadable => None,
        }
    }

    /// Whether no file was given.
    pub fn is_built_in(&self) -> bool {
        self.origin == Origin::BuiltIn
    }
}

/// What holds for a tool that no rule names.
const STRICTEST_UNLISTED: Rule = Rule { replay: Replay::Never, approval: None, unknown: None };

/// One line of the list.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Listed {
    tool: String,
    matching: Option<Where>,
    rule: Rule,
    /// Where it stands in the file; 0 in the built-in list.
    line: usize,
}

/// Top-level argument fields and the compact JSON spelling that each must have.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Where(Vec<(String, String)>);

impl Where {
    fn fits(&self, args: &Object<'_>) -> bool {
        self.0.iter().all(|(key, wanted)| args.get(key).is_some_and(|value| compact(value) == *wanted))
    }

    /// Whether some arguments fit both: unless one field is wanted with two spellings, they exist.
    fn overlaps(&self, other: &Self) -> bool {
        !self
            .0
            .iter()
            .any(|(key, wanted)| other.0.iter().any(|(name, spelled)| name == key && spelled != wanted))
    }
}

/// The strictest of a tool's rules, `never` among them unless one of them takes any arguments.
fn strictest(rules: &[&Listed]) -> Rule {
    let all = || rules.iter().map(|listed| listed.rule);
    let any_arguments = rules.iter().any(|listed| listed.matching.is_none());
    let least = all().map(|rule| rule.replay).min().filter(|_| any_arguments);
    Rule {
        replay: least.unwrap_or(Replay::Never),
        approval: all().find_map(|rule| rule.approval),
        unknown: all().find_map(|rule| rule.unknown),
    }
}

/// The spelling without white space outside strings.
fn compact(text: &str) -> String {
    json::Raw::parse(text).map_or_else(|_| text.to_owned(), |raw| raw.get().to_owned())
}

/// Reads a policy file; every value is a slice of `text`, so that its line can be told.
struct Reader<'a> {
    text: &'a str,
    name: &'a str,
}

impl<'a> Reader<'a> {
    fn policy(&self) -> Result<Policy, PolicyError> {
        const PLACE: &str = "the policy";
        let depth = json::depth(self.text);
        if depth > json::DEPTH_MAX {
            return Err(self.wrong_on(1, Problem::TooDeep(depth)));
        }
        if let Err(source) = serde_json::from_str::<&RawValue>(self.text) {
            return Err(self.wrong_on(source.line().max(1), Problem::Syntax(source.to_string())));
        }
        let file = self.object(self.text, PLACE, Some(&["format", "rules", "limits"]))?;
        self.format(self.required(&file, self.text, PLACE, "format")?)?;
        let mut listed = Vec::new();
        for rule in file.get("rules").map_or(Ok(Vec::new()), |rules| self.array(rules))? {
            let rule = self.rule(rule)?;
            self.refuse_overlap(&listed, &rule)?;
            listed.push(rule);
        }
        let attempts_max = file.get("limits").map_or(Ok(ATTEMPTS_MAX), |limits| self.limits(limits))?;
        Ok(Policy { listed, attempts_max, origin: Origin::File(chain::digest(self.text.as_bytes())) })
    }

    fn format(&self, value: &str) -> Result<(), PolicyError> {
        if View::of(value).string().as_deref() == Some(FORMAT) {
            return Ok(());
        }
        let expected = format!("this version reads {FORMAT:?}");
        Err(self.wrong(value, Problem::UnknownValue { key: "format", value: value.to_owned(), expected }))
    }

    fn rule(&self, text: &'a str) -> Result<Listed, PolicyError> {
        const PLACE: &str = "a rule";
        let rule = self.object(text, PLACE, Some(&["tool", "where", "replay", "approval", "unknown"]))?;
        let tool = self.required(&rule, text, PLACE, "tool")?;
        let tool = View::of(tool)
            .string()
            .ok_or_else(|| self.wrong(tool, Problem::Shape { place: "\"tool\"", expected: "a string" }))?;
        Ok(Listed {
            tool,
            matching: rule.get("where").map(|value| self.matching(value)).transpose()?,
            rule: Rule {
                replay: self.word("replay", self.required(&rule, text, PLACE, "replay")?)?,
                approval: rule.get("approval").map(|value| self.word("approval", value)).transpose()?,
                unknown: rule.get("unknown").map(|value| self.word("unknown", value)).transpose()?,
            },
            line: self.line_of(text),
        })
    }

    fn matching(&self, text: &'a str) -> Result<Where, PolicyError> {
        let fields = self.object(text, "\"where\"", None)?;
        Ok(Where(fields.0.into_iter().map(|(key, value)| (key, compact(value))).collect()))
    }

    fn limits(&self, text: &'a str) -> Result<u64, PolicyError> {
        let limits = self.object(text, "\"limits\"", Some(&["attempts"]))?;
        let Some(value) = limits.get("attempts") else { return Ok(ATTEMPTS_MAX) };
        decimal(value).filter(|attempts| *attempts >= 1).ok_or_else(|| {
            let expected = "a whole number, at least 1".to_owned();
            self.wrong(value, Problem::UnknownValue { key: "attempts", value: value.to_owned(), expected })
        })
    }

    fn refuse_overlap(&self, listed: &[Listed], rule: &Listed) -> Result<(), PolicyError> {
        let clash = listed.iter().find(|other| {
            other.tool == rule.tool
                && match (&other.matching, &rule.matching) {
                    (None, None) => true,
                    (Some(one), Some(two)) => one.overlaps(two),
                    (None, Some(_)) | (Some(_), None) => false,
                }
        });
        clash.map_or(Ok(()), |other| {
            let problem = Problem::Overlap { tool: rule.tool.clone(), other: other.line };
            Err(self.wrong_on(rule.line, problem))
        })
    }

    /// An object without doubled keys and, where `known` is given, without others than these.
    fn object(
        &self,
        text: &'a str,
        place: &'static str,
        known: Option<&[&str]>,
    ) -> Result<Object<'a>, PolicyError> {
        let object = View::of(text)
            .object()
            .ok_or_else(|| self.wrong(text, Problem::Shape { place, expected: "an object" }))?;
        let mut seen: Vec<&str> = Vec::new();
        for (key, value) in &object.0 {
            if seen.contains(&key.as_str()) {
                return Err(self.wrong(value, Problem::DoubledKey { place, key: key.clone() }));
            }
            if let Some(known) = known.filter(|known| !known.contains(&key.as_str())) {
                let known = known.join(", ");
                return Err(self.wrong(value, Problem::UnknownField { place, key: key.clone(), known }));
            }
            seen.push(key);
        }
        Ok(object)
    }

    fn array(&self, text: &'a str) -> Result<Vec<&'a str>, PolicyError> {
        View::of(text)
            .array()
            .ok_or_else(|| self.wrong(text, Problem::Shape { place: "\"rules\"", expected: "an array" }))
    }

    fn required(
        &self,
        object: &Object<'a>,
        text: &str,
        place: &'static str,
        key: &'static str,
    ) -> Result<&'a str, PolicyError> {
        object.get(key).ok_or_else(|| self.wrong(text, Problem::Missing { place, key }))
    }

    fn word<T: FromStr>(&self, key: &'static str, value: &str) -> Result<T, PolicyError>
    where
        T::Err: fmt::Display,
    {
        let unknown = |expected: String| {
            self.wrong(value, Problem::UnknownValue { key, value: value.to_owned(), expected })
        };
        let word = View::of(value).string().ok_or_else(|| unknown("expected a word".to_owned()))?;
        word.parse().map_err(|expected: T::Err| unknown(expected.to_string()))
    }

    fn wrong(&self, part: &str, problem: Problem) -> PolicyError {
        self.wrong_on(self.line_of(part), problem)
    }

    fn wrong_on(&self, line: usize, problem: Problem) -> PolicyError {
        PolicyError { name: self.name.to_owned(), line, problem }
    }

    /// The line on which `part`, a slice of the file, begins.
    fn line_of(&self, part: &str) -> usize {
        let blank = part.len() - part.trim_start().len();
        line_at(self.text.as_bytes(), part.as_ptr().addr() - self.text.as_ptr().addr() + blank)
    }
}

/// The line of a byte offset, from 1.
fn line_at(bytes: &[u8], offset: usize) -> usize {
    1 + bytes.iter().take(offset).filter(|byte| **byte == b'\n').count()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAFE: Rule = Rule { replay: Replay::Safe, approval: None, unknown: None };
    const NEVER: Rule = STRICTEST_UNLISTED;

    fn policy(rules: &str) -> Policy {
        let file = format!(r#"{{"format":"turnkeep-policy/1","rules":[{rules}]}}"#);
        Policy::parse(file.as_bytes(), "p.json").expect("a policy")
    }

    fn refused(file: &str) -> String {
        Policy::parse(file.as_bytes(), "p.json").expect_err("refused").to_string()
    }

    fn refused_rules(rules: &str) -> String {
        refused(&format!("{{\"format\":\"turnkeep-policy/1\",\"rules\":[\n{rules}\n]}}"))
    }

    #[test]
    fn the_built_in_list_is_short() {
        let policy = Policy::built_in();
        for tool in ["read", "get_self_state", "agent_sessions", "agent_session_read", "mcp_tool_search"] {
            assert_eq!(policy.classify(tool, "{}"), SAFE, "{tool}");
            assert_eq!(policy.classify(tool, "\"no object\""), SAFE, "{tool} takes any arguments");
        }
        assert_eq!(policy.classify("memory", r#"{"action":"search","q":1}"#), SAFE);
        assert_eq!(policy.classify("memory", r#"{"action":"store"}"#), NEVER);
        assert_eq!(policy.classify("memory", "{}"), NEVER);
        assert_eq!(policy.classify("Read", "{}"), NEVER);
        assert_eq!(policy.classify("bash", "{}"), NEVER);
        assert_eq!((policy.attempts_max(), policy.sha256()), (5, None));
    }

    #[test]
    fn the_worked_example_reads() {
        let file = br#"{"format":"turnkeep-policy/1","rules":[
            {"tool":"memory","where":{"action":"search"},"replay":"safe"},
            {"tool":"charge","replay":"never","unknown":"hold"},
            {"tool":"put_object","replay":"keyed"},
            {"tool":"deploy","replay":"never","approval":"required"}],
           "limits":{"attempts":7}}"#;
        let policy = Policy::parse(file, "p.json").expect("a policy");
        assert_eq!(policy.classify("charge", "{}"), Rule { unknown: Some(UnknownRule::Hold), ..NEVER });
        assert_eq!(policy.classify("put_object", "{}"), Rule { replay: Replay::Keyed, ..NEVER });
        let approval = Some(ApprovalRule::Required);
        assert_eq!(policy.classify("deploy", "{}"), Rule { approval, ..NEVER });
        assert_eq!(policy.classify("read", "{}"), NEVER, "a file replaces the built-in list");
        assert_eq!(policy.attempts_max(), 7);
        assert_eq!(policy.sha256().map(Hash::as_str), Some(json::sha256_hex(file).as_str()));
    }

    #[test]
    fn where_compares_spelling_and_beats_a_rule_without() {
        let policy = policy(
            r#"{"tool":"t","replay":"keyed","approval":"required"},
               {"tool":"t","where":{"n":1.0,"o":{"a": [1, 2]}},"replay":"safe"}"#,
        );
        let plain = Rule { replay: Replay::Keyed, approval: Some(ApprovalRule::Required), unknown: None };
        assert_eq!(policy.classify("t", r#"{ "o" : {"a":[ 1,2]}, "x":0, "n":1.0}"#), SAFE);
        assert_eq!(policy.classify("t", r#"{"n":1,"o":{"a":[1,2]}}"#), plain, "1 is not 1.0");
        assert_eq!(policy.classify("t", r#"{"n":1.0}"#), plain, "a missing field");
        assert_eq!(policy.classify("t", r#"{"in":{"n":1.0,"o":{"a":[1,2]}}}"#), plain, "top level only");
    }

    #[test]
    fn the_strictest_rule_counts_where_none_can_be_decided() {
        let only_where = policy(
            r#"{"tool":"t","where":{"a":1},"replay":"safe","approval":"required"},
               {"tool":"t","where":{"a":2},"replay":"keyed","unknown":"hold"}"#,
        );
        let all = Rule {
            replay: Replay::Never,
            approval: Some(ApprovalRule::Required),
            unknown: Some(UnknownRule::Hold),
        };
        for args in [r#"{"a":1,"a":1}"#, r#"{"a":1,"b":0,"b":0}"#, "[1]", "\"{\\\"a\\\":1}\"", r#"{"a":3}"#] {
            assert_eq!(only_where.classify("t", args), all, "{args}");
        }
        let with_plain = policy(
            r#"{"tool":"t","where":{"a":1},"replay":"safe"},
               {"tool":"t","where":{"a":2},"replay":"keyed","approval":"required"},
               {"tool":"t","replay":"safe","unknown":"hold"}"#,
        );
        let strictest = Rule { replay: Replay::Keyed, ..all };
        assert_eq!(with_plain.classify("t", r#"{"a":1,"a":1}"#), strictest);
        assert_eq!(with_plain.classify("t", "null"), strictest);
        assert_eq!(
            with_plain.classify("t", r#"{"a":3}"#),
            Rule { unknown: Some(UnknownRule::Hold), ..SAFE },
            "the rule without `where` fits"
        );
        assert_eq!(with_plain.classify("u", r#"{"a":1,"a":1}"#), NEVER);
    }

    #[test]
    fn doubled_arguments_matter_only_to_where() {
        assert_eq!(policy(r#"{"tool":"t","replay":"safe"}"#).classify("t", r#"{"a":1,"a":2}"#), SAFE);
    }

    #[test]
    fn overlap_is_refused_with_both_lines() {
        let where_rule = |fields: &str| format!(r#"{{"tool":"t","where":{{{fields}}},"replay":"safe"}}"#);
        let pair = |one: &str, two: &str| refused_rules(&format!("{one},\n{two}"));
        let plain = r#"{"tool":"t","replay":"safe"}"#;
        let expected = "policy p.json, line 3: a second rule for tool \"t\" that can match the same call as \
                        the one on line 2";
        assert_eq!(pair(plain, plain), expected);
        assert_eq!(pair(&where_rule("\"a\":1"), &where_rule("\"b\":1")), expected);
        assert_eq!(pair(&where_rule("\"a\":1"), &where_rule("\"a\":1,\"b\":1")), expected);
        assert_eq!(pair(&where_rule("\"a\":[1]"), &where_rule("\"a\":[ 1 ]")), expected);
        let apart = format!("{},{}", where_rule("\"a\":1,\"b\":1"), where_rule("\"a\":2,\"b\":1"));
        assert_eq!(policy(&apart).classify("t", r#"{"a":2,"b":1}"#), SAFE);
        policy(&format!("{plain},{}", where_rule("\"a\":1")));
        policy(r#"{"tool":"t","replay":"safe"},{"tool":"u","replay":"safe"}"#);
    }

    #[test]
    fn what_is_not_understood_is_refused_by_line() {
        let cases = [
            (
                "{\"tool\":\"t\",\n\"replay\":\"yes\"}",
                "line 3: unknown value \"yes\" of \"replay\" (expected one of: never, keyed, safe)",
            ),
            (r#"{"tool":"t","replay":true}"#, "line 2: unknown value true of \"replay\" (expected a word)"),
            (
                r#"{"tool":"t","replay":"safe","approval":null}"#,
                "line 2: unknown value null of \"approval\" (expected a word)",
            ),
            (
                r#"{"tool":"t","replay":"safe","unknown":"ask"}"#,
                "line 2: unknown value \"ask\" of \"unknown\" (expected one of: hold)",
            ),
            (
                r#"{"tool":"t","replay":"safe","when":{}}"#,
                "line 2: unknown field \"when\" in a rule (known: tool, where, replay, approval, unknown)",
            ),
            (
                r#"{"tool":"t","replay":"safe","replay":"safe"}"#,
                "line 2: key \"replay\" occurs twice in a rule",
            ),
            (
                r#"{"tool":"t","where":{"a":1,"\u0061":2},"replay":"safe"}"#,
                "line 2: key \"a\" occurs twice in \"where\"",
            ),
            (r#"{"tool":"t","where":"a","replay":"safe"}"#, "line 2: \"where\" must be an object"),
            (r#"{"tool":7,"replay":"safe"}"#, "line 2: \"tool\" must be a string"),
            (r#"{"replay":"safe"}"#, "line 2: a rule has no \"tool\""),
            (r#"{"tool":"t"}"#, "line 2: a rule has no \"replay\""),
            ("7", "line 2: a rule must be an object"),
        ];
        for (rules, expected) in cases {
            assert_eq!(refused_rules(rules), format!("policy p.json, {expected}"));
        }
    }

    #[test]
    fn the_file_itself_is_checked() {
        let format = r#""format":"turnkeep-policy/1""#;
        let cases = [
            (
                r#"{"format":"turnkeep-policy/2"}"#.to_owned(),
                "line 1: unknown value \"turnkeep-policy/2\" of \"format\" (this version reads \"turnkeep-policy/1\")",
            ),
            ("\n{}".to_owned(), "line 2: the policy has no \"format\""),
            ("[]".to_owned(), "line 1: the policy must be an object"),
            (format!("{{{format},{format}}}"), "line 1: key \"format\" occurs twice in the policy"),
            (
                format!("{{{format},\n\"rule\":[]}}"),
                "line 2: unknown field \"rule\" in the policy (known: format, rules, limits)",
            ),
            (format!("{{{format},\"rules\":{{}}}}"), "line 1: \"rules\" must be an array"),
            (
                format!("{{{format},\"limits\":{{\"attempt\":1}}}}"),
                "line 1: unknown field \"attempt\" in \"limits\" (known: attempts)",
            ),
            (
                format!("{{{format},\n\"limits\":{{\n\"attempts\":0}}}}"),
                "line 3: unknown value 0 of \"attempts\" (a whole number, at least 1)",
            ),
        ];
        for (file, expected) in cases {
            assert_eq!(refused(&file), format!("policy p.json, {expected}"));
        }
        for attempts in ["-1", "1.5", "\"5\"", "1e2", "99999999999999999999"] {
            let file = format!("{{{format},\"limits\":{{\"attempts\":{attempts}}}}}");
            assert!(refused(&file).contains("at least 1"), "{attempts}");
        }
        assert!(refused("{\n\"format\":}").starts_with("policy p.json, line 2: not JSON: "));
        assert!(refused(&"[".repeat(100_000)).contains("line 1: nests 100000 levels"));
        let not_text = Policy::parse(b"{\n\n\xff}", "p.json").expect_err("refused");
        assert_eq!(not_text.to_string(), "policy p.json, line 3: not UTF-8");
        let bare = Policy::parse(format!("{{{format}}}").as_bytes(), "p.json").expect("a policy");
        assert_eq!((bare.classify("read", "{}"), bare.attempts_max()), (NEVER, 5));
    }
}
