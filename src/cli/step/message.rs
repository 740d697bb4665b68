//! `step message` and `step entry`: what was said.

use super::super::args::{FileArgs, MessageArgs};
use super::super::context::Context;
use super::super::error::{Exit, Failure};
use super::{Step, Tickets, content, no_content};
use crate::branch;
use crate::draft::History;
use crate::json::Raw;
use crate::message::{self, Meaning, Role};
use crate::record::{CallIntent, Kind, Message};
use crate::recovery;
use crate::turn::{Mark, Turn, What};
use std::collections::{HashMap, HashSet};

/// `turnkeep step message`
pub(super) fn message(context: &Context, tickets: &Tickets, args: &MessageArgs) -> Result<Exit, Failure> {
    let text = content(context, args.file.as_ref())?.ok_or_else(|| no_content("a message"))?;
    let (raw, meaning) = message::take(&text, args.format.0, args.role.as_deref())?;
    let ids = call_ids(&meaning, args.assign_ids)?;
    context.arm()?;
    let signal = || context.signal();
    let mut step = Step::open(context, tickets.any()?, &signal)?;
    let turn = step.open_turn()?;
    step.check_attempt_exists(&turn)?;
    if let Some(mark) = repeated(&step, &turn, &raw, &meaning) {
        return step.repeat(&mark);
    }
    step.fence(&turn)?;
    if meaning.role == Role::Assistant {
        turn.check_model_message(&meaning).map_err(|why| refused(&turn, why))?;
    }
    check_results(&turn, &meaning)?;
    let prepared = step.desk.journal.prepare(step.desk.at.clone(), "")?;
    let seq = prepared.draft.next_seq();
    let session = step.desk.session()?;
    let intents = recovery::intents(session, &turn.id, seq, &meaning, &context.policy);
    let calls: Vec<CallIntent> = intents
        .into_iter()
        .zip(assigned(ids, seq))
        .map(|(intent, id)| CallIntent { id: Some(id), ..intent })
        .collect();
    let record = Message {
        turn: turn.id.clone(),
        attempt: step.ticket.attempt,
        format: meaning.format.to_string(),
        role: meaning.role_word.clone(),
        message: raw,
        calls: (!calls.is_empty()).then_some(calls),
    };
    let mut prepared = prepared;
    prepared.draft.push(record).map_err(Failure::from)?;
    write(step, prepared)
}

/// A model's message that the turn cannot take now, with what to do first.
pub(super) fn refused(turn: &Turn, why: String) -> Failure {
    let hint = if turn.open_calls().next().is_some() {
        "run the open calls and record their results, or `turnkeep recover`, then say this"
    } else {
        "nothing may begin any more: `turnkeep step settle` ends the turn as cancelled"
    };
    Failure::conflict("message_refused", why).hint(hint)
}

/// Writes a message with the `not_run` of calls that will never run.
fn write(mut step: Step<'_>, mut prepared: crate::journal::Prepared) -> Result<Exit, Failure> {
    let id = step.ticket.turn.clone();
    let mark = prepared.draft.session.head.clone();
    recovery::close_cut_off(&mut prepared.draft, &id)?;
    step.desk.journal.write(&mut prepared)?;
    step.desk.update_tree(&id);
    step.answer(super::desk::receipt(&mark, super::Repeated::No))
}

/// The ids of the calls, each of which must tell its call apart within the message; `None` where one is to be given.
fn call_ids(meaning: &Meaning, assign: bool) -> Result<Vec<Option<String>>, Failure> {
    let mut taken = HashSet::new();
    let good = |id: &String| !id.is_empty() && taken.insert(id.clone());
    let ids: Vec<Option<String>> =
        meaning.calls.iter().map(|call| call.id.clone()).map(keep_if(good)).collect();
    let wrong: Vec<String> = ids
        .iter()
        .enumerate()
        .filter(|(_, id)| id.is_none())
        .map(|(position, _)| position.to_string())
        .collect();
    if wrong.is_empty() || assign {
        return Ok(ids);
    }
    Err(Failure::usage(
        "bad_call_ids",
        format!("the calls at positions {} have an empty or doubled id", wrong.join(", ")),
    )
    .hint("give each call an id of its own, or let turnkeep do it with --assign-ids; nothing was written"))
}

