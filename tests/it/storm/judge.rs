//! What is wrong with what the processes of a storm were told and with the journal that they leave.

use serde_json::Value;
use std::collections::{HashMap, HashSet};

/// What one process of a storm does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Act {
    Note,
    Heartbeat,
    Steer,
    Claim,
    Result,
    Message,
    Settle,
    Admit,
    Recover,
    /// By a person, where `recover` waits for one.
    Reconcile,
}

impl Act {
    pub fn gives_a_ticket(self) -> bool {
        [Self::Admit, Self::Recover].contains(&self)
    }
}

/// How one process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    Answered,
    Killed,
    /// Somebody else was there first: another turn is open, its ticket was taken over, its call is answered.
    Refused,
    Other(i32),
}

/// What one process was told.
#[derive(Debug, Clone)]
pub struct Told {
    pub act: Act,
    /// What it wrote: no other process writes the same.
    pub mark: String,
    pub end: End,
    /// The receipt on its stdout, also of one that was killed behind it.
    pub receipt: Option<(u64, String)>,
    /// The ticket beside it.
    pub ticket: Option<String>,
    /// The call that a person is asked about.
    pub held: Option<String>,
    pub stderr: String,
}

/// The mark in a record, where its kind has room for one.
fn mark(record: &Value) -> Option<&str> {
    let found = match record["kind"].as_str()? {
        "note" | "result" => &record["content"],
        "steered" | "admitted" => &record["input"],
        "intent" => &record["id"],
        "message" => &record["message"]["content"][0]["text"],
        "settled" => &record["reason"],
        "reconciled" => &record["receipt"],
        "attempt" => &record["why"],
        _ => return None,
    };
    found.as_str()
}

/// The mark of the process that a receipt of this record belongs to: it may be in a record before it.
fn mark_of_receipt<'a>(journal: &'a [Value], record: &'a Value) -> Option<&'a str> {
    let with = |kind: &str, fields: &[&str]| {
        let fits =
            |other: &&Value| other["kind"] == kind && fields.iter().all(|name| other[name] == record[name]);
        // Who goes on with a recover that was killed has its number, and the later record of it.
        journal.iter().rfind(fits).and_then(mark)
    };
    match record["kind"].as_str()? {
        "claimed" => {
            let (seq, _) = record["ref"].as_str()?.split_once('.')?;
            let seq: u64 = seq.parse().ok()?;
            mark(journal.iter().find(|other| other["seq"] == seq)?)
        }
        "attempt" => with("admitted", &["turn"]),
        "recovered" => with("attempt", &["turn", "attempt"]),
        _ => mark(record),
    }
}

fn is_its(journal: &[Value], record: &Value, told: &Told, hash: &str) -> bool {
    let marked = match told.act {
        Act::Heartbeat => record["kind"] == "heartbeat",
        _ => mark_of_receipt(journal, record) == Some(&told.mark),
    };
    marked && record["hash"] == hash
}

/// Two told the same number or ticket, and what was told and is not there.
fn judge_receipts(told: &[Told], journal: &[Value]) -> Vec<String> {
    let mut wrong = Vec::new();
    let (mut numbers, mut tickets) = (HashMap::new(), HashMap::new());
    let by_seq: HashMap<u64, &Value> =
        journal.iter().filter_map(|record| Some((record["seq"].as_u64()?, record))).collect();
    for told in told {
        let Some((seq, hash)) = &told.receipt else { continue };
        let mark = &told.mark;
        if let Some(other) = numbers.insert(*seq, mark) {
            wrong.push(format!("{seq} was told to {other} and to {mark}"));
        }
        if let Some(other) = told.ticket.as_ref().and_then(|ticket| tickets.insert(ticket, mark)) {
            wrong.push(format!("the ticket of {mark} was told to {other} too"));
        }
        match by_seq.get(seq) {
            None => wrong.push(format!("{seq} was told to {mark} and is not there")),
            Some(record) if is_its(journal, record, told, hash) => {}
            Some(record) => wrong.push(format!("{seq} was told to {mark} and is {record}")),
        }
    }
    wrong
}

/// A process that ended in its own way, and one that was refused and wrote all the same.
fn judge_ends(told: &[Told], written: &HashSet<&str>) -> Vec<String> {
    let wrong = |told: &Told| match told.end {
        End::Other(code) => Some(format!("{} ended with {code}: {}", told.mark, told.stderr)),
        End::Answered if told.receipt.is_none() => Some(format!("{} was not answered", told.mark)),
        End::Refused if written.contains(told.mark.as_str()) => {
            Some(format!("{} was refused and stands", told.mark))
        }
        _ => None,
    };
    told.iter().filter_map(wrong).collect()
}

/// The marks that stand.
pub fn written(journal: &[Value]) -> HashSet<&str> {
    journal.iter().filter_map(mark).collect()
}

