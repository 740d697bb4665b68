//! The branch: what it holds, in which order and form, what is found again, and what is damage.

use super::body::count;
use super::*;
use crate::message::Format;
use crate::record::{ApprovalDecision, CallRef, Decision, NotRunWhy, Outcome, ReconciledOutcome};
use crate::testkit::{File, Kit, asked_by, entry, model, other_entry, raw, tool_result, user};
use crate::turn::What;

fn kit() -> (Kit, File) {
    let file = File::new();
    (Kit::on(&file, TreeMode::Branch), file)
}

fn appending() -> (Kit, File) {
    let file = File::new();
    (Kit::on(&file, TreeMode::Append), file)
}

fn planned(kit: &Kit, file: &File, extent: Extent) -> Plan {
    super::plan("room", kit.turn(), &kit.draft.history, &file.tree(), extent).expect("no trouble")
}

/// Carries a plan of this extent out and shows the branch.
fn written(kit: &Kit, file: &mut File, extent: Extent) -> Vec<String> {
    let plan = planned(kit, file, extent);
    file.write(&plan);
    let again = planned(kit, file, extent);
    assert!(again.write.is_empty(), "what is there is not written again");
    assert_eq!((&again.leaf, again.entries, &again.from), (&plan.leaf, plan.entries, &plan.from));
    assert!(last_line_continues(&again, &file.tree()));
    file.branch_behind("a2")
}

fn recover(kit: &mut Kit, file: &mut File, decisions: &[(CallRef, Decision)]) -> Vec<String> {
    kit.push(kit.attempt(kit.number() + 1));
    let plan = planned(kit, file, Extent::Recover);
    file.write(&plan);
    let branch = crate::record::Branch {
        path: "/home/user/chat.jsonl".to_owned(),
        from: plan.from.clone(),
        leaf: plan.leaf.clone().expect("a leaf"),
        entries: plan.entries,
    };
    kit.push(crate::record::Recovered { branch: Some(branch), ..kit.recovered(decisions) });
    file.branch_behind("a2")
}

fn id_of(kit: &Kit, seq: u64) -> String {
    let record = kit.draft.history.get(seq).expect("a record");
    tree::entry_id(kit.turn.as_str(), record.hash.as_str(), "entry")
}

fn member(line: &Raw, key: &str) -> Option<String> {
    line.view().object()?.string(key)
}

// Order and form.