fn keep_if(mut good: impl FnMut(&String) -> bool) -> impl FnMut(Option<String>) -> Option<String> {
    move |id| id.filter(|id| good(id))
}

/// Gives ids that no other message of the turn can have.
fn assigned(ids: Vec<Option<String>>, seq: u64) -> Vec<String> {
    let taken: HashSet<String> = ids.iter().flatten().cloned().collect();
    let fresh = |position: usize| {
        let mut fresh = format!("call_{seq}_{position}");
        while taken.contains(&fresh) {
            fresh.push('_');
        }
        fresh
    };
    ids.iter().enumerate().map(|(position, id)| id.clone().unwrap_or_else(|| fresh(position))).collect()
}

/// A result in a message needs a call that was claimed or answered.
fn check_results(turn: &Turn, meaning: &Meaning) -> Result<(), Failure> {
    for answer in &meaning.answers {
        let checked = match turn.call_told(&answer.call_id) {
            Some(index) => turn.check_told(index),
            None => Err(format!("no call has the id {:?}", answer.call_id)),
        };
        checked.map_err(|why| {
            Failure::conflict("unclaimed_result", why)
                .hint("`turnkeep step claim` comes before the effect, `turnkeep step result` behind it")
        })?;
    }
    Ok(())
}

/// A message repeats only the newest record of the turn, its own `not_run` aside.
fn repeated(step: &Step<'_>, turn: &Turn, raw: &Raw, meaning: &Meaning) -> Option<Mark> {
    let fact = turn.facts.iter().rev().find(|fact| match &fact.what {
        What::Answer(index) => !turn.calls.get(*index).is_some_and(|call| {
            matches!(call.answer.as_ref().map(|answer| answer.kind), Some(crate::turn::AnswerKind::NotRun(_)))
        }),
        _ => true,
    })?;
    let newest_is_it = step
        .desk
        .journal
        .history()
        .iter()
        .rev()
        .filter(|(_, record)| record.kind.turn() == Some(&turn.id))
        .find(
            |(_, record)| !matches!(&record.kind, Kind::NotRun(closed) if closed.r#ref.seq == fact.mark.seq),
        )
        .is_some_and(|(_, record)| record.seq == fact.mark.seq);
    let record = step.desk.journal.history().get(fact.mark.seq).filter(|_| newest_is_it)?;
    match &record.kind {
        Kind::Message(said)
            if said.message == *raw
                && said.role == meaning.role_word
                && said.format == meaning.format.word()
                && said.attempt == step.ticket.attempt =>
        {
            Some(fact.mark.clone())
        }
        _ => None,
    }
}

/// `turnkeep step entry`
pub(super) fn entry(context: &Context, tickets: &Tickets, args: &FileArgs) -> Result<Exit, Failure> {
    let text = content(context, args.file.as_ref())?.ok_or_else(|| no_content("entries, one a line,"))?;
    let entries = entries(&text)?;
    context.arm()?;
    let signal = || context.signal();
    let mut step = Step::open(context, tickets.any()?, &signal)?;
    let (turn, history) = step.any_turn()?;
    step.fence_attempt(&turn)?;
    let mut known = known_ids(&step, &turn, &history)?;
    if let Some(mark) = all_known(&entries, &known) {
        return step.repeat(&mark);
    }
    if turn.is_closed() {
        return Err(step.closed(&turn));
    }
    step.fence_owner(&turn)?;
    let mut prepared = step.desk.journal.prepare(step.desk.at.clone(), "")?;
    let mut last = None;
    for (line, entry) in &entries {
        if let Some(mark) = known.get(&id_of(entry)) {
            last = Some((mark.clone(), super::Repeated::Yes));
            continue;
        }
        let at_line =
            |failure: Failure| Failure { message: format!("line {line}: {}", failure.message), ..failure };
        let drafted = prepared.draft.session.turn(&turn.id).cloned().unwrap_or_else(|| turn.clone());
        if let Some(meaning) = recovery::meaning_of(entry) {
            check_results(&drafted, &meaning).map_err(at_line)?;
            if meaning.role == Role::Assistant {
                drafted.check_model_message(&meaning).map_err(|why| at_line(refused(&drafted, why)))?;
            }
        }
        let record = recovery::entry_record(&prepared.draft, &turn.id, entry, &context.policy);
        let mark = prepared.draft.push(record).map_err(|error| at_line(error.into()))?;
        recovery::close_cut_off(&mut prepared.draft, &turn.id)?;
        known.insert(id_of(entry), mark.clone());
        last = Some((mark, super::Repeated::No));
    }
    let Some((mark, repeated)) = last else { return Err(no_content("entries, one a line,")) };
    step.desk.journal.write(&mut prepared)?;
    step.desk.update_tree(&turn.id);
    step.answer(super::desk::receipt(&mark, repeated))
}

/// The entries with their line numbers; every line must be one.
fn entries(text: &str) -> Result<Vec<(usize, Raw)>, Failure> {
    let mut entries = Vec::new();
    for (index, line) in text.split('\n').enumerate() {
        if line.trim().is_empty() {
            continue;
        }
        let number = index + 1;
        let wrong = |why: String| {
            Failure::usage("bad_entry", format!("line {number}: {why}")).hint("nothing was written")
        };
        let entry = Raw::parse(line).map_err(|error| wrong(error.to_string()))?;
        let object = entry.view().object().ok_or_else(|| wrong("an entry is a JSON object".into()))?;
        if object.string("type").is_none() || object.string("id").is_none_or(|id| id.is_empty()) {
            return Err(wrong("an entry has a type and an id".into()));
        }
        if object.string("type").as_deref() == Some("message") && recovery::meaning_of(&entry).is_none() {
            return Err(wrong("the entry holds no message that can be read".into()));
        }
        entries.push((number, entry));
    }
    Ok(entries)
}

fn id_of(entry: &Raw) -> String {
    entry.view().object().and_then(|object| object.string("id")).unwrap_or_default()
}

/// The record of the last entry, if none of them is new.
fn all_known(entries: &[(usize, Raw)], known: &HashMap<String, Mark>) -> Option<Mark> {
    let marks: Option<Vec<&Mark>> = entries.iter().map(|(_, entry)| known.get(&id_of(entry))).collect();
    marks?.last().map(|mark| (*mark).clone())
}

/// Ids of entries that the journal has, and of those that a recovery wrote.
fn known_ids(step: &Step<'_>, turn: &Turn, history: &History) -> Result<HashMap<String, Mark>, Failure> {
    let said = turn.facts.iter().filter_map(|fact| match &fact.what {
        What::Said(said) => Some((said.entry_id.clone()?, fact.mark.clone())),
        What::Attempt | What::Steered(_) | What::Answer(_) => None,
    });
    let mut known: HashMap<String, Mark> = said.collect();
    let session = &step.ticket.session;
    let path = super::desk::tree_path(turn, None).filter(|_| branch::steps_write(turn));
    if let Some(path) = path {
        // Without it an entry that a recovery wrote would be taken for a new one.
        let tree = crate::treefile::read(step.desk.context.storage.as_ref(), &path)?;
        for id in crate::branch::ours(session, turn, history, &tree) {
            known.entry(id).or_insert_with(|| turn.newest.clone());
        }
    }
    Ok(known)
}

/// The model's message that stands last, as its body.
pub(super) fn last_model_body(turn: &Turn, history: &History) -> Option<(Mark, Raw)> {
    let (fact, _, _) = turn.last_model()?;
    let body = match &history.get(fact.mark.seq)?.kind {
        Kind::Message(said) => said.message.clone(),
        Kind::Entry(said) => Raw::parse(said.entry.view().object()?.get("message")?).ok()?,
        _ => return None,
    };
    Some((fact.mark.clone(), body))
}
