//! Recoveries planned from every state that matters, killed after every byte that matters, and asked for again.

use super::*;
use crate::branch;
use crate::record::{
    Admitted, AdmittedTree, Approval, ApprovalDecision, CallRef, DeliveryState, Hash, Kind, Outcome,
    ReconciledOutcome, Record, Repaired, SettledStatus,
};
use crate::testkit::{
    File, Kit, asked_by, at, entry, model, other_entry, policy, process, tool_result, turn_id, user,
};
use crate::turn::Retain;
use crate::turn::next::{Asker, BranchState, Do};

fn kinds(plan: &Plan, behind: usize) -> Vec<&'static str> {
    plan.draft.history.iter().skip(behind).map(|(_, record)| record.kind.word()).collect()
}

fn planned(kit: &Kit, plan: &Plan) -> Vec<&'static str> {
    kinds(plan, kit.draft.history.len())
}

fn decisions(plan: &Plan) -> Vec<(String, Decision)> {
    plan.decisions.iter().map(|decided| (decided.r#ref.to_string(), decided.decision)).collect()
}

fn records_of<'p>(kit: &Kit, plan: &'p Plan) -> Vec<&'p Record> {
    plan.draft.history.iter().skip(kit.draft.history.len()).map(|(_, record)| record).collect()
}

fn recovered(plan: &Plan) -> &Recovered {
    match &plan.draft.history.iter().next_back().expect("a record").1.kind {
        Kind::Recovered(recovered) => recovered,
        other => panic!("{}", other.word()),
    }
}

/// Input, a model's message with these calls; the file holds nothing of it.
fn asked(calls: &[&str]) -> (Kit, File, Vec<CallRef>) {
    let file = File::new();
    let mut kit = Kit::on(&file, TreeMode::Branch);
    let refs = kit.ask(calls);
    (kit, file, refs)
}

// The worked example.

mod worked_example {
    use super::*;
    use crate::chain;
    use crate::turn::decide::{Now, Sighting, rule};

    const JOURNAL: &str = include_str!("../../fixtures/worked-example/journal.jsonl");
    const TREE: &str = include_str!("../../fixtures/worked-example/tree.jsonl");
    const POLICY: &str = r#"{"format":"turnkeep-policy/1","rules":[{"tool":"read","replay":"safe"}]}"#;

    fn kit_of(records: usize) -> Kit {
        let mut kit = Kit::empty();
        kit.policy = policy(POLICY);
        let mut offset = 0;
        let mut session: Option<Session> = None;
        let mut history = crate::draft::History::default();
        for line in JOURNAL.lines().take(records) {
            let record = chain::decode(line.as_bytes()).expect("a record");
            match &mut session {
                None => session = Some(Session::begin("room-42".to_owned(), &record, Retain::Unclosed)),
                Some(session) => {
                    session.apply(&record, offset).expect("legal");
                    history.push(offset, record);
                }
            }
            offset += line.len() as u64 + 1;
        }
        kit.draft = Draft::new(session.expect("a genesis"), history, at(0), offset, 1 << 20);
        kit
    }

    fn file(lines: usize) -> File {
        let mut file = File::default();
        TREE.lines().take(lines).for_each(|line| file.add(line));
        file
    }

    #[test]
    fn every_line_is_spelled_as_we_spell_it() {
        for line in JOURNAL.lines() {
            let record = chain::decode(line.as_bytes()).expect("a record");
            let (spelled, hash) =
                chain::encode(record.seq, &record.at, &record.kind, record.base, &record.prev);
            assert_eq!(String::from_utf8(spelled).expect("text"), line);
            assert_eq!(hash, record.hash);
        }
    }

    /// seq, next with a dead owner, next after that recover, decisions about the three calls; how much of the tree
    /// there is by then.
    type Row = (u64, Do, Do, [Option<Decision>; 3], usize);