/// What is wrong, if anything.
pub fn judge(told: &[Told], journal: &[Value]) -> Vec<String> {
    let misplaced = journal.iter().enumerate().filter(|(at, record)| record["seq"] != *at as u64);
    let mut wrong: Vec<String> =
        misplaced.map(|(at, record)| format!("record {at} has the number {}", record["seq"])).collect();
    let mut written = HashSet::new();
    for mark in journal.iter().filter_map(mark) {
        if !written.insert(mark) {
            wrong.push(format!("{mark} stands twice"));
        }
    }
    wrong.extend(judge_receipts(told, journal));
    wrong.extend(judge_ends(told, &written));
    let known: HashSet<&str> = told.iter().map(|told| told.mark.as_str()).collect();
    wrong.extend(written.difference(&known).map(|mark| format!("nobody wrote {mark}")));
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// One of each kind whose receipt is to be found in another record, and a note.
    fn heard() -> (Vec<Told>, Vec<Value>) {
        let journal = [
            json!({"kind": "admitted", "turn": "t", "input": "admit-0"}),
            json!({"kind": "attempt", "turn": "t", "attempt": 1}),
            json!({"kind": "intent", "id": "claim-1"}),
            json!({"kind": "claimed", "ref": "2.0"}),
            json!({"kind": "attempt", "turn": "t", "attempt": 2, "why": "recover-2"}),
            json!({"kind": "recovered", "turn": "t", "attempt": 2}),
            json!({"kind": "note", "content": "note-3"}),
            json!({"kind": "heartbeat"}),
        ];
        let numbered = |(seq, mut record): (usize, Value)| {
            record["seq"] = json!(seq);
            record["hash"] = json!(format!("h{seq}"));
            record
        };
        let told = [
            (Act::Admit, "admit-0", 1, Some("s:t:1")),
            (Act::Claim, "claim-1", 3, None),
            (Act::Recover, "recover-2", 5, Some("s:t:2")),
            (Act::Note, "note-3", 6, None),
            (Act::Heartbeat, "heartbeat-4", 7, None),
        ];
        let told = told.map(|(act, mark, seq, ticket)| Told {
            held: None,
            act,
            mark: mark.to_owned(),
            end: End::Answered,
            receipt: Some((seq, format!("h{seq}"))),
            ticket: ticket.map(str::to_owned),
            stderr: String::new(),
        });
        (told.to_vec(), journal.into_iter().enumerate().map(numbered).collect())
    }

    /// Demands that a change of what was told or of the journal is found.
    #[track_caller]
    fn found(change: impl FnOnce(&mut Vec<Told>, &mut Vec<Value>), words: &str) {
        let (mut told, mut journal) = heard();
        change(&mut told, &mut journal);
        let wrong = judge(&told, &journal).join("\n");
        assert!(wrong.contains(words), "{words:?} is not in {wrong:?}");
    }

    #[test]
    fn a_storm_that_went_well_is_not_wrong() {
        let (told, journal) = heard();
        assert_eq!(judge(&told, &journal), Vec::<String>::new());
    }

    #[test]
    fn numbers_and_tickets_that_were_told_twice_are_found() {
        found(|told, _| told[3].receipt = told[1].receipt.clone(), "3 was told to claim-1 and to note-3");
        found(
            |told, _| told[2].ticket = told[0].ticket.clone(),
            "the ticket of recover-2 was told to admit-0 too",
        );
    }

    #[test]
    fn records_that_were_told_and_are_lost_are_found() {
        found(|_, journal| journal.truncate(7), "7 was told to heartbeat-4 and is not there");
        found(|_, journal| journal[6]["content"] = json!("note-9"), "6 was told to note-3 and is");
        found(|_, journal| journal[6]["hash"] = json!("other"), "6 was told to note-3 and is");
        // What its receipt stands for is in a record before it.
        found(|_, journal| journal[2]["id"] = json!("claim-9"), "3 was told to claim-1 and is");
        found(|_, journal| journal[4]["why"] = json!("recover-9"), "5 was told to recover-2 and is");
        found(|_, journal| journal[0]["input"] = json!("admit-9"), "1 was told to admit-0 and is");
        found(|_, journal| journal[7]["kind"] = json!("note"), "7 was told to heartbeat-4 and is");
    }

    #[test]
    fn records_that_should_not_be_there_are_found() {
        found(
            |_, journal| journal.push(json!({"seq": 8, "kind": "note", "content": "note-3"})),
            "note-3 stands twice",
        );
        found(
            |_, journal| journal.push(json!({"seq": 8, "kind": "note", "content": "note-9"})),
            "nobody wrote note-9",
        );
        found(|_, journal| journal[7]["seq"] = json!(8), "record 7 has the number 8");
        found(
            |told, _| {
                told[3].end = End::Refused;
                told[3].receipt = None;
            },
            "note-3 was refused and stands",
        );
    }

    #[test]
    fn ends_of_their_own_kind_are_found() {
        found(|told, _| told[3].receipt = None, "note-3 was not answered");
        found(|told, _| told[3].end = End::Other(3), "note-3 ended with 3");
    }
}
