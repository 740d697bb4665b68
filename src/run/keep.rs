//! Keeps the first and the last part of a stream in bounded memory and makes text of it.

use super::LeftOut;
use std::collections::VecDeque;

/// What is kept of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kept {
    /// As text, U+FFFD where it is not UTF-8; where bytes were left out, a line says how many.
    pub text: String,
    /// Length of the whole stream in bytes.
    pub bytes: u64,
    /// How many of them are not in `text`.
    pub left_out: u64,
}

/// A stream's first and last bytes.
#[derive(Debug)]
pub(super) struct Keep {
    head: Vec<u8>,
    tail: VecDeque<u8>,
    head_max: usize,
    tail_max: usize,
    bytes: u64,
}

impl Keep {
    /// Keeps `bytes_max` bytes at most.
    pub(super) fn new(bytes_max: usize) -> Self {
        let head_max = bytes_max / 2;
        Self { head: Vec::new(), tail: VecDeque::new(), head_max, tail_max: bytes_max - head_max, bytes: 0 }
    }

    /// Takes the next bytes of the stream.
    pub(super) fn push(&mut self, chunk: &[u8]) {
        self.bytes += chunk.len() as u64;
        let room = self.head_max - self.head.len();
        let (first, rest) = chunk.split_at(room.min(chunk.len()));
        self.head.extend_from_slice(first);
        let (_, rest) = rest.split_at(rest.len().saturating_sub(self.tail_max));
        let too_many = (self.tail.len() + rest.len()).saturating_sub(self.tail_max);
        self.tail.drain(..too_many);
        self.tail.extend(rest);
    }

    /// Length of the whole stream.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// All bytes of the stream, if none were left out.
    pub(super) fn whole(&self) -> Option<Vec<u8>> {
        (self.held() == self.bytes).then(|| self.head.iter().chain(&self.tail).copied().collect())
    }

    /// The text.
    pub(super) fn kept(&self) -> Kept {
        if let Some(whole) = self.whole() {
            let text = String::from_utf8_lossy(&whole).into_owned();
            return Kept { text, bytes: self.bytes, left_out: 0 };
        }
        let tail: Vec<u8> = self.tail.iter().copied().collect();
        let (head, tail) = (without_cut_end(&self.head), without_cut_start(&tail));
        let left_out = self.bytes - (head.len() + tail.len()) as u64;
        let mut text = String::from_utf8_lossy(head).into_owned();
        end_line(&mut text);
        text.push_str(&LeftOut(left_out).to_string());
        text.push_str(&String::from_utf8_lossy(tail));
        Kept { text, bytes: self.bytes, left_out }
    }

    fn held(&self) -> u64 {
        (self.head.len() + self.tail.len()) as u64
    }
}

/// Ends the last line, if there is one that has no end.
pub(super) fn end_line(text: &mut String) {
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
}

/// Leaves out the start of a character whose rest was cut off.
fn without_cut_end(bytes: &[u8]) -> &[u8] {
    let sequence = |lead: u8| match lead {
        0xC2..=0xDF => 2,
        0xE0..=0xEF => 3,
        0xF0..=0xF4 => 4,
        _ => 1,
    };
    let continuations = bytes.iter().rev().take(3).take_while(|byte| is_continuation(**byte)).count();
    let (before, _) = bytes.split_at(bytes.len() - continuations);
    match before.split_last() {
        Some((lead, whole)) if sequence(*lead) > continuations + 1 => whole,
        _ => bytes,
    }
}

/// Leaves out the rest of a character whose start was cut off.
pub(super) fn without_cut_start(bytes: &[u8]) -> &[u8] {
    let continuations = bytes.iter().take(3).take_while(|byte| is_continuation(**byte)).count();
    bytes.split_at(continuations).1
}

fn is_continuation(byte: u8) -> bool {
    byte & 0xC0 == 0x80
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(max: usize, chunks: &[&[u8]]) -> Kept {
        let mut keep = Keep::new(max);
        for chunk in chunks {
            keep.push(chunk);
        }
        keep.kept()
    }

    #[test]
    fn all_is_kept_up_to_the_limit() {
        let all = Kept { text: "abcdefgh".to_owned(), bytes: 8, left_out: 0 };
        assert_eq!(kept(8, &[b"abcdefgh"]), all);
        assert_eq!(kept(8, &[b"a", b"bcd", b"efg", b"h"]), all);
        assert_eq!(kept(9, &[b"abcdefgh"]), all);
    }

    #[test]
    fn the_middle_is_left_out_however_it_comes() {
        let cut =
            Kept { text: "abcd\n[turnkeep: 17 bytes left out]\nvwxyz".to_owned(), bytes: 26, left_out: 17 };
        let alphabet = b"abcdefghijklmnopqrstuvwxyz";
        assert_eq!(kept(9, &[alphabet]), cut);
        for size in 1..26 {
            assert_eq!(kept(9, &alphabet.chunks(size).collect::<Vec<_>>()), cut, "chunks of {size}");
        }
    }

    #[test]
    fn nothing_kept_is_counted() {
        let cut = Kept { text: "[turnkeep: 3 bytes left out]\n".to_owned(), bytes: 3, left_out: 3 };
        assert_eq!(kept(0, &[b"abc"]), cut);
        assert_eq!(kept(0, &[]), Kept { text: String::new(), bytes: 0, left_out: 0 });
    }

    #[test]
    fn a_cut_makes_no_bad_characters() {
        // Every cut through four characters of four lengths.
        let text = "a\u{e9}\u{20ac}\u{1f600}".repeat(8);
        for max in 0..text.len() {
            let kept = kept(max, &[text.as_bytes()]);
            assert!(!kept.text.contains('\u{fffd}'), "limit {max}: {}", kept.text);
            let line = format!("[turnkeep: {} bytes left out]\n", kept.left_out);
            let (head, tail) = kept.text.split_once(&line).unwrap();
            let head = head.trim_end_matches('\n');
            assert!(text.starts_with(head) && text.ends_with(tail), "limit {max}");
            assert_eq!(head.len() + tail.len() + usize::try_from(kept.left_out).unwrap(), text.len());
            assert!(head.len() + tail.len() <= max && head.len() + tail.len() + 6 >= max, "limit {max}");
        }
    }

    #[test]
    fn bytes_that_are_no_text_are_replaced() {
        assert_eq!(kept(9, &[b"a\xff\x00b"]).text, "a\u{fffd}\0b");
    }
}