    #[test]
    fn every_prefix_means_what_the_table_says() {
        use Decision::{Interrupt, Redeliver, Rerun, Run};
        let three = |a, b, c| [Some(a), Some(b), Some(c)];
        let none = [None, None, None];
        let done = three(Redeliver, Redeliver, Redeliver);
        let table: [Row; 16] = [
            (0, Do::Done, Do::Done, none, 4),
            (1, Do::Recover, Do::CallModel, none, 4),
            (2, Do::Recover, Do::CallModel, none, 4),
            (3, Do::Recover, Do::RunCalls, three(Run, Run, Run), 4),
            (4, Do::Recover, Do::RunCalls, three(Rerun, Run, Run), 4),
            (5, Do::Recover, Do::RunCalls, three(Rerun, Interrupt, Run), 4),
            (6, Do::Recover, Do::RunCalls, three(Redeliver, Interrupt, Run), 4),
            (7, Do::Recover, Do::RunCalls, three(Redeliver, Interrupt, Run), 4),
            (8, Do::Recover, Do::RunCalls, three(Redeliver, Interrupt, Run), 9),
            (9, Do::Recover, Do::RunCalls, three(Redeliver, Redeliver, Run), 9),
            (10, Do::Recover, Do::CallModel, three(Redeliver, Redeliver, Interrupt), 9),
            (11, Do::Recover, Do::CallModel, done, 10),
            (12, Do::Recover, Do::Settle, done, 10),
            (13, Do::Recover, Do::Deliver, done, 10),
            (14, Do::ReconcileDelivery, Do::ReconcileDelivery, done, 10),
            (15, Do::Done, Do::Done, none, 10),
        ];
        for (seq, next, then, expected, lines) in table {
            let mut kit = kit_of(usize::try_from(seq).expect("small") + 1);
            let mut file = file(lines);
            let behind = |kit: &Kit, file: &File| {
                let Some(turn) = kit.session().turn(&kit.turn) else { return BranchState::UpToDate };
                match branch_behind(kit.session(), turn, &kit.draft.history, &file.tree()) {
                    Ok(false) => BranchState::UpToDate,
                    Ok(true) => BranchState::Behind,
                    Err(trouble) => panic!("{trouble}"),
                }
            };
            let found = kit.next_at(0, behind(&kit, &file), Asker::Other);
            assert_eq!(found.r#do, next, "seq {seq}: {}", found.why);
            if kit.session().unclosed().next().is_none() {
                continue;
            }
            let plan = kit.plan(Some(&file)).unwrap_or_else(|refusal| panic!("seq {seq}: {refusal}"));
            let decided: Vec<Option<Decision>> =
                plan.decisions.iter().map(|decided| Some(decided.decision)).collect();
            assert_eq!(decided, expected.into_iter().flatten().map(Some).collect::<Vec<_>>(), "seq {seq}");
            let waits = plan.verdict == Verdict::Waiting;
            assert_eq!(waits, seq == 14);
            kit.carry_out(&plan, Some(&mut file));
            if !waits {
                kit.living.push(5000);
            }
            let found = kit.next_at(0, behind(&kit, &file), Asker::Owner);
            assert_eq!(found.r#do, then, "then, seq {seq}: {}", found.why);
        }
    }

    #[test]
    fn decisions_are_those_of_the_rule_alone() {
        let kit = kit_of(6);
        let names: Vec<Decision> = kit
            .turn()
            .calls
            .iter()
            .map(|call| {
                let now = Now { at: at(0), policy: &kit.policy, look: &|_| Sighting::Gone };
                rule(kit.turn(), call, &now).decision
            })
            .collect();
        assert_eq!(names, [Decision::Rerun, Decision::Interrupt, Decision::Run]);
    }

    #[test]
    fn the_branch_is_the_one_in_the_fixture() {
        // Behind record 8 all records that the branch stands for are there, so every id is determined.
        let kit = kit_of(9);
        let plan = kit.plan(Some(&file(4))).expect("a plan");
        let branch = plan.branch.as_ref().expect("a branch");
        let ours: Vec<&str> = TREE.lines().skip(4).take(5).collect();
        assert_eq!(branch.write.len(), ours.len());
        for (written, expected) in branch.write.iter().zip(&ours) {
            assert!(crate::tree::same_entry(written.get(), expected), "{}\n{expected}", written.get());
            let parent = |line: &str| crate::json::View::of(line).object().and_then(|o| o.string("parentId"));
            assert_eq!(parent(written.get()), parent(expected));
        }
        assert_eq!(branch.leaf.as_deref(), Some("8bba031908cddfb7"));
        assert_eq!((branch.from.as_deref(), branch.entries), (Some("aa000003"), 5));
        let written = recovered(&plan);
        assert_eq!(written.branch.as_ref().map(|branch| branch.entries), Some(5));
        let listed: Vec<_> = written.decisions.iter().map(|d| (d.r#ref.to_string(), d.decision)).collect();
        assert_eq!(listed, [("3.1".to_owned(), Decision::Interrupt), ("3.2".to_owned(), Decision::Run)]);
    }

    #[test]
    fn before_the_recover_the_ids_of_what_exists_are_determined() {
        let kit = kit_of(7);
        let plan = kit.plan(Some(&file(4))).expect("a plan");
        assert_eq!(planned(&kit, &plan), ["attempt", "interrupted", "recovered"]);
        let branch = plan.branch.as_ref().expect("a branch");
        let ids: Vec<String> = branch
            .write
            .iter()
            .map(|line| line.view().object().and_then(|entry| entry.string("id")).expect("an id"))
            .collect();
        assert_eq!(ids[..3], ["bcf38acc24306360", "1b1d6343239765ab", "7725b216e82c98d4"]);
        let records = records_of(&kit, &plan);
        let interrupted = crate::tree::entry_id("t1", records[1].hash.as_str(), "entry");
        assert_eq!(ids[3], interrupted);
        assert_eq!(ids[4], crate::tree::entry_id("t1", records[1].hash.as_str(), &interrupted));
        let marker = crate::tree::marker(branch.write[4].get()).expect("a marker");
        assert_eq!(marker.head, format!("8:{}", records[1].hash));
        let Kind::Interrupted(told) = &records[1].kind else { panic!("{}", records[1].kind.word()) };
        for needed in [
            "charge",
            "706aa0d30fc323d98c98e367a5e686abd49badfdc76c0a348998dc987452068f",
            "2026-11-29T15:26:05.123461Z",
            "attempt 1",
            "unknown",
            "still be running",
            "tk_eac1816a0a95aae870000523088f7e1e",
            "not advised",
        ] {
            assert!(told.explanation.contains(needed), "{needed}: {}", told.explanation);
        }
    }

    #[test]
    fn the_late_result_is_written_behind_the_marker() {
        let kit = kit_of(12);
        let file = file(9);
        let plan = branch::plan("room-42", kit.turn(), &kit.draft.history, &file.tree(), Extent::Late)
            .expect("a plan");
        let late = TREE.lines().nth(9).expect("the late result");
        assert_eq!(plan.write.len(), 1);
        assert!(crate::tree::same_entry(plan.write[0].get(), late), "{}", plan.write[0].get());
        assert_eq!(plan.leaf.as_deref(), Some("56c1775c49207fd0"));
    }

    #[test]
    fn nothing_is_behind_with_the_whole_tree() {
        for records in 12..=15 {
            let kit = kit_of(records);
            let behind = branch_behind(kit.session(), kit.turn(), &kit.draft.history, &file(10).tree());
            assert_eq!(behind, Ok(false), "{records}");
        }
    }
}

// Order and shape.

#[test]
fn records_come_in_the_order_of_the_contract() {
    let file = {
        let mut file = File::new();
        file.add(&entry("u1", "a2", &user("go")));
        file.add(&entry("m1", "u1", &model("x", "length", &["a:safe"])));
        file.add(&entry("m2", "m1", &model("y", "toolUse", &["b:never", "c:never"])));
        file
    };
    let mut kit = Kit::on(&File::new(), TreeMode::Branch);
    let plan = kit.plan(Some(&file)).expect("a plan");
    assert_eq!(planned(&kit, &plan), ["attempt", "entry", "entry", "not_run", "entry", "recovered"]);
    assert!(plan.before_branch > 0 && plan.before_branch < plan.draft.bytes.len());
    let behind_branch = &plan.draft.bytes[plan.before_branch..];
    assert!(behind_branch.starts_with(br#"{"seq":8,"#), "only recovered stands behind the branch");
    let answers = recovered(&plan).decisions.iter().map(|d| d.decision).collect::<Vec<_>>();
    assert_eq!(answers, [Decision::NotRun, Decision::Run, Decision::Run]);
    kit.carry_out(&plan, None);
    assert!(!kit.turn().current().expect("an attempt").unfinished());
}

#[test]
fn planning_twice_gives_equal_bytes() {
    let (mut kit, file, calls) = asked(&["a:never", "b:safe"]);
    kit.claim(calls[0]);
    let (one, two) = (kit.plan(Some(&file)).expect("a plan"), kit.plan(Some(&file)).expect("a plan"));
    assert_eq!(one.draft.bytes, two.draft.bytes);
    assert_eq!(one.branch, two.branch);
}

// What the dead agent wrote itself.

/// A file with what the agent wrote behind its admission, none of it journaled.
fn agents_file(lines: &[String]) -> File {
    let mut file = File::new();
    for line in lines {
        file.add(line);
    }
    file
}

#[test]
fn entries_that_continue_the_journaled_path_are_the_dead_agents_own() {
    let lines = [
        entry("u1", "a2", &user("go")),
        entry("m1", "u1", &model("x", "stop", &[])),
        other_entry("custom", "c1", "m1", r#","customType":"x","data":{}"#),
    ];
    for count in 0..=lines.len() {
        let mut kit = Kit::on(&File::new(), TreeMode::Branch);
        let mut file = agents_file(&lines[..count]);
        let plan = kit.plan(Some(&file)).expect("a plan");
        assert_eq!(planned(&kit, &plan).iter().filter(|kind| **kind == "entry").count(), count);
        kit.carry_out(&plan, Some(&mut file));
        let expected: &[&str] = match count {
            0 | 1 => &["user:go", "custom"],
            2 => &["user:go", "assistant:x", "custom"],
            _ => &["user:go", "assistant:x", "custom", "custom"],
        };
        assert_eq!(file.branch_behind("a2"), expected, "{count}");
        assert!(plan.notes.is_empty(), "{:?}", plan.notes);
    }
}

#[test]
fn a_result_that_its_tool_gave_unjournaled_is_refused_unless_forced() {
    let file = agents_file(&[
        entry("u1", "a2", &user("go")),
        entry("m1", "u1", &model("x", "toolUse", &["a:never"])),
        entry("r1", "m1", &tool_result("a", "it ran")),
    ]);
    let kit = Kit::on(&File::new(), TreeMode::Branch);
    let refusal = kit.plan(Some(&file)).expect_err("its tool ran");
    assert!(matches!(&refusal, Refusal::Unjournaled { line: 6, id } if id == "a"), "{refusal}");
    let forced = Request { force: Some("I looked".to_owned()), ..asked_by(5000) };
    let plan = kit.plan_as(Some(&file), &forced, 0).expect("a plan");
    assert_eq!(planned(&kit, &plan), ["attempt", "entry", "entry", "recovered"]);
    assert_eq!(decisions(&plan), [("5.0".to_owned(), Decision::Run)]);
}

#[test]
fn a_result_of_a_claimed_call_is_taken_for_its_answer() {
    let mut kit = Kit::on(&File::new(), TreeMode::Branch);
    let u1 = entry("u1", "a2", &user("go"));
    let m1 = entry("m1", "u1", &model("x", "toolUse", &["a:never", "b:never"]));
    kit.push(kit.entry(&u1));
    let asking = kit.push(kit.entry(&m1));
    let a = CallRef { seq: asking.seq, position: 0 };
    kit.claim(a);
    let mut file = agents_file(&[u1, m1, entry("r1", "m1", &tool_result("a", "42"))]);
    let plan = kit.plan(Some(&file)).expect("a plan");
    let listed: Vec<_> = recovered(&plan).decisions.iter().map(|d| d.decision).collect();
    assert_eq!(listed, [Decision::Redeliver, Decision::Run]);
    kit.carry_out(&plan, Some(&mut file));
    assert_eq!(file.branch_behind("a2"), ["user:go", "assistant:x", "toolResult(a):42", "custom"]);
}

/// A torn write may have left a message without the `not_run` that was written with it.
#[test]
fn what_the_agent_wrote_behind_a_cut_off_message_is_its_own_though_the_call_is_still_open() {
    let u1 = entry("u1", "a2", &user("go"));
    let m1 = entry("m1", "u1", &model("x", "length", &["a:safe"]));
    let mut kit = Kit::on(&File::new(), TreeMode::Branch);
    kit.push(kit.entry(&u1));
    kit.push(kit.entry(&m1));
    for next in [tool_result("a", "cut off"), model("y", "stop", &[])] {
        let file = agents_file(&[u1.clone(), m1.clone(), entry("n1", "m1", &next)]);
        let plan = kit.plan(Some(&file)).expect("a plan");
        assert_eq!(planned(&kit, &plan), ["attempt", "not_run", "entry", "recovered"]);
        assert!(plan.notes.is_empty(), "{:?}", plan.notes);
        assert_eq!(recovered_decisions_of(&plan)[0].1, Decision::NotRun);
        assert_eq!(recovered(&plan).decisions[0].why, "its message was cut off");
    }
}

#[test]
fn a_users_message_behind_the_models_first_means_that_the_conversation_moved_on() {
    let lines = [
        entry("u1", "a2", &user("go")),
        entry("m1", "u1", &model("x", "stop", &[])),
        entry("u2", "m1", &user("something else")),
    ];
    let file = agents_file(&lines);
    let mut kit = Kit::on(&File::new(), TreeMode::Branch);
    let refusal = kit.plan(Some(&file)).expect_err("moved on");
    assert!(matches!(refusal, Refusal::MovedOn { line: 6, .. }), "{refusal}");
    let forced = Request { force: Some("go on".to_owned()), ..asked_by(5000) };
    let plan = kit.plan_as(Some(&file), &forced, 0).expect("a plan");
    assert_eq!(planned(&kit, &plan), ["attempt", "entry", "entry", "recovered"]);
    assert!(plan.notes.iter().any(|note| note.contains("u2")), "{:?}", plan.notes);
    // One that joined the turn is the agent's.
    kit.push(kit.steered("something else", None));
    let plan = kit.plan(Some(&file)).expect("a plan");
    assert_eq!(planned(&kit, &plan), ["attempt", "entry", "entry", "entry", "recovered"]);
}

#[test]
fn a_foreign_sibling_does_not_hide_what_the_agent_wrote() {
    let mut kit = Kit::on(&File::new(), TreeMode::Branch);
    let (u1, m1) = (entry("u1", "a2", &user("go")), entry("m1", "u1", &model("x", "toolUse", &["a:never"])));
    kit.push(kit.entry(&u1));
    let asking = kit.push(kit.entry(&m1));
    kit.claim(CallRef { seq: asking.seq, position: 0 });
    let file = agents_file(&[
        u1,
        m1,
        entry("z1", "m1", &model("a stranger", "stop", &[])),
        entry("r1", "m1", &tool_result("a", "42")),
    ]);
    let plan = kit.plan(Some(&file)).expect("a plan");
    assert_eq!(planned(&kit, &plan), ["attempt", "entry", "recovered"]);
    assert!(plan.notes[0].contains("z1"), "{:?}", plan.notes);
    assert_eq!(plan.notes[1], "the session file has 2 leaves since admission: z1, r1");
}

#[test]
fn a_models_message_behind_an_unanswered_call_is_foreign() {
    let file = agents_file(&[
        entry("u1", "a2", &user("go")),
        entry("m1", "u1", &model("x", "toolUse", &["a:never"])),
        entry("m2", "m1", &model("y", "stop", &[])),
    ]);
    let kit = Kit::on(&File::new(), TreeMode::Branch);
    let plan = kit.plan(Some(&file)).expect("a plan");
    assert_eq!(planned(&kit, &plan), ["attempt", "entry", "entry", "recovered"]);
    assert!(plan.notes.iter().any(|note| note.contains("which Pi would open, is m2")), "{:?}", plan.notes);
}

#[test]
fn after_cancelled_calls_that_are_not_cut_off_are_foreign() {
    for (stop, entries) in [("toolUse", 1), ("aborted", 2)] {
        let file = agents_file(&[
            entry("u1", "a2", &user("go")),
            entry("m1", "u1", &model("x", stop, &["a:never"])),
        ]);
        let mut kit = Kit::on(&File::new(), TreeMode::Branch);
        kit.push(kit.cancelled());
        let plan = kit.plan(Some(&file)).expect("a plan");
        assert_eq!(planned(&kit, &plan).iter().filter(|kind| **kind == "entry").count(), entries, "{stop}");
    }
}

#[test]
fn a_new_session_file_is_adopted_from_its_root() {
    let mut kit = Kit::on(&File::default(), TreeMode::Branch);
    assert!(kit.turn().tree.as_ref().is_some_and(|tree| tree.leaf.is_none()));
    let mut file = File::default();
    file.add(
        r#"{"type":"session","version":3,"id":"pi-1","timestamp":"2026-11-29T15:00:00.000Z","cwd":"/"}"#,
    );
    file.add(r#"{"type":"model_change","id":"c1","parentId":null,"timestamp":"2026-11-29T15:00:00.000Z","provider":"p","modelId":"m"}"#);
    file.add(&entry("s1", "c1", r#"{"role":"system","content":"be brief","timestamp":1}"#));
    file.add(&entry("u1", "s1", &user("go")));
    let plan = kit.plan(Some(&file)).expect("a plan");
    assert_eq!(planned(&kit, &plan), ["attempt", "entry", "entry", "entry", "recovered"]);
    kit.carry_out(&plan, Some(&mut file));
    let tree = file.tree();
    let branch: Vec<_> = tree.path(tree.last_entry().expect("an entry")).entries;
    assert_eq!(branch.len(), 4, "a root of its own");
    assert_eq!(tree.role(branch[0]).as_deref(), Some("system"), "system messages come first");
}

#[test]
fn a_file_that_never_was_is_made_with_a_header() {
    let mut kit = Kit::on(&File::default(), TreeMode::Branch);
    let header =
        r#"{"type":"session","version":3,"id":"own","timestamp":"2026-11-29T15:00:00.000Z","cwd":"/w"}"#;
    // An entry of the agent's own is no header.
    kit.push(kit.entry(
        r#"{"type":"model_change","id":"c1","parentId":null,"timestamp":"2026-11-29T15:00:00.000Z"}"#,
    ));
    let without = kit.plan(Some(&File::default())).expect("a plan");
    assert!(without.header.as_ref().expect("a header").get().contains(r#""cwd":"/home/user""#));
    kit.push(kit.entry(header));
    let plan = kit.plan(Some(&File::default())).expect("a plan");
    assert_eq!(plan.header.as_ref().map(Raw::get), Some(header));
    let mut file = File::default();
    kit.carry_out(&plan, Some(&mut file));
    assert_eq!(file.branch_behind("-"), ["user:go", "model_change", "custom"]);
    assert!(crate::tree::check_path(&file.tree(), None).is_ok());
}

#[test]
fn another_session_file_in_its_place_is_refused() {
    let (kit, file, _) = asked(&[]);
    let other = File(file.0.replace(r#""id":"pi-1""#, r#""id":"pi-2""#));
    let refusal = kit.plan(Some(&other)).expect_err("another one");
    let named =
        matches!(&refusal, Refusal::OtherTree { expected, found } if expected == "pi-1" && found == "pi-2");
    assert!(named, "{refusal}");
}

#[test]
fn a_file_that_is_gone_is_not_made_anew() {
    let (kit, _, _) = asked(&[]);
    let refusal = kit.plan(Some(&File::default())).expect_err("it was there");
    assert!(matches!(refusal, Refusal::TreeMissing { .. }), "{refusal}");
}

#[test]
fn an_agent_that_journals_messages_and_keeps_its_file_is_not_adopted_twice() {
    let mut kit = Kit::on(&File::new(), TreeMode::Branch);
    let asking = kit.ask(&["a:never"]);
    kit.claim(asking[0]);
    let file = agents_file(&[
        entry("u1", "a2", &user("go")),
        entry("m1", "u1", &model("working", "toolUse", &["a:never"])),
        entry("r1", "m1", &tool_result("a", "42")),
    ]);
    let plan = kit.plan(Some(&file)).expect("nobody else wrote");
    assert_eq!(planned(&kit, &plan), ["attempt", "entry", "recovered"], "the result alone is new");
    assert!(plan.notes.is_empty(), "{:?}", plan.notes);
}

#[test]
fn what_stood_on_the_leaf_before_admission_is_not_the_dead_agents() {
    let file = File::new();
    let mut kit = Kit::empty();
    let admitted = kit.admitted_on(&file, TreeMode::Branch, "go");
    let on_a2 = admitted.tree.clone().expect("a tree");
    let leaf_at = file.tree().entry("a1").map(|a1| a1.offset);
    let on_a1 = AdmittedTree { leaf: Some("a1".to_owned()), leaf_at, ..on_a2 };
    kit.push(Admitted { tree: Some(on_a1), ..admitted });
    kit.push(kit.attempt(1));
    let plan = kit.plan(Some(&file)).expect("a plan");
    assert_eq!(planned(&kit, &plan), ["attempt", "recovered"]);
    assert!(plan.notes.is_empty(), "{:?}", plan.notes);
}

#[test]
fn of_many_foreign_entries_five_are_named_and_the_rest_counted() {
    let told = |count: usize| {
        let kit = Kit::on(&File::new(), TreeMode::Branch);
        let strangers: Vec<String> =
            (1..=count).map(|n| entry(&format!("z{n}"), "a1", &model("a stranger", "stop", &[]))).collect();
        kit.plan(Some(&agents_file(&strangers))).expect("a plan").notes[0].clone()
    };
    let five = "z1 (line 4), z2 (line 5), z3 (line 6), z4 (line 7), z5 (line 8)";
    for (count, expected) in [
        (1, "1 entry since admission that this turn does not have: z1 (line 4)".to_owned()),
        (5, format!("5 entries since admission that this turn does not have: {five}")),
        (7, format!("7 entries since admission that this turn does not have: {five} and 2 more")),
    ] {
        assert_eq!(told(count), format!("the session file has {expected}"));
    }
}

// Waiting, parking.

#[test]
fn a_turn_that_only_somebody_else_can_move_gets_no_record() {
    type Prepare = fn(&mut Kit, CallRef);
    let cases: [(&str, Prepare); 3] = [
        ("ask", |_, _| {}),
        ("hold", |kit, call| {
            kit.claim(call);
        }),
        ("never", |kit, call| {
            kit.push(kit.dispatched(call, None));
        }),
    ];
    for (tool, prepare) in cases {
        let mut kit = Kit::new();
        let call = kit.ask_one(tool);
        prepare(&mut kit, call);
        let plan = kit.plan(None).expect("a plan");
        assert_eq!(plan.verdict, Verdict::Waiting, "{tool}");
        assert!(plan.draft.bytes.is_empty() && plan.decisions.len() == 1);
        assert_ne!(kit.next(Asker::Other).r#do, Do::Recover, "{tool}");
    }
    let mut kit = Kit::new();
    let calls = kit.ask(&["a:ask", "b:never"]);
    assert_eq!(kit.plan(None).expect("a plan").verdict, Verdict::Ready, "one of them can be run");
    kit.claim(calls[1]);
    kit.answer(calls[1], "x");
    assert_eq!(kit.plan(None).expect("a plan").verdict, Verdict::Waiting);
}

#[test]
fn a_begun_delivery_and_a_parked_turn_wait_too() {
    let mut kit = Kit::with_key();
    kit.push(kit.settled(SettledStatus::Completed, Some("r")));
    assert_eq!(kit.plan(None).expect("a plan").verdict, Verdict::Ready);
    kit.push(kit.delivery(DeliveryState::Begun));
    assert_eq!(kit.plan(None).expect("a plan").verdict, Verdict::Waiting);
    let mut kit = Kit::new();
    kit.push(kit.parked());
    let plan = kit.plan(None).expect("a plan");
    assert_eq!(plan.verdict, Verdict::Waiting);
    assert!(plan.notes[0].contains("parked"), "{:?}", plan.notes);
    assert_eq!(kit.next(Asker::Other).r#do, Do::Unpark);
}

#[test]
fn waiting_counts_the_entries_that_would_be_journaled() {
    let mut kit = Kit::on(&File::new(), TreeMode::Branch);
    let (u1, m1) = (entry("u1", "a2", &user("go")), entry("m1", "u1", &model("x", "toolUse", &["a:hold"])));
    kit.push(kit.entry(&u1));
    let asking = kit.push(kit.entry(&m1));
    kit.claim(CallRef { seq: asking.seq, position: 0 });
    let mut file = agents_file(&[u1, m1]);
    assert_eq!(kit.plan(Some(&file)).expect("a plan").verdict, Verdict::Waiting);
    file.add(&entry("r1", "m1", &tool_result("a", "42")));
    assert_eq!(kit.plan(Some(&file)).expect("a plan").verdict, Verdict::Ready, "its result is there");
    // The other way about: what the agent asked for has to be approved first.
    let kit = Kit::on(&File::new(), TreeMode::Branch);
    let file = agents_file(&[
        entry("u1", "a2", &user("go")),
        entry("m1", "u1", &model("x", "length", &["z:never"])),
        entry("m2", "m1", &model("x", "toolUse", &["a:ask"])),
    ]);
    assert_eq!(kit.plan(Some(&file)).expect("a plan").verdict, Verdict::Waiting);
}

fn ahead(kit: &Kit, file: &File) -> bool {
    kit.now(0, |now| is_ahead(kit.session(), kit.turn(), &kit.draft.history, &file.tree(), now))
}

/// `next` counts what a recover would journal, as the recover does.
#[test]
fn next_is_recover_where_what_the_dead_agent_wrote_moves_the_turn() {
    let file = File::new();
    let mut kit = Kit::on(&file, TreeMode::Branch);
    kit.policy = policy(
        r#"{"format":"turnkeep-policy/1","rules":[{"tool":"pay","replay":"never","unknown":"hold"}]}"#,
    );
    let said = entry("m1", "a2", &model("x", "toolUse", &["a:pay"]));
    let call = CallRef { seq: kit.push(kit.entry(&said)).seq, position: 0 };
    kit.claim(call);
    let next = |kit: &Kit, file: &File| {
        let branch = if ahead(kit, file) { BranchState::Ahead } else { BranchState::UpToDate };
        kit.next_at(0, branch, Asker::Other).r#do
    };
    let told = entry("r1", "m1", &tool_result("a", "paid"));
    let (short, long) = (agents_file(std::slice::from_ref(&said)), agents_file(&[said, told]));
    assert_eq!((next(&kit, &short), next(&kit, &long)), (Do::Reconcile, Do::Recover));
    let verdict = |kit: &Kit, file: &File| kit.plan(Some(file)).expect("a plan").verdict;
    assert_eq!((verdict(&kit, &short), verdict(&kit, &long)), (Verdict::Waiting, Verdict::Ready));
    // Its agent lives, and writes on.
    kit.living.push(4001);
    assert_eq!(next(&kit, &long), Do::Await);
    // A person's word is asked for first.
    kit.living.clear();
    kit.push(kit.parked());
    assert_eq!(next(&kit, &long), Do::Unpark);
}

#[test]
fn a_file_is_not_ahead_where_its_recover_would_refuse_or_nothing_waits() {
    let mut kit = Kit::on(&File::new(), TreeMode::Branch);
    let said = entry("m1", "a2", &model("x", "toolUse", &["a:hold"]));
    let call = CallRef { seq: kit.push(kit.entry(&said)).seq, position: 0 };
    assert!(!ahead(&kit, &agents_file(std::slice::from_ref(&said))), "it can be run");
    kit.claim(call);
    let told = agents_file(&[said, entry("r1", "m1", &tool_result("a", "paid"))]);
    assert!(ahead(&kit, &told));
    let behind = |line: String| {
        let mut file = told.clone();
        file.add(&line);
        file
    };
    let moved_on = behind(entry("u2", "r1", &user("something else")));
    assert!(matches!(kit.plan(Some(&moved_on)), Err(Refusal::MovedOn { .. })));
    let unjournaled = behind(entry("r2", "r1", &tool_result("b", "nobody asked")));
    assert!(matches!(kit.plan(Some(&unjournaled)), Err(Refusal::Unjournaled { .. })));
    assert!(!ahead(&kit, &moved_on) && !ahead(&kit, &unjournaled));
}

#[test]
fn a_parked_turn_whose_agent_wrote_more_waits_and_is_not_refused() {
    let mut kit = Kit::on(&File::new(), TreeMode::Branch);
    kit.push(kit.parked());
    let file = agents_file(&[entry("u1", "a2", &user("go"))]);
    assert_eq!(kit.plan(Some(&file)).expect("a plan").verdict, Verdict::Waiting);
}

#[test]
fn five_fruitless_attempts_park_the_turn_and_a_person_begins_the_count_anew() {
    let mut kit = Kit::new();
    let call = kit.ask_one("safe");
    kit.recover(&[(call, Decision::Run)]);
    for _ in 0..4 {
        kit.claim(call);
        assert_eq!(kit.plan(None).expect("a plan").verdict, Verdict::Ready);
        kit.recover(&[(call, Decision::Rerun)]);
    }
    kit.claim(call);
    assert_eq!(kit.next(Asker::Other).r#do, Do::Recover, "that recover parks it");
    let plan = kit.plan(None).expect("a plan");
    assert!(matches!(plan.verdict, Verdict::Parked(_)));
    assert_eq!(planned(&kit, &plan), ["parked"]);
    assert_eq!(plan.before_branch, plan.draft.bytes.len());
    kit.carry_out(&plan, None);
    assert_eq!(kit.next(Asker::Other).r#do, Do::Unpark);
    let unpark = Request { unpark: Some(("ann".to_owned(), "again".to_owned())), ..asked_by(5000) };
    let plan = kit.plan_as(None, &unpark, 0).expect("a plan");
    assert_eq!(planned(&kit, &plan), ["unparked", "attempt", "recovered"]);
    kit.carry_out(&plan, None);
    assert_eq!(kit.turn().fruitless_attempts(), 1);
    let refusal = kit.plan_as(None, &unpark, 0).expect_err("it is not parked");
    assert!(matches!(refusal, Refusal::NotParked(_)));
}

#[test]
fn the_limit_is_the_policys_and_a_waiting_turn_is_not_parked() {
    let mut kit = Kit::new();
    let call = kit.ask_one("hold");
    kit.recover(&[(call, Decision::Run)]);
    kit.claim(call);
    let limit = crate::testkit::POLICY.replace(
        r#"{"format":"turnkeep-policy/1","#,
        r#"{"format":"turnkeep-policy/1","limits":{"attempts":1},"#,
    );
    kit.policy = policy(&limit);
    assert_eq!(kit.plan(None).expect("a plan").verdict, Verdict::Waiting);
    assert_eq!(kit.next(Asker::Other).r#do, Do::Reconcile);
    kit.push(kit.reconciled(call, ReconciledOutcome::NotApplied));
    kit.recover(&[(call, Decision::Run)]);
    assert!(matches!(kit.plan(None).expect("a plan").verdict, Verdict::Parked(_)));
}

// Owners.

#[test]
fn a_living_owner_is_not_replaced_without_force() {
    let mut kit = Kit::new();
    let call = kit.ask_one("never");
    kit.living.push(4001);
    let refusal = kit.plan(None).expect_err("it lives");
    assert!(matches!(refusal, Refusal::OwnerAlive { attempt: 1, .. }));
    let forced = Request { force: Some("stuck".to_owned()), ..asked_by(5000) };
    let plan = kit.plan_as(None, &forced, 0).expect("a plan");
    let records = records_of(&kit, &plan);
    let Kind::Attempt(attempt) = &records[0].kind else { panic!("{}", records[0].kind.word()) };
    assert_eq!((attempt.attempt, attempt.cause, attempt.why.as_deref()), (2, Cause::Takeover, Some("stuck")));
    assert_eq!(decisions(&plan), [(call.to_string(), Decision::Run)]);
}

#[test]
fn nobody_may_be_replaced_at_any_time() {
    let mut kit = Kit::empty();
    kit.push(kit.admitted("go"));
    kit.push(Attempt { owner: None, ..kit.attempt(1) });
    let plan = kit.plan(None).expect("a plan");
    let Kind::Attempt(attempt) = &records_of(&kit, &plan)[0].kind else { panic!() };
    assert_eq!((attempt.attempt, attempt.cause), (2, Cause::Recover));
}

#[test]
fn a_lapsed_lease_is_taken_over() {
    for (pid, lease_ms) in [(4001, Some(60_000)), (9001, None)] {
        let mut kit = Kit::empty();
        kit.living.push(4001);
        kit.push(kit.admitted("go"));
        kit.push(Attempt { owner: Some(process(pid)), lease_ms, ..kit.attempt(1) });
        assert!(kit.plan_as(None, &asked_by(5000), 59).is_err());
        let plan = kit.plan_as(None, &asked_by(5000), 120).expect("a plan");
        let Kind::Attempt(attempt) = &records_of(&kit, &plan)[0].kind else { panic!() };
        assert_eq!((attempt.attempt, attempt.cause), (2, Cause::Takeover), "{pid}");
    }
}

#[test]
fn an_unfinished_recover_keeps_its_number_only_where_its_process_is_gone() {
    let mut kit = Kit::new();
    kit.ask_one("never");
    kit.push(kit.attempt(2));
    let number = |kit: &Kit, request: &Request, seconds: i64| {
        let plan = kit.plan_as(None, request, seconds).expect("a plan");
        let Kind::Attempt(attempt) = &records_of(kit, &plan)[0].kind else { panic!() };
        (attempt.attempt, attempt.cause)
    };
    assert_eq!(number(&kit, &asked_by(5000), 0), (2, Cause::Recover));
    assert_eq!(number(&kit, &asked_by(4002), 0), (2, Cause::Recover), "the same process again");
    let mut living = kit.clone();
    living.living.push(4002);
    assert_eq!(number(&living, &asked_by(4002), 0), (2, Cause::Recover));
    let forced = Request { force: Some("stuck".to_owned()), ..asked_by(5000) };
    assert_eq!(number(&living, &forced, 0), (3, Cause::Takeover));
    let mut away = Kit::new();
    away.push(Attempt { owner: Some(process(9002)), ..away.attempt(2) });
    assert_eq!(
        number(&away, &asked_by(5000), 120),
        (3, Cause::Takeover),
        "nobody can see whether it is gone"
    );
}

#[test]
fn behind_lost_records_an_attempt_gets_a_number_that_nobody_can_hold() {
    for (attempts, lost, expected) in [(1, 1, 3), (1, 3, 5), (2, 3, 6)] {
        let mut kit = Kit::new();
        if attempts == 2 {
            kit.push(kit.attempt(2));
        }
        let offset = kit.draft.end();
        (0..lost).for_each(|_| kit.draft.session.pass_damage(offset));
        let (sha256, why) = (Hash::none(), "salvage".to_owned());
        kit.push(Repaired { offset, bytes: 9, sha256, saved_as: None, why });
        kit.push(kit.unparked());
        let plan = kit.plan(None).expect("a plan");
        let Kind::Attempt(attempt) = &records_of(&kit, &plan)[0].kind else { panic!() };
        assert_eq!(attempt.attempt, expected, "{attempts}, {lost}");
    }
}

#[test]
fn the_owner_that_asks_again_is_told_what_is_due_now_beside_what_it_knows() {
    let mut kit = Kit::new();
    let calls = kit.ask(&["a:never", "b:never", "c:ask", "d:never"]);
    kit.claim(calls[0]);
    kit.push(kit.run_by(calls[1], 77));
    kit.living.push(77);
    let first = kit.plan(None).expect("a plan");
    let found = |plan: &Plan| plan.decisions.iter().map(|decided| decided.decision).collect::<Vec<_>>();
    assert_eq!(found(&first), [Decision::Interrupt, Decision::Await, Decision::Ask, Decision::Run]);
    kit.carry_out(&first, None);
    // A runner dies, a person says no, and the owner begins with the last one.
    kit.living = vec![5000];
    kit.push(kit.approval(calls[2], ApprovalDecision::Denied));
    kit.claim(calls[3]);
    let again = kit.plan(None).expect("a plan");
    assert_eq!(planned(&kit, &again), ["interrupted", "not_run", "recovered"]);
    let now = [(calls[1], Decision::Interrupt), (calls[2], Decision::NotRun)];
    assert_eq!(recovered_decisions_of(&again), now);
    assert_eq!(found(&again), [Decision::Interrupt, Decision::Interrupt, Decision::NotRun, Decision::Await]);
}

#[test]
fn a_living_owner_is_at_what_its_own_call_has_nested_and_not_at_what_a_dead_runner_left() {
    let mut kit = Kit::new();
    let outer = kit.ask_one("never");
    kit.claim(outer);
    let nest = |kit: &mut Kit, id: &str| {
        let seq = kit.push(kit.intent(id, "never", Some(outer))).seq;
        CallRef { seq, position: 0 }
    };
    let (waiting, left) = (nest(&mut kit, "n1"), nest(&mut kit, "n2"));
    kit.living.push(4001);
    let plan = kit.plan_as(None, &asked_by(4001), 0).expect("a plan");
    assert!(planned(&kit, &plan).is_empty());
    kit.push(kit.run_by(left, 77));
    let plan = kit.plan_as(None, &asked_by(4001), 0).expect("a plan");
    assert_eq!(planned(&kit, &plan), ["interrupted", "recovered"]);
    let expected = [(outer, Decision::Await), (waiting, Decision::Await), (left, Decision::Interrupt)];
    assert_eq!(decisions(&plan), expected.map(|(call, decision)| (call.to_string(), decision)));
}

#[test]
fn the_same_owner_asking_again_gets_what_it_was_told() {
    let (mut kit, mut file, calls) = asked(&["a:never", "b:safe", "c:never"]);
    kit.claim(calls[0]);
    kit.push(kit.run_by(calls[1], 77));
    kit.living.push(77);
    let first = kit.plan(Some(&file)).expect("a plan");
    assert_eq!(
        first.decisions.iter().map(|d| d.decision).collect::<Vec<_>>(),
        [Decision::Interrupt, Decision::Await, Decision::Run]
    );
    kit.carry_out(&first, Some(&mut file));
    kit.living.push(5000);
    let again = kit.plan(Some(&file)).expect("a plan");
    assert!(again.draft.bytes.is_empty() && again.branch.is_none());
    assert_eq!(decisions(&again), decisions(&first), "the recorded decisions");
    // Its own claim without a runner is its own business; the runner has died meanwhile.
    kit.claim(calls[2]);
    kit.living.retain(|pid| *pid != 77);
    assert_eq!(kit.next(Asker::Owner).r#do, Do::Recover);
    let due = kit.plan(Some(&file)).expect("a plan");
    assert_eq!(planned(&kit, &due), ["recovered"]);
    let listed: Vec<_> = recovered(&due).decisions.iter().map(|d| (d.r#ref, d.decision)).collect();
    assert_eq!(listed, [(calls[1], Decision::Rerun)]);
    kit.carry_out(&due, Some(&mut file));
    assert_eq!(kit.number(), 2);
    let next = kit.next(Asker::Owner);
    assert_eq!((next.r#do, next.refs), (Do::RunCalls, vec![calls[1]]));
    assert!(kit.plan(Some(&file)).expect("a plan").draft.bytes.is_empty(), "decided, and not again");
    kit.claim(calls[1]);
    assert!(kit.plan(Some(&file)).expect("a plan").draft.bytes.is_empty(), "it is at it");
}

#[test]
fn another_process_is_another_owner() {
    let mut kit = Kit::new();
    kit.living.extend([4001, 5000]);
    let same = kit.plan_as(None, &asked_by(4001), 0).expect("a plan");
    assert!(same.draft.bytes.is_empty());
    assert!(kit.plan_as(None, &asked_by(5000), 0).is_err());
    assert!(kit.plan_as(None, &Request { owner: None, ..asked_by(0) }, 0).is_err());
}

// Decisions that are carried out.

#[test]
fn an_agent_that_cannot_run_calls_has_them_closed() {
    let mut kit = Kit::new();
    let calls = kit.ask(&["a:never", "b:safe", "c:ask", "d:never"]);
    kit.claim(calls[1]);
    kit.claim(calls[3]);
    let request = Request { calls: CloseCalls::Yes, ..asked_by(5000) };
    let plan = kit.plan_as(None, &request, 0).expect("a plan");
    assert_eq!(planned(&kit, &plan), ["attempt", "not_run", "interrupted", "interrupted", "recovered"]);
    let found: Vec<_> = plan.decisions.iter().map(|decided| decided.decision).collect();
    assert_eq!(found, [Decision::NotRun, Decision::Interrupt, Decision::Ask, Decision::Interrupt]);
    let Kind::NotRun(closed) = &records_of(&kit, &plan)[1].kind else { panic!() };
    assert_eq!(closed.why, NotRunWhy::Refused);
    // Asked again, nothing is due any more.
    kit.carry_out(&plan, None);
    kit.living.push(5000);
    assert_eq!(kit.plan_as(None, &request, 0).expect("a plan").verdict, Verdict::Waiting);
}

#[test]
fn why_a_call_is_not_run_is_said() {
    let mut kit = Kit::new();
    let cut = kit.push(kit.message(&model("x", "length", &["a:safe"])));
    let why = |kit: &Kit| {
        let plan = kit.plan(None).expect("a plan");
        let record = records_of(kit, &plan).into_iter().find_map(|record| match &record.kind {
            Kind::NotRun(not_run) => Some((not_run.why, not_run.explanation.clone())),
            _ => None,
        });
        record.expect("a not_run")
    };
    assert_eq!(why(&kit).0, NotRunWhy::CutOff);
    let plan = kit.plan(None).expect("a plan");
    assert_eq!(planned(&kit, &plan), ["attempt", "not_run", "recovered"]);
    assert_eq!(recovered(&plan).decisions[0].why, "its message was cut off", "and not before this");
    kit.push(kit.not_run(CallRef { seq: cut.seq, position: 0 }, NotRunWhy::CutOff));
    let call = kit.ask_one("ask");
    let denied = kit.approval(call, ApprovalDecision::Denied);
    let mut person = kit.clone();
    person.push(Approval { reason: Some("too dear".to_owned()), ..denied });
    let (reason, text) = why(&person);
    assert_eq!(reason, NotRunWhy::Denied);
    assert!(text.contains("ann") && text.contains("too dear"), "{text}");
    kit.push(kit.cancelled());
    assert_eq!(why(&kit).0, NotRunWhy::Cancelled);
}

#[test]
fn a_call_that_was_approved_and_is_not_run_was_refused_and_not_denied() {
    let mut kit = Kit::new();
    let outer = kit.ask_one("safe");
    let nested = CallRef { seq: kit.push(kit.intent("n", "never", Some(outer))).seq, position: 0 };
    for call in [outer, nested] {
        kit.push(kit.approval(call, ApprovalDecision::Granted));
    }
    let whys = |calls: CloseCalls| {
        let plan = kit.plan_as(None, &Request { calls, ..asked_by(5000) }, 0).expect("a plan");
        let whys = records_of(&kit, &plan).into_iter().filter_map(|record| match &record.kind {
            Kind::NotRun(not_run) => Some((not_run.r#ref, not_run.why)),
            _ => None,
        });
        whys.collect::<Vec<_>>()
    };
    assert_eq!(whys(CloseCalls::No), [(nested, NotRunWhy::Refused)]);
    assert_eq!(whys(CloseCalls::Yes), [(outer, NotRunWhy::Refused), (nested, NotRunWhy::Refused)]);
}

#[test]
fn an_open_nested_call_is_settled_and_its_parent_counts_as_never() {
    let mut kit = Kit::new();
    let outer = kit.ask_one("safe");
    kit.claim(outer);
    let nested: Vec<CallRef> = ["n1", "n2"]
        .map(|id| CallRef { seq: kit.push(kit.intent(id, "never", Some(outer))).seq, position: 0 })
        .to_vec();
    kit.claim(nested[0]);
    let plan = kit.plan(None).expect("a plan");
    let found: Vec<_> = plan.decisions.iter().map(|decided| decided.decision).collect();
    assert_eq!(found, [Decision::Interrupt, Decision::Interrupt, Decision::NotRun]);
}

#[test]
fn what_a_dead_runner_had_printed_is_told() {
    let mut kit = Kit::new();
    let call = kit.ask_one("never");
    kit.push(kit.run_by(call, 77));
    let draft = kit.draft.clone();
    let plan = kit.now(0, |now| {
        let now = Now { at: now.at.clone(), policy: now.policy, look: now.look };
        let around = Surroundings { now, tree: None, output_so_far: &|_| Some("half of it".to_owned()) };
        super::plan(draft.clone(), &kit.turn, &asked_by(5000), &around).expect("a plan")
    });
    let Kind::Interrupted(told) = &records_of(&kit, &plan)[1].kind else { panic!() };
    assert!(told.explanation.contains("half of it"), "{}", told.explanation);
    assert_eq!(told.output_so_far.as_ref().map(Raw::get), Some("\"half of it\""));
}

// The tree.

#[test]
fn damage_is_told_before_what_a_person_could_force() {
    let (mut kit, mut file, calls) = asked(&["a:never"]);
    kit.claim(calls[0]);
    let plan = kit.plan(Some(&file)).expect("a plan");
    kit.carry_out(&plan, Some(&mut file));
    let mut damaged = File(file.0.replace(
        "user\",\"content\":[{\"type\":\"text\",\"text\":\"go\"",
        "user\",\"content\":[{\"type\":\"text\",\"text\":\"stop\"",
    ));
    assert_ne!(damaged.0, file.0);
    damaged.add(&entry("z", "a2", &user("moved on")));
    file.add(&entry("z", "a2", &user("moved on")));
    assert!(matches!(kit.plan(Some(&file)), Err(Refusal::MovedOn { .. })));
    assert!(matches!(
        kit.plan(Some(&damaged)),
        Err(Refusal::Branch(branch::Trouble::Content { line: 4, .. }))
    ));
}

#[test]
fn the_tree_of_a_turn_behind_which_a_later_one_was_admitted_is_left_alone() {
    let file = File::new();
    let mut kit = Kit::empty();
    let admitted = kit.admitted_on(&file, TreeMode::Branch, "go");
    kit.push(Admitted { delivery: Some("k1".to_owned()), ..admitted });
    kit.push(kit.attempt(1));
    kit.push(kit.settled(SettledStatus::Completed, Some("r")));
    let lacking = kit.plan(Some(&file)).expect("a plan");
    assert!(lacking.branch.is_some(), "the file lacks the settled turn");
    kit.turn = turn_id("t2");
    kit.push(kit.admitted_on(&file, TreeMode::Branch, "more"));
    kit.turn = turn_id("t1");
    let mut moved = file.clone();
    moved.add(&entry("z", "a2", &user("more")));
    let plan = kit.plan(Some(&moved)).expect("neither checked");
    assert!(plan.branch.is_none() && planned(&kit, &plan) == ["attempt", "recovered"]);
    assert_eq!(branch_behind(kit.session(), kit.turn(), &kit.draft.history, &file.tree()), Ok(false));
}

#[test]
fn a_settled_turn_gets_a_branch_only_if_the_file_lacks_it() {
    let settled = |file: &File| {
        let mut kit = Kit::empty();
        let admitted = kit.admitted_on(&File::new(), TreeMode::Branch, "go");
        kit.push(Admitted { delivery: Some("k1".to_owned()), ..admitted });
        kit.push(kit.attempt(1));
        kit.say("done");
        kit.push(kit.settled(SettledStatus::Completed, Some("done")));
        let behind = branch_behind(kit.session(), kit.turn(), &kit.draft.history, &file.tree());
        (kit.plan(Some(file)).expect("a plan"), behind.expect("no trouble"), kit)
    };
    let whole = agents_file(&[
        entry("u1", "a2", &user("go")),
        entry("m1", "u1", &model("done", "stop", &[])),
        entry("u2", "m1", &user("the next thing")),
    ]);
    let (plan, behind, kit) = settled(&whole);
    assert!(plan.branch.is_none() && !behind, "and what was said since is of no account");
    let mut kit = kit;
    kit.carry_out(&plan, None);
    let late = branch::plan("room", kit.turn(), &kit.draft.history, &whole.tree(), Extent::Late);
    assert!(late.expect("a plan").write.is_empty(), "no branch was made, so none is gone on with");
    let (plan, behind, _) = settled(&agents_file(&[entry("u1", "a2", &user("go"))]));
    assert!(behind);
    assert_eq!(plan.branch.expect("a branch").write.len(), 3);
}

#[test]
fn a_waiting_turn_has_its_branch_brought_up_to_date() {
    let (mut kit, mut file, calls) = asked(&["a:hold", "b:never"]);
    kit.claim(calls[0]);
    let plan = kit.plan(Some(&file)).expect("a plan");
    kit.carry_out(&plan, Some(&mut file));
    kit.claim(calls[1]);
    kit.answer(calls[1], "late");
    let plan = kit.plan(Some(&file)).expect("a plan");
    assert_eq!(plan.verdict, Verdict::Waiting);
    assert!(plan.draft.bytes.is_empty());
    kit.carry_out(&plan, Some(&mut file));
    assert_eq!(file.branch_behind("a2"), ["user:go", "assistant:working", "custom", "toolResult(b):late"]);
    assert!(kit.plan(Some(&file)).expect("a plan").branch.expect("a branch").write.is_empty());
    // A stranger's line is the last one now: `next` is recover, and recover puts that right.
    file.add(&entry("z", "a2", &model("a stranger", "stop", &[])));
    assert_eq!(branch_behind(kit.session(), kit.turn(), &kit.draft.history, &file.tree()), Ok(true));
    let plan = kit.plan(Some(&file)).expect("a plan");
    kit.carry_out(&plan, Some(&mut file));
    assert_eq!(branch_behind(kit.session(), kit.turn(), &kit.draft.history, &file.tree()), Ok(false));
    assert_eq!(file.branch_behind("a2").last().map(String::as_str), Some("custom"));
}

#[test]
fn a_waiting_turn_without_a_branch_gets_none_and_an_appended_one_its_steps() {
    let waiting = |mode: TreeMode| {
        let mut kit = Kit::on(&File::new(), mode);
        let call = kit.ask_one("hold");
        kit.claim(call);
        kit
    };
    let stranger = entry("z", "a1", &model("a stranger", "stop", &[]));
    let plan = waiting(TreeMode::Branch).plan(Some(&agents_file(&[stranger]))).expect("a plan");
    assert!(plan.verdict == Verdict::Waiting && plan.branch.is_none());
    // Behind what an agent wrote itself only the branch of a recovery goes on.
    let echo = agents_file(&[entry("u1", "a2", &user("go"))]);
    for (file, onto) in [(File::new(), Onto::Admission), (echo.clone(), Onto::Admission), (echo, Onto::Live)]
    {
        let (mut kit, mut file) = (waiting(TreeMode::Append), file);
        let plan = kit.plan_as(Some(&file), &Request { onto, ..asked_by(5000) }, 0).expect("a plan");
        assert_eq!(plan.verdict, Verdict::Waiting);
        kit.carry_out(&plan, Some(&mut file));
        assert_eq!(file.branch_behind("a2"), ["user:go", "assistant:working"], "{onto:?}");
        assert_eq!(branch_behind(kit.session(), kit.turn(), &kit.draft.history, &file.tree()), Ok(false));
    }
}

#[test]
fn onto_live_only_what_is_missing_is_written_behind_the_agents_own_lines() {
    let (mut kit, _, calls) = asked(&["a:never"]);
    kit.claim(calls[0]);
    kit.answer(calls[0], "done");
    let file = agents_file(&[
        entry("u1", "a2", &user("go")),
        entry("m1", "u1", &model("working", "toolUse", &["a:never"])),
    ]);
    for (onto, from, written) in [(Onto::Live, "m1", 2), (Onto::Admission, "a2", 4)] {
        let (mut kit, mut file) = (kit.clone(), file.clone());
        let plan = kit.plan_as(Some(&file), &Request { onto, ..asked_by(5000) }, 0).expect("a plan");
        let branch = plan.branch.as_ref().expect("a branch");
        assert_eq!((branch.from.as_deref(), branch.write.len()), (Some(from), written));
        kit.carry_out(&plan, Some(&mut file));
        let whole = ["user:go", "assistant:working", "toolResult(a):done", "custom"];
        assert_eq!(file.branch_behind("a2"), whole, "{onto:?}");
    }
}

#[test]
fn the_owner_that_asks_again_has_its_file_brought_up_to_date() {
    let mut file = File::new();
    let mut kit = Kit::on(&file, TreeMode::Append);
    kit.say("on it");
    kit.living.push(4001);
    let plan = kit.plan_as(Some(&file), &asked_by(4001), 0).expect("a plan");
    assert_eq!(planned(&kit, &plan), ["recovered"]);
    kit.carry_out(&plan, Some(&mut file));
    assert_eq!(file.branch_behind("a2"), ["user:go", "assistant:on it", "custom"]);
    let plan = kit.plan_as(Some(&file), &asked_by(4001), 0).expect("a plan");
    assert!(plan.branch.is_none() && planned(&kit, &plan).is_empty());
}

/// A turn that is settled and not delivered: a recovery of it wrote a branch to the file, the last words came later.
fn settled_behind_a_branch(mode: TreeMode, last_words: bool) -> (Kit, File) {
    let mut file = File::new();
    let mut kit = Kit::empty();
    let admitted = kit.admitted_on(&file, mode, "go");
    kit.push(Admitted { delivery: Some("k1".to_owned()), ..admitted });
    kit.push(kit.attempt(1));
    kit.say("almost");
    let plan = kit.plan(Some(&file)).expect("a plan");
    kit.carry_out(&plan, Some(&mut file));
    if last_words {
        kit.say("done");
    }
    kit.push(kit.settled(SettledStatus::Completed, Some("done")));
    (kit, file)
}

fn behind(kit: &Kit, file: &File) -> bool {
    branch_behind(kit.session(), kit.turn(), &kit.draft.history, &file.tree()).expect("no trouble")
}

#[test]
fn a_settled_turn_gets_what_was_said_behind_its_branch() {
    let (mut kit, mut file) = settled_behind_a_branch(TreeMode::Branch, true);
    let plan = kit.plan_as(Some(&file), &asked_by(5001), 60).expect("a plan");
    kit.carry_out(&plan, Some(&mut file));
    let shown = file.branch_behind("a2");
    assert_eq!(shown, ["user:go", "assistant:almost", "custom", "assistant:done", "custom"]);
    let plan = kit.plan_as(Some(&file), &asked_by(5002), 60).expect("a plan");
    assert!(plan.branch.is_none() && !behind(&kit, &file));
}

#[test]
fn a_settled_turn_is_behind_where_its_file_lacks_it_or_ends_in_the_middle_of_it() {
    let (kit, _) = settled_behind_a_branch(TreeMode::Append, true);
    assert!(behind(&kit, &File::new()), "nothing of it is there");
    let said = ["almost", "done"].map(|text| model(text, "stop", &[]));
    let own = [entry("u1", "a2", &user("go")), entry("m1", "u1", &said[0]), entry("m2", "m1", &said[1])];
    assert!(!behind(&kit, &agents_file(&own)), "its agent wrote all of it");
    // Whole, but for its order: the leaf that is opened is not the end.
    let (mut kit, mut file) = settled_behind_a_branch(TreeMode::Branch, false);
    assert!(!behind(&kit, &file));
    let mut lines: Vec<&str> = file.0.lines().collect();
    let input = lines.remove(3);
    lines.push(input);
    file = File(lines.join("\n") + "\n");
    assert!(behind(&kit, &file));
    let plan = kit.plan_as(Some(&file), &asked_by(5001), 60).expect("a plan");
    kit.carry_out(&plan, Some(&mut file));
    assert!(!behind(&kit, &file));
    assert_eq!(file.branch_behind("a2"), ["user:go", "assistant:almost", "custom", "custom"]);
}

// Killed at any point.

/// A recover with everything in it: adopted entries, one cut off, calls of each kind.
fn eventful() -> (Kit, File) {
    let mut kit = Kit::on(&File::new(), TreeMode::Branch);
    let (u1, m1) = (
        entry("u1", "a2", &user("go")),
        entry("m1", "u1", &model("x", "toolUse", &["a:never", "b:safe", "c:never", "d:ask", "e:never"])),
    );
    kit.push(kit.entry(&u1));
    let asking = kit.push(kit.entry(&m1));
    let call = |position: u64| CallRef { seq: asking.seq, position };
    for position in [0, 1, 2] {
        kit.claim(call(position));
    }
    kit.answer(call(0), "stored");
    let file = agents_file(&[
        u1,
        m1,
        entry("r1", "m1", &tool_result("a", "stored")),
        other_entry("custom", "c1", "r1", r#","customType":"x","data":{}"#),
    ]);
    (kit, file)
}

/// The journal holds the first `records` of a plan, and as many of its lines are on the tree.
fn killed(kit: &Kit, file: &File, plan: &Plan, records: usize, lines: usize) -> (Kit, File) {
    let mut after = kit.clone();
    for record in records_of(kit, plan).into_iter().take(records) {
        after.draft.at = record.at.clone();
        after.push(record.kind.clone());
        assert_eq!(after.session().head.hash, record.hash);
    }
    let mut file = file.clone();
    let branch = plan.branch.as_ref().expect("a branch");
    branch.write.iter().take(lines).for_each(|line| file.add(line.get()));
    (after, file)
}

#[test]
fn a_recover_may_be_killed_anywhere_and_run_again() {
    let (kit, file) = eventful();
    let plan = kit.plan(Some(&file)).expect("a plan");
    let all = records_of(&kit, &plan).len();
    let lines = plan.branch.as_ref().expect("a branch").write.len();
    assert_eq!(planned(&kit, &plan), ["attempt", "entry", "entry", "interrupted", "recovered"]);
    let (_, whole) = killed(&kit, &file, &plan, all, lines);
    let shown = whole.branch_behind("a2");
    assert_eq!(shown[..3], ["user:go", "assistant:x", "toolResult(a):stored"]);
    assert!(shown[3].starts_with("toolResult(c):never (arguments"), "{}", shown[3]);
    assert_eq!(shown[4..], ["custom"]);
    for records in 0..=all {
        // The branch is written before `recovered`, and after everything else.
        let on_tree: Vec<usize> = match all - records {
            0 => vec![lines],
            1 => (0..=lines).collect(),
            _ => vec![0],
        };
        for count in on_tree {
            let (mut after, mut on_file) = killed(&kit, &file, &plan, records, count);
            if records == all {
                after.living.push(5000);
            }
            let again =
                after.plan_as(Some(&on_file), &asked_by(if records == all { 5000 } else { 5001 }), 60);
            let again = again.unwrap_or_else(|refusal| panic!("{records}, {count}: {refusal}"));
            assert_eq!(decisions(&again), decisions(&plan), "{records}, {count}");
            after.carry_out(&again, Some(&mut on_file));
            assert_eq!(after.number(), 2, "the same attempt");
            if records + 1 >= all {
                assert_eq!(on_file.0, whole.0, "{records}, {count}");
            } else {
                // Records that were lost are written anew at another time, under other hashes.
                assert_eq!(on_file.branch_behind("a2").len(), shown.len(), "{records}");
            }
            let kinds: Vec<&str> = after.draft.history.iter().map(|(_, record)| record.kind.word()).collect();
            for (kind, times) in [("entry", 4), ("interrupted", 1), ("recovered", 1)] {
                assert_eq!(
                    kinds.iter().filter(|word| **word == kind).count(),
                    times,
                    "{kind}: {records}, {count}"
                );
            }
            assert_eq!(recovered_decisions(&after), recovered_decisions_of(&plan), "{records}, {count}");
        }
    }
}

fn recovered_decisions_of(plan: &Plan) -> Vec<(CallRef, Decision)> {
    recovered(plan).decisions.iter().map(|d| (d.r#ref, d.decision)).collect()
}

fn recovered_decisions(kit: &Kit) -> Vec<(CallRef, Decision)> {
    let told = kit.turn().current().and_then(|attempt| attempt.recovered.clone()).expect("decisions").1;
    told.iter().map(|d| (d.r#ref, d.decision)).collect()
}

#[test]
fn a_line_torn_in_the_middle_is_written_again_on_a_line_of_its_own() {
    let (kit, file) = eventful();
    let plan = kit.plan(Some(&file)).expect("a plan");
    let all = records_of(&kit, &plan).len();
    let branch = plan.branch.as_ref().expect("a branch");
    for cut in 0..branch.write.len() {
        let (after, mut torn) = killed(&kit, &file, &plan, all - 1, cut);
        let half = branch.write[cut].get();
        torn.0.push_str(&half[..half.len() / 2]);
        let again = after.plan_as(Some(&torn), &asked_by(5001), 60).expect("a plan");
        assert!(torn.tree().needs_newline());
        torn.0.push('\n');
        torn.write(again.branch.as_ref().expect("a branch"));
        let (_, whole) = killed(&kit, &file, &plan, all, branch.write.len());
        assert_eq!(torn.branch_behind("a2"), whole.branch_behind("a2"), "{cut}");
        let ours = |file: &File| file.ids_behind(7);
        assert_eq!(ours(&torn), ours(&whole));
    }
}

#[test]
fn a_recover_that_is_killed_again_and_again_lists_what_it_decided_at_first() {
    let (kit, file) = eventful();
    let plan = kit.plan(Some(&file)).expect("a plan");
    let (mut after, _) = killed(&kit, &file, &plan, 4, 0);
    for owner in 5001..5004 {
        let again = after.plan_as(Some(&file), &asked_by(owner), 60).expect("a plan");
        assert_eq!(recovered_decisions_of(&again), recovered_decisions_of(&plan), "{owner}");
        let begun = records_of(&after, &again)[0].kind.clone();
        after.push(begun);
    }
    assert_eq!(after.number(), 2);
}

#[test]
fn a_takeover_of_an_unfinished_recover_lists_what_that_one_decided() {
    let (kit, file) = eventful();
    let plan = kit.plan(Some(&file)).expect("a plan");
    let (mut after, mut on_file) = killed(&kit, &file, &plan, 4, 0);
    after.living.push(5000);
    for number in [3, 4] {
        let forced = Request { force: Some("stuck".to_owned()), ..asked_by(5000 + number) };
        let again = after.plan_as(Some(&on_file), &forced, 60).expect("a plan");
        assert_eq!(decisions(&again), decisions(&plan));
        assert_eq!(recovered_decisions_of(&again), recovered_decisions_of(&plan), "attempt {number}");
        // That one is killed too, behind its `attempt`, or so it seems.
        let first = records_of(&after, &again)[0].kind.clone();
        after.push(first);
        after.living.push(5000 + number);
        assert_eq!(after.number(), number);
    }
    after.living.clear();
    let last = after.plan_as(Some(&on_file), &asked_by(6000), 90).expect("a plan");
    assert_eq!(recovered_decisions_of(&last), recovered_decisions_of(&plan));
    after.carry_out(&last, Some(&mut on_file));
    assert!(!after.turn().current().expect("an attempt").unfinished());
}

#[test]
fn a_result_that_came_during_an_unfinished_recover_is_kept() {
    let mut kit = Kit::new();
    let call = kit.ask_one("never");
    kit.push(kit.run_by(call, 77));
    kit.living.push(77);
    kit.push(kit.attempt(2));
    kit.push(Outcome { attempt: 1, ..kit.result(call, "came") });
    let plan = kit.plan(None).expect("a plan");
    assert_eq!(decisions(&plan), [(call.to_string(), Decision::Redeliver)]);
    assert_eq!(recovered(&plan).decisions.len(), 1);
}

#[test]
fn an_unfinished_recover_is_gone_on_with_though_the_turn_would_wait_or_park() {
    let mut kit = Kit::new();
    let call = kit.ask_one("hold");
    kit.claim(call);
    for number in 2..=8 {
        kit.push(kit.attempt(number));
    }
    assert_eq!(kit.next(Asker::Other).r#do, Do::Recover);
    let plan = kit.plan(None).expect("a plan");
    assert_eq!(plan.verdict, Verdict::Ready);
    assert_eq!(planned(&kit, &plan), ["attempt", "recovered"]);
}

#[test]
fn a_second_recovery_goes_on_along_the_branch_that_is_there() {
    let (mut kit, mut file, calls) = asked(&["a:never", "b:never"]);
    kit.claim(calls[0]);
    let first = kit.plan(Some(&file)).expect("a plan");
    kit.carry_out(&first, Some(&mut file));
    let before = file.0.clone();
    // Killed at once: the next one finds everything there.
    let second = kit.plan_as(Some(&file), &asked_by(5001), 60).expect("a plan");
    assert!(second.branch.as_ref().expect("a branch").write.is_empty());
    assert_eq!(recovered(&second).branch, recovered(&first).branch, "the marker stays the leaf");
    kit.carry_out(&second, Some(&mut file));
    assert_eq!(file.0, before);
    kit.claim(calls[1]);
    kit.answer(calls[1], "done");
    kit.say("more");
    let third = kit.plan_as(Some(&file), &asked_by(5002), 90).expect("a plan");
    kit.carry_out(&third, Some(&mut file));
    assert!(file.0.starts_with(&before), "nothing is rewritten");
    let shown = file.branch_behind("a2");
    assert_eq!(shown[0..2], ["user:go", "assistant:working"]);
    assert_eq!(shown[3..], ["custom", "toolResult(b):done", "assistant:more", "custom"]);
}