#[test]
fn system_messages_come_first_then_the_input_then_the_rest_in_journal_order() {
    let (mut kit, mut file) = kit();
    kit.push(kit.entry(&other_entry("model_change", "c1", "a2", r#","provider":"p","modelId":"m""#)));
    kit.push(kit.message(r#"{"role":"system","content":"be brief"}"#));
    kit.say("one");
    kit.push(kit.message(r#"{"role":"system","content":"be briefer"}"#));
    kit.push(kit.message(&user("and then?")));
    kit.say("two");
    let shown = written(&kit, &mut file, Extent::Recover);
    let expected = [
        "system:be brief",
        "user:go",
        "model_change",
        "assistant:one",
        "system:be briefer",
        "user:and then?",
        "assistant:two",
        "custom",
    ];
    assert_eq!(shown, expected);
}

#[test]
fn the_input_stands_in_the_agents_own_form_where_there_is_one() {
    let (mut kit, file) = kit();
    let own = planned(&kit, &file, Extent::Recover);
    assert_eq!(member(&own.write[0], "id"), Some(id_of(&kit, 1)));
    let journaled = kit.push(kit.entry(&entry("u1", "a2", &user("go, said the user"))));
    let plan = planned(&kit, &file, Extent::Recover);
    assert_eq!(plan.write.len(), 2, "once, and the marker");
    assert_eq!(member(&plan.write[0], "id"), Some(id_of(&kit, journaled.seq)));
    assert_eq!(member(&plan.write[0], "parentId").as_deref(), Some("a2"));
    assert!(plan.write[0].get().contains("go, said the user"));
}

#[test]
fn a_form_that_was_written_before_the_agents_own_was_known_stays() {
    let (mut kit, mut file) = kit();
    let call = kit.ask_one("never");
    kit.claim(call);
    kit.answer(call, "42");
    recover(&mut kit, &mut file, &[]);
    let before = file.0.clone();
    kit.push(kit.entry(&entry("r1", "a2", &tool_result("c", "42"))));
    assert!(planned(&kit, &file, Extent::Recover).write.is_empty());
    assert_eq!(file.0, before);
}

#[test]
fn results_stand_directly_behind_their_message_in_the_order_of_its_calls() {
    let (mut kit, mut file) = kit();
    let calls = kit.ask(&["a:never", "b:never", "c:ask", "d:never", "e:never"]);
    for call in [calls[3], calls[0], calls[1], calls[4]] {
        kit.claim(call);
    }
    kit.answer(calls[3], "D");
    kit.push(kit.message(&user("waiting?")));
    kit.push(kit.interrupted(calls[1]));
    kit.answer(calls[0], "A");
    kit.push(kit.approval(calls[2], ApprovalDecision::Denied));
    kit.push(kit.not_run(calls[2], NotRunWhy::Denied));
    kit.push(kit.reconciled(calls[4], ReconciledOutcome::Unknown));
    let shown = written(&kit, &mut file, Extent::Recover);
    let expected = [
        "user:go",
        "assistant:working",
        "toolResult(a):A",
        "toolResult(b):unknown",
        "toolResult(c):not run",
        "toolResult(d):D",
    ];
    assert_eq!(shown[..6], expected);
    assert!(shown[6].starts_with("toolResult(e):The outcome"), "{}", shown[6]);
    assert_eq!(shown[7..], ["user:waiting?", "custom"]);
    let tree = file.tree();
    let errors: Vec<bool> = (0..tree.entries.len())
        .filter_map(|index| tree.message(index))
        .filter(|message| message.contains("toolResult"))
        .map(|message| message.contains(r#""isError":true"#))
        .collect();
    assert_eq!(errors, [false, true, true, false, true], "interrupted, not run and unknown are errors");
}

#[test]
fn no_message_but_results_follows_while_a_call_is_unanswered() {
    let (mut kit, mut file) = kit();
    let calls = kit.ask(&["a:never", "b:never"]);
    kit.claim(calls[1]);
    kit.push(kit.message(&user("hello?")));
    kit.push(kit.steered("also", None));
    kit.answer(calls[1], "B");
    let shown = recover(&mut kit, &mut file, &[(calls[0], Decision::Run)]);
    assert_eq!(shown, ["user:go", "assistant:working", "toolResult(b):B", "custom"]);
    kit.claim(calls[0]);
    kit.answer(calls[0], "A");
    let shown = written(&kit, &mut file, Extent::Late);
    assert_eq!(
        shown[4..],
        ["toolResult(a):A", "user:hello?", "user:also"],
        "what waited follows the last answer"
    );
}

#[test]
fn failed_messages_are_left_out_with_their_results_and_cut_off_ones_are_kept() {
    let (mut kit, mut file) = kit();
    for stop in ["length", "error", "aborted"] {
        let mark = kit.push(kit.message(&model(stop, stop, &[&format!("{stop}:safe")])));
        kit.push(kit.not_run(CallRef { seq: mark.seq, position: 0 }, NotRunWhy::CutOff));
    }
    let shown = written(&kit, &mut file, Extent::Recover);
    assert_eq!(shown, ["user:go", "assistant:length", "toolResult(length):not run", "custom"]);
}

#[test]
fn calls_declared_without_a_message_and_headers_are_on_no_branch() {
    let (mut kit, mut file) = kit();
    kit.push(kit.entry(r#"{"type":"session","version":3,"id":"s","timestamp":"t","cwd":"/"}"#));
    let intent = kit.push(kit.intent("i", "never", None));
    let call = CallRef { seq: intent.seq, position: 0 };
    kit.claim(call);
    kit.answer(call, "x");
    assert_eq!(written(&kit, &mut file, Extent::Recover), ["user:go", "custom"]);
}

#[test]
fn a_message_of_another_format_stands_as_pis() {
    let (mut kit, mut file) = kit();
    let asking = kit.push(kit.message_of(
        Format::Anthropic,
        r#"{"role":"assistant","content":[{"type":"text","text":"let me"},{"type":"tool_use","id":"a","name":"never","input":{"x":1}},{"type":"tool_use","id":"b","name":"never","input":{}}],"stop_reason":"tool_use"}"#,
    ));
    for position in [0, 1] {
        kit.claim(CallRef { seq: asking.seq, position });
    }
    kit.push(kit.message_of(
        Format::Anthropic,
        r#"{"role":"user","content":[{"type":"tool_result","tool_use_id":"b","content":"B"},{"type":"tool_result","tool_use_id":"a","content":"A","is_error":true},{"type":"text","text":"and hurry"}]}"#,
    ));
    let shown = written(&kit, &mut file, Extent::Recover);
    let expected =
        ["user:go", "assistant:let me", "toolResult(a):A", "toolResult(b):B", "user:and hurry", "custom"];
    assert_eq!(shown, expected, "each result an entry of its own, and the words beside them");
    let tree = file.tree();
    let ids: HashSet<_> = tree.entries.iter().map(|entry| entry.id.clone()).collect();
    assert_eq!(ids.len(), tree.entries.len());
    assert_eq!(
        tree.find(&id_of(&kit, asking.seq + 3)),
        Some(5),
        "the first of the message has its record's id"
    );
    assert!(tree.message(3).expect("a message").contains(r#""stopReason":"toolUse""#));
}

#[test]
fn the_output_of_a_run_is_what_the_model_sees() {
    let (kit, _) = kit();
    let outcome = |exit, signal: Option<&str>, stdout: &str| {
        let result = Outcome {
            content: None,
            exit,
            signal: signal.map(str::to_owned),
            stdout: Some(stdout.to_owned()),
            stderr: Some("e".to_owned()),
            ..kit.result(CallRef { seq: 3, position: 0 }, "")
        };
        content_of(&result).view().string().expect("text")
    };
    assert_eq!(outcome(Some(0), None, "out\n"), "out\ne");
    assert_eq!(outcome(Some(3), None, "out"), "oute\n[exit status 3]");
    assert_eq!(outcome(None, Some("SIGKILL"), ""), "e\n[ended by SIGKILL]");
}

// Ids inside entries.

#[test]
fn ids_inside_copied_entries_are_mapped_and_what_points_at_nothing_is_left_out() {
    let (mut kit, file) = kit();
    let mut failed = CallRef { seq: 0, position: 0 };
    for line in [
        entry("u1", "a2", &user("go")),
        entry("m1", "u1", &model("one", "stop", &[])),
        entry("m2", "m1", &model("broken", "error", &["f:safe"])),
        entry("r2", "m2", &tool_result("f", "no")),
        other_entry("compaction", "k1", "r2", r#","summary":"s","firstKeptEntryId":"m1""#),
        other_entry("label", "l1", "k1", r#","targetId":"m2","label":"x""#),
        other_entry("label", "l2", "l1", r#","targetId":"r2","label":"x""#),
        other_entry("label", "l3", "l2", r#","targetId":"l1","label":"of a label""#),
        other_entry("branch_summary", "b1", "l3", r#","fromId":"a2","summary":"s""#),
        other_entry("context_edit", "x1", "b1", r#","targetId":"k1""#),
    ] {
        let mark = kit.push(kit.entry(&line));
        if line.contains("broken") {
            failed = CallRef { seq: mark.seq, position: 0 };
            kit.push(kit.not_run(failed, NotRunWhy::CutOff));
        }
    }
    assert!(kit.at_ref(failed).is_some());
    let plan = planned(&kit, &file, Extent::Recover);
    let kinds: Vec<String> = plan.write.iter().filter_map(|line| member(line, "type")).collect();
    assert_eq!(kinds, ["message", "message", "compaction", "branch_summary", "context_edit", "custom"]);
    let of = |kind: &str, key: &str| {
        let line = plan.write.iter().find(|line| member(line, "type").as_deref() == Some(kind));
        member(line.expect("an entry"), key)
    };
    let said: Vec<u64> = kit
        .turn()
        .facts
        .iter()
        .filter(|fact| matches!(&fact.what, What::Said(said) if said.entry_id.is_some()))
        .map(|fact| fact.mark.seq)
        .collect();
    assert_eq!(of("compaction", "firstKeptEntryId"), Some(id_of(&kit, said[1])));
    assert_eq!(of("branch_summary", "fromId").as_deref(), Some("a2"), "an entry from before the turn");
    assert_eq!(of("context_edit", "targetId"), of("compaction", "id"));
}

// What is there.

#[test]
fn every_entry_hangs_on_the_one_before_and_the_first_on_the_admission_leaf() {
    let (mut kit, mut file) = kit();
    kit.say("one");
    let plan = planned(&kit, &file, Extent::Recover);
    let ids: Vec<_> = plan.write.iter().map(|line| member(line, "id").expect("an id")).collect();
    let parents: Vec<_> = plan.write.iter().map(|line| member(line, "parentId").expect("a parent")).collect();
    assert_eq!(parents, ["a2", &ids[0], &ids[1]]);
    assert_eq!((plan.leaf.as_ref(), plan.entries), (ids.last(), 3));
    let head = kit.draft.history.get(3).expect("a record").hash.clone();
    assert_eq!(ids[2], tree::entry_id("t1", head.as_str(), &ids[1]));
    assert_eq!(tree::marker(plan.write[2].get()).expect("a marker").head, format!("3:{head}"));
    // Another branch that came meanwhile moves nothing.
    file.add(&entry("z", "a1", &model("a stranger", "stop", &[])));
    assert_eq!(planned(&kit, &file, Extent::Recover).write[0], plan.write[0]);
    assert_eq!(planned(&kit, &file, Extent::Recover).write[0].get().matches("\"a2\"").count(), 1);
}

#[test]
fn a_torn_branch_is_completed_from_where_it_ends() {
    let (mut kit, file) = kit();
    kit.say("one");
    kit.push(kit.message(&user("more")));
    kit.say("two");
    let plan = planned(&kit, &file, Extent::Recover);
    for there in 0..=plan.write.len() {
        let mut torn = file.clone();
        plan.write.iter().take(there).for_each(|line| torn.add(line.get()));
        let rest = planned(&kit, &torn, Extent::Recover);
        assert_eq!(rest.write, plan.write[there..]);
        assert_eq!((&rest.leaf, rest.entries), (&plan.leaf, plan.entries));
    }
}

#[test]
fn the_marker_is_written_once_and_behind_what_is_new() {
    let (mut kit, mut file) = kit();
    kit.say("one");
    recover(&mut kit, &mut file, &[]);
    let before = file.0.clone();
    let shown = recover(&mut kit, &mut file, &[]);
    assert_eq!(file.0, before, "nothing new: the marker stays the leaf");
    assert_eq!(shown, ["user:go", "assistant:one", "custom"]);
    kit.push(kit.message(&user("more")));
    let shown = recover(&mut kit, &mut file, &[]);
    assert_eq!(shown, ["user:go", "assistant:one", "custom", "user:more", "custom"]);
    // A stranger wrote the last line: our branch is made the last one again, by a marker alone.
    file.add(&entry("z", "a1", &model("a stranger", "stop", &[])));
    let plan = planned(&kit, &file, Extent::Recover);
    assert_eq!(plan.write.len(), 1);
    assert_eq!(member(&plan.write[0], "type").as_deref(), Some("custom"));
    file.write(&plan);
    let tree = file.tree();
    let ids: HashSet<_> = tree.entries.iter().map(|entry| entry.id.clone()).collect();
    assert_eq!(ids.len(), tree.entries.len(), "its id is new");
}

#[test]
fn a_line_that_is_there_keeps_its_place() {
    let (mut kit, mut file) = kit();
    kit.say("one");
    let plan = planned(&kit, &file, Extent::Recover);
    let moved = plan.write[0].get().replace("\"a2\"", "\"a1\"");
    assert_ne!(moved, plan.write[0].get());
    file.add(&moved);
    let tree = file.tree();
    let trouble = super::plan("room", kit.turn(), &kit.draft.history, &tree, Extent::Recover);
    assert!(
        matches!(trouble, Err(Trouble::Place { line: 4, .. })),
        "elsewhere it is in no context: {trouble:?}"
    );
    // Where it stands in the file, and when it was written, is of no account.
    let mut late = File::new();
    late.add(&plan.write[1].get().replace("T12:", "T13:"));
    late.add(plan.write[0].get());
    let rest = planned(&kit, &late, Extent::Recover);
    assert_eq!(rest.write, plan.write[2..]);
}

#[test]
fn an_id_of_ours_with_other_content_is_damage() {
    let (mut kit, mut file) = kit();
    kit.say("one");
    let plan = planned(&kit, &file, Extent::Recover);
    let changed = plan.write[1].get().replace("one", "won");
    file.add(plan.write[0].get());
    file.add(&changed);
    let trouble = super::plan("room", kit.turn(), &kit.draft.history, &file.tree(), Extent::Recover);
    assert_eq!(trouble, Err(Trouble::Content { line: 5, id: id_of(&kit, 3) }));
}

#[test]
fn a_marker_on_a_head_that_the_journal_lacks_is_damage() {
    let (mut kit, file) = kit();
    let mut behind = kit.clone();
    kit.say("one");
    let plan = planned(&kit, &file, Extent::Recover);
    let mut ahead = file.clone();
    ahead.write(&plan);
    let trouble =
        |kit: &Kit| super::plan("room", kit.turn(), &kit.draft.history, &ahead.tree(), Extent::Recover);
    assert!(matches!(trouble(&behind), Err(Trouble::Marker { line: 6, .. })), "a journal that lost its tail");
    behind.say("another one");
    assert!(matches!(trouble(&behind), Err(Trouble::Marker { .. })), "a journal that went another way");
    assert!(trouble(&kit).is_ok());
    // Markers of other sessions and turns are not ours to judge.
    let stranger = plan.write.last().expect("a marker").get().replace("\"room\"", "\"attic\"");
    let mut other = File::new();
    other.add(&stranger);
    assert!(
        super::plan("room", behind.turn(), &behind.draft.history, &other.tree(), Extent::Recover).is_ok()
    );
}

#[test]
fn what_hangs_on_the_branch_like_ours_tells_of_lost_records() {
    let (mut kit, mut file) = appending();
    kit.say("one");
    let behind = kit.clone();
    kit.say("two");
    file.write(&planned(&kit, &file, Extent::Steps));
    let lost = |kit: &Kit, file: &File| lost_by_journal("room", kit.turn(), &kit.draft.history, &file.tree());
    let (line, id) = (6, id_of(&kit, 4));
    assert_eq!(lost(&kit, &file), None);
    assert_eq!(lost(&behind, &file), Some(Trouble::Unexplained { line, id }), "a journal that lost its tail");
    // On the leaf of the admission already, before anything of this turn.
    let hung = |id: &str, parent: &str, message: &str| {
        let (kit, mut file) = appending();
        file.add(&entry(id, parent, message));
        (lost(&kit, &file), kit, file)
    };
    let (like_ours, said) = ("0123456789abcdef", model("x", "stop", &[]));
    let (found, mut kit, mut file) = hung(like_ours, "a2", &said);
    assert_eq!(found, Some(Trouble::Unexplained { line: 4, id: like_ours.to_owned() }));
    for (id, parent) in [(like_ours, "a1"), ("0123456789abcde", "a2"), ("0123456789ABCDEF", "a2")] {
        assert_eq!(hung(id, parent, &said).0, None, "{id} on {parent}");
    }
    assert_eq!(hung(like_ours, "a2", &user("of another turn")).0, None);
    // The agent's own, where its ids look like ours; behind lost records nobody knows; settled, nothing runs.
    let mut own = kit.clone();
    own.push(own.entry(&entry("fedcba9876543210", "a2", &said)));
    assert_eq!(lost(&own, &file), None);
    let mut settled = kit.clone();
    settled.push(settled.settled(crate::record::SettledStatus::Failed, None));
    assert_eq!(lost(&settled, &file), None);
    let mut salvaged = kit.clone();
    let (offset, bytes, sha256) = (kit.draft.end(), 9, crate::record::Hash::none());
    salvaged.push(crate::record::Repaired { offset, bytes, sha256, saved_as: None, why: "x".to_owned() });
    assert_eq!(lost(&salvaged, &file), None);
    // Whoever goes on behind it knew of it.
    kit.say("one");
    let plan = planned(&kit, &file, Extent::Recover);
    file.write(&plan);
    assert_eq!(lost(&kit, &file), None);
    // In a file that is the agent's, before a recovery, and what stood there at the admission.
    let (branching, mut file) = self::kit();
    file.add(&entry(like_ours, "a2", &said));
    assert_eq!(lost(&branching, &file), None);
    assert_eq!(lost(&Kit::on(&file, TreeMode::Append), &file), None);
}

#[test]
fn ours_are_the_entries_and_markers_on_the_file() {
    let (mut kit, mut file) = kit();
    assert!(ours("room", kit.turn(), &kit.draft.history, &file.tree()).is_empty());
    kit.say("one");
    recover(&mut kit, &mut file, &[]);
    file.add(&entry("z", "a1", &user("x")));
    let found = ours("room", kit.turn(), &kit.draft.history, &file.tree());
    let expected: HashSet<String> = file.ids_behind(3).into_iter().filter(|id| id != "z").collect();
    assert_eq!(found, expected);
}

// What is there and does not hang together.

/// The lines that a recovery wrote: question, message with two calls, two results, the marker.
fn branch() -> (Kit, Vec<Raw>) {
    let (mut kit, mut file) = kit();
    let calls = kit.ask(&["a:never", "b:never"]);
    for call in &calls {
        kit.claim(*call);
        kit.answer(*call, "done");
    }
    recover(&mut kit, &mut file, &[]);
    let lines = file.0.lines().skip(3).map(raw).collect();
    (kit, lines)
}

fn file_of(lines: &[Raw]) -> File {
    let mut file = File::new();
    file_add(&mut file, lines);
    file
}

fn file_add(file: &mut File, lines: &[Raw]) {
    for line in lines {
        file.add(line.get());
    }
}

#[test]
fn whatever_is_lost_in_the_middle_is_written_where_it_stood() {
    let (kit, lines) = branch();
    let sound = file_of(&lines).branch_behind("a2");
    assert_eq!(lines.len(), 5);
    // Every set of lost lines.
    for lost in 1_u32..(1 << lines.len()) {
        let stays = |position: &usize| lost & (1 << position) == 0;
        let left: Vec<Raw> = (0..lines.len()).filter(stays).map(|at| lines[at].clone()).collect();
        let mut file = file_of(&left);
        for extent in [Extent::Recover, Extent::Steps, Extent::Late] {
            let mut file = file.clone();
            let plan = planned(&kit, &file, extent);
            file.write(&plan);
            let shown = file.branch_behind("a2");
            let messages: Vec<&String> = shown.iter().filter(|shown| *shown != "custom").collect();
            assert_eq!(messages, sound[..4].iter().collect::<Vec<_>>(), "{lost:b} {extent:?}");
            assert_eq!(plan.entries, (plan.write.len() + left.len()) as u64);
            assert!(planned(&kit, &file, extent).write.is_empty(), "{lost:b} {extent:?}: nothing twice");
        }
        let plan = planned(&kit, &file, Extent::Recover);
        let behind = left.last().and_then(|last| lines.iter().position(|line| line == last));
        let in_the_middle = (0..behind.unwrap_or(0)).filter(|at| !stays(at)).count();
        assert_eq!(plan.lost.len(), in_the_middle, "{lost:b}");
        // Torn anywhere it is completed.
        for written in 0..plan.write.len() {
            let mut torn = file.clone();
            file_add(&mut torn, &plan.write[..written]);
            torn.write(&planned(&kit, &torn, Extent::Recover));
            assert_eq!(torn.branch_behind("a2")[..4], sound[..4], "{lost:b} torn at {written}");
        }
        file.write(&plan);
        let damage: Vec<_> = tree::check(&file.tree());
        assert!(damage.iter().all(|found| found.severity > tree::Severity::Damage), "{damage:?}");
    }
}

#[test]
fn a_lost_marker_is_written_under_its_id() {
    let (mut kit, mut file) = appending();
    kit.say("one");
    recover(&mut kit, &mut file, &[]);
    // A stranger, and a marker behind the marker.
    file.add(&entry("z", "a1", &model("a stranger", "stop", &[])));
    file.write(&planned(&kit, &file, Extent::Recover));
    kit.say("two");
    let sound = written(&kit, &mut file, Extent::Steps);
    assert_eq!(sound, ["user:go", "assistant:one", "custom", "custom", "assistant:two"]);
    let lines: Vec<Raw> = file.0.lines().skip(3).map(raw).collect();
    let without = |gone: &[usize]| {
        let left: Vec<Raw> =
            (0..lines.len()).filter(|at| !gone.contains(at)).map(|at| lines[at].clone()).collect();
        file_of(&left)
    };
    for gone in [&[2][..], &[4], &[2, 4], &[1, 2], &[1, 2, 4], &[0, 1, 2, 4]] {
        let mut file = without(gone);
        let shown = written(&kit, &mut file, Extent::Steps);
        assert_eq!(shown[..5], sound[..], "{gone:?}");
    }
}

#[test]
fn what_hangs_elsewhere_is_refused() {
    let (kit, lines) = branch();
    let ids: Vec<String> = lines.iter().map(|line| member(line, "id").expect("an id")).collect();
    let parents: Vec<&str> = std::iter::once("a2").chain(ids.iter().map(String::as_str)).collect();
    let others = ids.iter().map(String::as_str).chain(["a1", "a2", "nowhere"]);
    for (at, other) in (0..lines.len()).flat_map(|at| others.clone().map(move |other| (at, other))) {
        if parents[at] == other {
            continue;
        }
        let mut changed = lines.clone();
        let (from, to) = (format!(r#""parentId":"{}""#, parents[at]), format!(r#""parentId":"{other}""#));
        changed[at] = raw(&changed[at].get().replace(&from, &to));
        let tree = file_of(&changed).tree();
        for extent in [Extent::Recover, Extent::Steps, Extent::Late] {
            let trouble = super::plan("room", kit.turn(), &kit.draft.history, &tree, extent);
            assert!(trouble.is_err(), "{at} on {other}: {trouble:?}");
        }
    }
}

/// What may happen to a line of a file: to be lost, doubled, moved, or hung elsewhere.
fn damages(lines: &[Raw], at: usize, ids: &[String]) -> Vec<Vec<Raw>> {
    let moved = |to: usize| {
        let mut lines = lines.to_vec();
        let line = lines.remove(at);
        lines.insert(to, line);
        lines
    };
    let without = [&lines[..at], &lines[at + 1..]].concat();
    let mut all = vec![without, moved(0), moved(lines.len() - 1), [lines, &lines[at..=at]].concat()];
    let parent = member(&lines[at], "parentId").expect("a parent");
    for id in ids.iter().filter(|id| **id != parent) {
        let (from, to) = (format!(r#""parentId":"{parent}""#), format!(r#""parentId":"{id}""#));
        let mut changed = lines.to_vec();
        changed[at] = raw(&changed[at].get().replace(&from, &to));
        all.push(changed);
    }
    all
}

/// A turn that was recovered twice and steered, with late results.
fn long(mode: TreeMode) -> (Kit, Vec<Raw>) {
    let mut file = File::new();
    let mut kit = Kit::on(&file, mode);
    let extent = extent_of(mode);
    let calls = kit.ask(&["a:never", "b:never", "c:never"]);
    kit.claim(calls[0]);
    kit.answer(calls[0], "A");
    recover(&mut kit, &mut file, &[]);
    kit.claim(calls[2]);
    kit.claim(calls[1]);
    kit.answer(calls[2], "C");
    file.write(&planned(&kit, &file, extent));
    kit.answer(calls[1], "B");
    file.write(&planned(&kit, &file, extent));
    kit.push(kit.steered("also", None));
    let call = kit.ask_one("never");
    recover(&mut kit, &mut file, &[]);
    kit.claim(call);
    kit.answer(call, "D");
    file.write(&planned(&kit, &file, extent));
    kit.say("done");
    recover(&mut kit, &mut file, &[]);
    let lines = file.0.lines().skip(3).map(raw).collect();
    (kit, lines)
}

/// Whatever two damages do, the branch is refused or whole afterwards.
#[test]
fn two_damages_are_refused_or_mended() {
    let stride = if std::env::var_os("TURNKEEP_SLOW").is_some() { 1 } else { 97 };
    for mode in [TreeMode::Append, TreeMode::Branch] {
        let (kit, lines) = long(mode);
        let said = |file: &File| -> Vec<String> {
            let mut said = file.branch_behind("a2");
            said.retain(|shown| shown != "custom");
            // Late results follow in the order they come.
            let results = said.iter().position(|shown| shown.starts_with("toolResult"));
            if let Some(three) = results.and_then(|at| said.get_mut(at..at + 3)) {
                three.sort();
            }
            said
        };
        let sound = said(&file_of(&lines));
        assert_eq!(sound.len(), 9, "{sound:?}");
        let ids: Vec<String> = lines.iter().filter_map(|line| member(line, "id")).collect();
        let ids = [ids, vec!["a1".to_owned(), "a2".to_owned(), "nowhere".to_owned()]].concat();
        let once = (0..lines.len()).flat_map(|at| damages(&lines, at, &ids));
        let twice =
            once.flat_map(|once| (0..once.len()).flat_map(|at| damages(&once, at, &ids)).collect::<Vec<_>>());
        let (mut seen, mut mended) = (0, 0);
        for (number, damaged) in twice.enumerate() {
            if number % stride != 0 {
                continue;
            }
            seen += 1;
            let mut file = file_of(&damaged);
            let before = file.0.clone();
            let tree = file.tree();
            let Ok(plan) = super::plan("room", kit.turn(), &kit.draft.history, &tree, Extent::Recover) else {
                continue;
            };
            mended += 1;
            file.write(&plan);
            assert_eq!(said(&file), sound, "{mode:?} {number}\n{before}---\n{}", file.0);
            assert!(planned(&kit, &file, Extent::Recover).write.is_empty(), "{mode:?} {number}");
            let damage = tree::check(&file.tree()).into_iter().find(|f| f.severity == tree::Severity::Damage);
            assert_eq!(damage, None, "{mode:?} {number}\n{before}---\n{}", file.0);
        }
        assert!(seen > 300 && mended > seen / 50, "{mode:?}: {mended} of {seen}");
    }
}

#[test]
fn a_doubled_entry_of_ours_is_refused() {
    let (kit, lines) = branch();
    for line in &lines {
        let mut file = file_of(&lines);
        file.add(line.get());
        let trouble = super::plan("room", kit.turn(), &kit.draft.history, &file.tree(), Extent::Recover);
        assert!(matches!(trouble, Err(Trouble::Damage(_))), "{trouble:?}");
    }
}

#[test]
fn a_message_of_a_stranger_between_ours_is_refused() {
    let (kit, lines) = branch();
    let first = member(&lines[0], "id").expect("an id");
    let hung = |kind: &str| {
        let mut changed = lines.clone();
        changed[1] = raw(&changed[1].get().replace(&format!(r#""parentId":"{first}""#), r#""parentId":"z""#));
        changed.insert(1, raw(kind));
        let tree = file_of(&changed).tree();
        super::plan("room", kit.turn(), &kit.draft.history, &tree, Extent::Recover)
    };
    let trouble = hung(&entry("z", &first, &user("and this")));
    assert!(matches!(trouble, Err(Trouble::Place { line: 5, .. })), "{trouble:?}");
    assert_eq!(
        hung(&other_entry("label", "z", &first, r#","targetId":"a1""#)).map(|plan| plan.write),
        Ok(vec![])
    );
}

#[test]
fn a_result_of_the_agents_between_ours_is_not_written_a_second_time() {
    let (mut kit, mut file) = kit();
    let calls = kit.ask(&["a:never", "b:never"]);
    recover(&mut kit, &mut file, &[]);
    kit.claim(calls[0]);
    kit.claim(calls[1]);
    let leaf = file.ids_behind(3).pop().expect("an id");
    let own = entry("r1", &leaf, &tool_result("a", "A"));
    file.add(&own);
    kit.push(kit.entry(&own));
    kit.answer(calls[1], "B");
    written(&kit, &mut file, Extent::Late);
    let shown = recover(&mut kit, &mut file, &[]);
    assert_eq!(shown[2..], ["custom", "toolResult(a):A", "toolResult(b):B", "custom"]);
}

#[test]
fn a_recovery_onto_the_live_branch_that_was_killed_is_gone_on_with_there() {
    let (mut kit, mut file) = kit();
    for own in [entry("u1", "a2", &user("go")), entry("m1", "u1", &model("working", "toolUse", &["c:never"]))]
    {
        file.add(&own);
        kit.push(kit.entry(&own));
    }
    let asked = kit.turn().calls[0].r#ref;
    kit.claim(asked);
    kit.answer(asked, "done");
    let tip = live_tip(kit.turn(), &kit.draft.history, &file.tree());
    assert_eq!(tip.as_deref(), Some("m1"));
    kit.push(crate::record::Attempt { cause: crate::record::Cause::Recover, ..kit.attempt(2) });
    let onto = |file: &File| {
        let (turn, history) = (kit.turn(), &kit.draft.history);
        plan_onto("room", turn, history, &file.tree(), Extent::Recover, tip.as_deref()).expect("no trouble")
    };
    let plan = onto(&file);
    for written in 1..=plan.write.len() {
        let mut torn = file.clone();
        file_add(&mut torn, &plan.write[..written]);
        let rest = planned(&kit, &torn, Extent::Recover);
        assert_eq!(rest.write, plan.write[written..], "{written} lines written");
        assert_eq!(rest.from.as_deref(), Some("m1"));
    }
}

// Steered messages.

#[test]
fn a_steered_message_stands_behind_what_was_under_way() {
    let (mut kit, mut file) = kit();
    kit.push(kit.steered("also", None));
    assert_eq!(written(&kit, &mut file.clone(), Extent::Steps), ["user:go"], "its place is not known yet");
    kit.say("one");
    kit.say("two");
    let shown = written(&kit, &mut file, Extent::Steps);
    assert_eq!(shown, ["user:go", "assistant:one", "user:also", "assistant:two"]);
}

#[test]
fn a_steered_message_waits_for_the_results_of_the_message_that_was_under_way() {
    let (mut kit, mut file) = kit();
    kit.push(kit.steered("also", None));
    let calls = kit.ask(&["a:never", "b:never"]);
    kit.claim(calls[0]);
    kit.claim(calls[1]);
    kit.answer(calls[0], "A");
    kit.push(kit.steered("and", None));
    assert_eq!(
        written(&kit, &mut file.clone(), Extent::Steps),
        ["user:go", "assistant:working", "toolResult(a):A"]
    );
    kit.answer(calls[1], "B");
    let shown = written(&kit, &mut file, Extent::Steps);
    assert_eq!(shown[2..], ["toolResult(a):A", "toolResult(b):B", "user:also", "user:and"]);
}

#[test]
fn a_steered_message_that_the_agent_repeated_stands_once_in_its_form() {
    let (mut kit, mut file) = kit();
    kit.push(kit.steered("also", None));
    kit.say("one");
    let repeated = kit.push(kit.entry(&entry("u9", "a2", &user("also"))));
    kit.say("two");
    let shown = written(&kit, &mut file, Extent::Recover);
    assert_eq!(shown, ["user:go", "assistant:one", "user:also", "assistant:two", "custom"]);
    assert!(file.tree().find(&id_of(&kit, repeated.seq)).is_some());
}

// Append mode.

#[test]
fn each_step_is_written_as_it_happens() {
    let (mut kit, mut file) = appending();
    assert_eq!(written(&kit, &mut file, Extent::Steps), ["user:go"]);
    let calls = kit.ask(&["a:never", "b:never", "c:never"]);
    assert_eq!(written(&kit, &mut file, Extent::Steps).len(), 2);
    for call in [calls[1], calls[2], calls[0]] {
        kit.claim(call);
    }
    kit.answer(calls[1], "B");
    written(&kit, &mut file, Extent::Steps);
    // Two came while nobody wrote: in the order they came.
    kit.answer(calls[2], "C");
    kit.answer(calls[0], "A");
    let shown = written(&kit, &mut file, Extent::Steps);
    assert_eq!(shown[2..], ["toolResult(b):B", "toolResult(c):C", "toolResult(a):A"]);
    kit.say("done");
    assert_eq!(written(&kit, &mut file, Extent::Steps).last().map(String::as_str), Some("assistant:done"));
}

#[test]
fn after_a_recover_steps_go_on_behind_the_marker() {
    let (mut kit, mut file) = appending();
    kit.say("one");
    written(&kit, &mut file, Extent::Steps);
    recover(&mut kit, &mut file, &[]);
    kit.say("two");
    let shown = written(&kit, &mut file, Extent::Steps);
    assert_eq!(shown, ["user:go", "assistant:one", "custom", "assistant:two"]);
}

#[test]
fn a_stranger_that_does_not_continue_our_branch_is_noticed() {
    let (kit, mut file) = appending();
    written(&kit, &mut file, Extent::Steps);
    let leaf = file.ids_behind(3).pop().expect("an id");
    let behind = |file: &File| {
        crate::recovery::branch_behind(kit.session(), kit.turn(), &kit.draft.history, &file.tree())
    };
    let mut continued = file.clone();
    continued.add(&entry("z", &leaf, &model("on it", "stop", &[])));
    assert_eq!(behind(&continued), Ok(false));
    file.add(&entry("z", "a2", &model("beside it", "stop", &[])));
    assert_eq!(behind(&file), Ok(true));
}

// Branch mode between recoveries.

#[test]
fn without_a_recovery_the_file_is_the_agents() {
    let (mut kit, file) = kit();
    kit.say("one");
    assert!(planned(&kit, &file, Extent::Late).write.is_empty());
    kit.recover(&[]);
    assert!(planned(&kit, &file, Extent::Late).write.is_empty(), "a recover that made no branch");
}

#[test]
fn late_results_are_written_in_the_order_they_come_and_later_calls_are_the_agents() {
    let (mut kit, mut file) = kit();
    let calls = kit.ask(&["a:never", "b:never", "c:never"]);
    recover(&mut kit, &mut file, &[]);
    for call in &calls {
        kit.claim(*call);
    }
    kit.answer(calls[2], "C");
    kit.answer(calls[0], "A");
    let shown = written(&kit, &mut file, Extent::Late);
    assert_eq!(shown[2..], ["custom", "toolResult(c):C", "toolResult(a):A"]);
    kit.answer(calls[1], "B");
    assert_eq!(written(&kit, &mut file, Extent::Late)[5..], ["toolResult(b):B"]);
    let later = kit.ask_one("never");
    kit.claim(later);
    kit.answer(later, "L");
    kit.say("done");
    assert!(planned(&kit, &file, Extent::Late).write.is_empty());
    // The next recovery copies what the agent has written since onto our branch.
    let shown = recover(&mut kit, &mut file, &[]);
    assert_eq!(shown[6..], ["assistant:working", "toolResult(c):L", "assistant:done", "custom"]);
}

#[test]
fn a_late_result_that_the_agent_wrote_itself_is_not_written_again() {
    let (mut kit, mut file) = kit();
    let calls = kit.ask(&["a:never", "b:never"]);
    recover(&mut kit, &mut file, &[]);
    kit.claim(calls[0]);
    kit.claim(calls[1]);
    let leaf = file.ids_behind(3).pop().expect("an id");
    let own = entry("r1", &leaf, &tool_result("a", "A"));
    file.add(&own);
    kit.push(kit.entry(&own));
    kit.answer(calls[1], "B");
    let shown = written(&kit, &mut file, Extent::Late);
    assert_eq!(shown[2..], ["custom", "toolResult(a):A", "toolResult(b):B"], "one line, one branch");
}

#[test]
fn a_settled_turn_is_whole_in_whatever_form() {
    let (mut kit, file) = kit();
    let call = kit.ask_one("never");
    kit.claim(call);
    kit.answer(call, "A");
    let whole = |file: &File| lacks_nothing(kit.turn(), &kit.draft.history, &file.tree());
    assert!(!whole(&file));
    let mut own = file.clone();
    own.add(&entry("u1", "a2", &user("go")));
    own.add(&entry("m1", "u1", &model("working", "toolUse", &["c:never"])));
    assert!(!whole(&own));
    own.add(&entry("r1", "m1", &tool_result("c", "A, says the agent")));
    assert!(whole(&own));
    let mut ours = file.clone();
    ours.write(&planned(&kit, &file, Extent::Recover));
    assert!(whole(&ours));
    // The same words before admission are another turn's.
    let mut before = File::default();
    own.0.lines().for_each(|line| before.add(line));
    let late = Kit::on(&before, TreeMode::Branch);
    assert!(!lacks_nothing(late.turn(), &late.draft.history, &before.tree()));
}

#[test]
fn the_plans_of_a_recovery_and_of_its_branch_agree() {
    let (mut kit, file) = kit();
    let call = kit.ask_one("never");
    kit.claim(call);
    let plan = kit.plan_as(Some(&file), &asked_by(5000), 0).expect("a plan");
    let branch = plan.branch.clone().expect("a branch");
    kit.carry_out(&plan, None);
    let mut on_file = file.clone();
    on_file.write(&branch);
    assert!(planned(&kit, &on_file, Extent::Recover).write.is_empty());
    assert_eq!(raw(on_file.0.lines().last().expect("a line")), *branch.write.last().expect("a marker"));
}

// How much of it is composed.

#[test]
fn a_body_is_composed_to_be_written_or_compared_and_only_once() {
    let (mut kit, mut file) = appending();
    let calls = kit.ask(&["a:never", "b:never", "c:never"]);
    for call in [calls[0], calls[1]] {
        kit.claim(call);
        kit.answer(call, "some text");
    }
    let (_, composed) = count::during(|| planned(&kit, &file, Extent::Steps));
    assert_eq!(composed, 4, "the input, the message and two results are written");
    written(&kit, &mut file, Extent::Steps);
    let tree = file.tree();
    let (turn, history) = (kit.turn(), &kit.draft.history);
    let (lost, composed) = count::during(|| lost_by_journal("room", turn, history, &tree));
    assert_eq!((lost, composed), (None, 0), "whose an entry is, its id tells");
    let (_, composed) = count::during(|| ours("room", turn, history, &tree));
    assert_eq!(composed, 0);
    let (plan, composed) = count::during(|| planned(&kit, &file, Extent::Steps));
    assert!(plan.write.is_empty());
    assert_eq!(composed, 4, "each that stands is compared");
    kit.claim(calls[2]);
    kit.answer(calls[2], "the last");
    let (plan, composed) = count::during(|| planned(&kit, &file, Extent::Steps));
    assert_eq!((plan.write.len(), composed), (1, 5));
}
