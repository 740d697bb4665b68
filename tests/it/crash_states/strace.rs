//! A strace log (`-f -y -xx`) as calls in the order in which they began and ended.
//!
//! Every line is understood or refused: what is passed over in silence is not tested.

use std::collections::HashMap;

/// One argument of a call, or what it answered.
pub type Word = String;

/// A system call.
#[derive(Debug, Clone)]
pub struct Call {
    pub name: String,
    pub args: Vec<Word>,
    /// What it answered; negative where it failed, `None` where nobody saw it return.
    pub ret: Option<i64>,
}

/// What a line of the log says of its process.
#[derive(Debug, Clone)]
pub enum Seen {
    /// A call began; what it does may be seen by others from here on.
    Began(Call),
    /// A call returned.
    Ended(Call),
    /// A thread or process was there no more, and what its exit code was, if it had one.
    Gone(Option<i32>),
}

#[derive(Debug, Clone)]
pub struct Line {
    /// Counted from 1.
    pub number: usize,
    pub pid: u32,
    pub seen: Seen,
}

/// All lines of a log.
pub fn read(log: &str) -> Result<Vec<Line>, String> {
    let mut lines = Vec::new();
    let mut open: HashMap<u32, String> = HashMap::new();
    for (at, text) in log.lines().enumerate() {
        let number = at + 1;
        let failed = |why: &str| format!("line {number} of the log: {why}: {}", shortened(text));
        let (pid, rest) = text.trim_end().split_once(' ').ok_or_else(|| failed("no process"))?;
        let pid: u32 = pid.parse().map_err(|_| failed("no process"))?;
        let rest = rest.trim_start();
        let mut say = |seen| lines.push(Line { number, pid, seen });
        if let Some(exit) = rest.strip_prefix("+++ ") {
            if exit.starts_with("superseded") {
                return Err(failed("a thread that becomes another program is not modelled"));
            }
            let code =
                exit.strip_prefix("exited with ").and_then(|code| code.split(' ').next()?.parse().ok());
            if let Some(unfinished) = open.remove(&pid) {
                say(Seen::Ended(call(&format!("{unfinished} = ?")).map_err(|why| failed(&why))?));
            }
            say(Seen::Gone(code));
        } else if rest.starts_with("--- ") {
            // A signal came.
        } else if let Some(began) = rest.strip_suffix("<unfinished ...>") {
            let began = began.trim_end();
            say(Seen::Began(call(&format!("{began}) = ?")).map_err(|why| failed(&why))?));
            open.insert(pid, began.to_owned());
        } else if let Some(resumed) = rest.strip_prefix("<... ") {
            let (_, tail) = resumed.split_once(" resumed>").ok_or_else(|| failed("not resumed"))?;
            let began = open.remove(&pid).ok_or_else(|| failed("it never began"))?;
            say(Seen::Ended(call(&format!("{began}{tail}")).map_err(|why| failed(&why))?));
        } else {
            let call = call(rest).map_err(|why| failed(&why))?;
            say(Seen::Began(Call { ret: None, ..call.clone() }));
            say(Seen::Ended(call));
        }
    }
    if lines.is_empty() { Err("the log is empty".to_owned()) } else { Ok(lines) }
}

fn shortened(text: &str) -> String {
    text.chars().take(300).collect()
}

/// `name(args) = answer`
fn call(text: &str) -> Result<Call, String> {
    let (left, answer) = text.rsplit_once(" = ").ok_or("no answer")?;
    let (name, args) = left.split_once('(').ok_or("no call")?;
    let args = args.trim_end();
    let args = split(args.strip_suffix(')').unwrap_or(args));
    let first = answer.split_whitespace().next().ok_or("no answer")?;
    let ret = match descriptor(first).0 {
        "?" => None,
        hex if hex.starts_with("0x") => i64::from_str_radix(&hex[2..], 16).ok(),
        decimal => Some(decimal.parse().map_err(|_| "no answer".to_owned())?),
    };
    Ok(Call { name: name.trim().to_owned(), args, ret })
}

/// Splits at commas outside brackets. Strings are hexadecimal, so they hold neither.
fn split(text: &str) -> Vec<Word> {
    let (mut words, mut depth, mut word) = (Vec::new(), 0, String::new());
    for letter in text.chars() {
        match letter {
            '{' | '[' | '(' => depth += 1,
            '}' | ']' | ')' => depth -= 1,
            ',' if depth == 0 => {
                words.push(std::mem::take(&mut word).trim().to_owned());
                continue;
            }
            _ => {}
        }
        word.push(letter);
    }
    if !word.trim().is_empty() {
        words.push(word.trim().to_owned());
    }
    words
}

/// `3</the/path>` as its two parts.
pub fn descriptor(word: &str) -> (&str, Option<String>) {
    match word.split_once('<') {
        None => (word, None),
        Some((number, path)) => {
            let path = path.split('>').next().unwrap_or_default();
            (number, Some(if path.starts_with("\\x") { text_of(path) } else { path.to_owned() }))
        }
    }
}

/// The bytes of a quoted word; an error where strace cut it off.
pub fn bytes(word: &str) -> Result<Vec<u8>, String> {
    if word.ends_with("...") {
        return Err("strace cut a string off".to_owned());
    }
    let inner = word.strip_prefix('"').and_then(|word| word.strip_suffix('"'));
    unhex(inner.ok_or_else(|| format!("no string: {}", shortened(word)))?)
}

/// The text of a quoted word.
pub fn string(word: &str) -> Result<String, String> {
    Ok(String::from_utf8_lossy(&bytes(word)?).into_owned())
}

fn text_of(hex: &str) -> String {
    unhex(hex).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}

fn unhex(hex: &str) -> Result<Vec<u8>, String> {
    hex.split("\\x")
        .skip(1)
        .map(|pair| u8::from_str_radix(pair, 16).map_err(|_| format!("not hexadecimal: {pair:?}")))
        .collect()
}

/// Every quoted string within a word, also inside brackets; those that were cut off as far as they go.
pub fn strings(word: &str) -> Vec<String> {
    word.split('"').skip(1).step_by(2).map(text_of).collect()
}

/// Every path of a descriptor within a word.
pub fn paths(word: &str) -> Vec<String> {
    word.split('<').skip(1).map(|rest| text_of(rest.split('>').next().unwrap_or_default())).collect()
}
