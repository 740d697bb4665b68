//! Any bytes as one line: as they are, and with a hash that holds.
//!
//! A line that decodes is what encoding its record gives; changed in any place it does not decode any more.

use turnkeep::chain::{self, Fault};
use turnkeep::record::Record;
use turnkeep::scan::{self, Tail};

pub fn run(bytes: &[u8]) {
    line(bytes);
    line(&sealed(bytes));
    tail(bytes, 0);
    tail(&sealed(bytes), 7);
    tail(&[&sealed(bytes), &[0; 5][..]].concat(), 7);
}

/// With the hash that holds for what stands before it.
fn sealed(bytes: &[u8]) -> Vec<u8> {
    let covered = match bytes.windows(9).rposition(|window| window == br#","hash":""#) {
        Some(at) => &bytes[..at],
        None => bytes,
    };
    [covered, format!(",\"hash\":\"{}\"}}", chain::digest(covered)).as_bytes()].concat()
}

fn line(bytes: &[u8]) {
    line_by(bytes, chain::decode);
}

/// What is demanded of somebody who decodes a line.
pub fn line_by(bytes: &[u8], decode: impl Fn(&[u8]) -> Result<Record, Fault>) {
    let record = match decode(bytes) {
        Ok(record) => record,
        Err(fault) => {
            assert!(!fault.to_string().is_empty());
            return assert_eq!(
                chain::hash_holds(bytes),
                !matches!(fault, Fault::Suffix | Fault::Hash { .. }),
                "{fault}"
            );
        }
    };
    assert!(chain::hash_holds(bytes));
    let (again, hash) = chain::encode(record.seq, &record.at, &record.kind, record.base, &record.prev);
    assert!(again == bytes && hash == record.hash, "spelled otherwise");
    // One bit of it, another one for each input.
    let mut flipped = bytes.to_vec();
    let bit = bytes.iter().fold(0usize, |sum, byte| sum.wrapping_mul(31).wrapping_add(usize::from(*byte)));
    let bit = bit % (bytes.len() * 8);
    flipped[bit / 8] ^= 1 << (bit % 8);
    assert!(decode(&flipped).is_err(), "bit {bit}");
}

fn tail(bytes: &[u8], offset: u64) {
    let (end, many) = (offset + bytes.len() as u64, bytes.len() as u64);
    match scan::tail(bytes, 0, offset) {
        Tail::Clean => assert!(bytes.is_empty()),
        Tail::NoNewline { record, offset: from, end: to, nuls } => {
            assert!(from == offset && to + nuls == end && !record.hash.as_str().is_empty());
        }
        Tail::Torn { offset: from, bytes: count } => {
            assert!((from, count) == (offset, many) && !chain::hash_holds(bytes));
        }
        Tail::Damaged { offset: from, bytes: count, fault } => {
            assert!((from, count) == (offset, many) && !fault.to_string().is_empty());
        }
    }
}
