//! Who may print: the answer goes to stdout, everything else to stderr.
//!
//! A closed pipe is quiet; a full device is an error. Untrusted text is escaped where people read it.

use super::args::Color;
use super::error::{Exit, Failure};
use super::outside::Streams;
use crate::json::{ObjectWriter, Raw};
use serde::Serialize;
use std::fmt::Write as _;
use std::io;

/// The two streams of a command.
#[derive(Clone)]
pub struct Output {
    /// Whether stdout carries JSON.
    pub json: bool,
    /// Whether notes are left out.
    pub quiet: bool,
    /// Whether stdout is a terminal that shows colour.
    pub color: bool,
    streams: Streams,
}

impl Output {
    /// Looks at the terminal and the environment.
    pub fn new(streams: &Streams, json: bool, quiet: bool, color: Color) -> Self {
        let color = shows_color(color, streams.out_is_terminal());
        Self { json, quiet, color, streams: streams.clone() }
    }

    /// Prints a line of the answer.
    pub fn line(&self, text: &str) -> Result<(), Failure> {
        answered(self.streams.out(format!("{text}\n").as_bytes()))
    }

    /// Prints foreign text of the answer on a line: escaped where a person reads it, and as it is for scripts.
    pub fn foreign(&self, text: &str) -> Result<(), Failure> {
        if self.streams.out_is_terminal() { self.line(&escaped(text)) } else { self.line(text) }
    }

    /// Prints JSON on a line; on a terminal, characters that it would obey are spelled as JSON spells them.
    pub fn json(&self, text: &str) -> Result<(), Failure> {
        if !self.streams.out_is_terminal() {
            return self.line(text);
        }
        let spell = |char: char| match char {
            _ if is_hostile(char) => format!("\\u{:04x}", u32::from(char)),
            _ => char.to_string(),
        };
        self.line(&text.chars().map(spell).collect::<String>())
    }

    /// Prints foreign bytes as they are, but for what a terminal would obey.
    pub fn foreign_bytes(&self, bytes: &[u8]) -> Result<(), Failure> {
        self.foreign_bytes_for_a_reader(bytes).map(|_| ())
    }

    /// The same, for one who goes on as long as somebody reads.
    pub fn foreign_bytes_for_a_reader(&self, bytes: &[u8]) -> Result<Reader, Failure> {
        let printed = if self.streams.out_is_terminal() {
            self.streams.out(escaped(&String::from_utf8_lossy(bytes)).as_bytes())
        } else {
            self.streams.out(bytes)
        };
        let left = printed.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::BrokenPipe);
        answered(printed).map(|()| if left { Reader::Left } else { Reader::Stays })
    }

    /// Prints bytes of the answer as they are.
    pub fn bytes(&self, bytes: &[u8]) -> Result<(), Failure> {
        answered(self.streams.out(bytes))
    }

    /// Shows bytes of a command on stderr.
    pub fn stderr(&self, bytes: &[u8]) -> Result<(), Failure> {
        answered(self.streams.err(bytes))
    }

    /// Prints a document as one line.
    pub fn document(&self, document: &impl Serialize) -> Result<(), Failure> {
        let text = serde_json::to_string(document).map_err(Failure::unexpected)?;
        self.json(&text)
    }

    /// Tells people something that is no error.
    pub fn note(&self, text: &str) {
        if !self.quiet {
            self.complain(&format!("turnkeep: note: {}", escaped(text)));
        }
    }

    /// A progress bar over so many bytes, where a person watches stderr.
    pub fn progress(&self, bytes: u64) -> Option<indicatif::ProgressBar> {
        (!self.quiet && self.streams.err_is_terminal()).then(|| indicatif::ProgressBar::new(bytes))
    }

    /// Tells what went wrong: people on stderr, scripts on stdout too.
    pub fn failure(&self, failure: &Failure) {
        self.complain(&format!("turnkeep: {}", escaped(&failure.message)));
        self.complain(&format!("\nhint: {}", escaped(&failure.hint)));
        if self.json {
            self.failure_document(failure);
        }
    }

    /// A line on stderr; nobody can be told where that fails.
    fn complain(&self, text: &str) {
        let _unheard = self.streams.err(format!("{text}\n").as_bytes());
    }

    /// Tells scripts what went wrong; a closed pipe or a full device cannot be told about any better than by the
    /// exit code.
    pub fn failure_document(&self, failure: &Failure) {
        let _told = self.json(error_document(failure).get());
    }
}

/// Whether there is still somebody at the other end of a pipe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reader {
    /// As far as anybody can tell.
    Stays,
    /// It wants no more.
    Left,
}

/// Whether a stream is to be coloured, which may be a terminal.
pub fn shows_color(color: Color, terminal: bool) -> bool {
    let allowed = || {
        let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        !no_color && !dumb
    };
    match color {
        Color::Auto => terminal && allowed(),
        Color::Always => true,
        Color::Never => false,
    }
}

/// `turnkeep.error/1`
pub fn error_document(failure: &Failure) -> Raw {
    let mut document = ObjectWriter::default()
        .string("schema", "turnkeep.error/1")
        .raw("exit", &failure.exit.code().to_string())
        .string("kind", failure.kind)
        .string("message", &failure.message)
        .string("hint", &failure.hint);
    for (key, value) in &failure.more {
        document = document.raw(key, value.get());
    }
    document.finish()
}

/// Text that a terminal shows as text: control, escape and bidirectional characters are spelled out.
pub fn escaped(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for char in text.chars() {
        if is_hostile(char) {
            // Writing to a String cannot fail.
            let _infallible = write!(shown, "\\u{{{:x}}}", u32::from(char));
        } else {
            shown.push(char);
        }
    }
    shown
}

/// Whether a terminal obeys a character instead of showing it.
fn is_hostile(char: char) -> bool {
    (char.is_control() && char != '\n' && char != '\t')
        || matches!(char, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

/// The same on one line, whatever stands in names.
pub fn one_line(text: &str) -> String {
    escaped(text).replace('\n', "\\n")
}

/// The same on one line, cut to a width.
pub fn brief(text: &str, chars_max: usize) -> String {
    let line = escaped(text).replace(['\n', '\t'], " ");
    if line.chars().count() <= chars_max {
        return line;
    }
    let mut cut: String = line.chars().take(chars_max.saturating_sub(1)).collect();
    cut.push('…');
    cut
}

/// What became of an answer; a reader that went away wanted no more of it.
pub fn answered(printed: io::Result<()>) -> Result<(), Failure> {
    match printed {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::of(Exit::Unexpected, "answer_lost", format!("could not write the answer: {error}"))
                .hint("what was recorded stands; ask again with `turnkeep inspect`"))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_characters_are_spelled_out() {
        assert_eq!(escaped("a\u{1b}[31m\u{202e}b\nc"), "a\\u{1b}[31m\\u{202e}b\nc");
        // All marks that turn the direction of text, one of them far from the others.
        assert_eq!(escaped("\u{61c}\u{200e}\u{2069}"), "\\u{61c}\\u{200e}\\u{2069}");
        assert_eq!(brief("one\ntwo three", 8), "one two…");
    }

    #[test]
    fn the_error_document_names_number_and_kind() {
        let failure = Failure::conflict("other", "what").with("pid", &7).hint("do");
        assert_eq!(
            error_document(&failure).get(),
            r#"{"schema":"turnkeep.error/1","exit":6,"kind":"other","message":"what","hint":"do","pid":7}"#
        );
    }
}
