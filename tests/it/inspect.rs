//! `inspect`: what it shows of calls, records and older states, and what it says where there is nothing to show.

use crate::kit::{Owner, Sandbox, at, lines, text, until};
use serde_json::{Value, json};
use std::path::Path;

/// The fixture that holds every kind of record: turns ta and tb are closed, tc is open.
const EVERY_KIND: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/every-kind/journal.jsonl");

/// The fixture has half a character in an input, which a strict parser refuses.
fn parsed(json: &str) -> Option<Value> {
    serde_json::from_str(&json.replace("\\ud83d", "?")).ok()
}

fn document(sandbox: &Sandbox, words: &[&str]) -> Value {
    parsed(&sandbox.run([&["--json", "inspect"], words].concat()).ok().line()).unwrap()
}

fn asked(sandbox: &Sandbox, words: &[&str]) -> String {
    sandbox.run([&["inspect", EVERY_KIND], words].concat()).ok().stdout
}

#[test]
fn a_call_is_shown_with_whatever_answered_it() {
    let sandbox = Sandbox::new();
    let rows: [(&str, &[&str]); 9] = [
        (
            "5.0",
            &[
                "call 5.0 of turn ta: read, id call_1\n",
                "state: result; a recover would say: redeliver\n",
                "key: tk_cf36fe4a9289e56c10b7001bb84f8c51\n",
                "claimed at 2025-01-05T09:00:07.000007Z by attempt 1, ",
                "look it up: {\"url\":\"https://ci.example/17\",\"n\":1.0e2}\n",
                "\narguments:\n{\"path\":\"a\"}\n",
                "\nanswer (record 8, result, 2025-01-05T09:00:08.000008Z):\n{\"seen\":[null,\"\\u0000\"]}\n",
            ],
        ),
        (
            "5.1",
            &["run by pid 4002, ", "\nanswer (record 10, result, ", "no rule\nstop\n[ended by SIGTERM]\n"],
        ),
        ("5.2", &["approval: denied\n", "\nanswer (record 16, not_run, ", "deploy was not run.\n"]),
        ("5.3", &["dispatched to ci at 2025-01-05T09:00:12.000012Z by attempt 1, ", "):\nstored\n"]),
        ("5.4", &["state: applied; ", "\nanswer (record 23, reconciled, ", "):\napplied (says ann)\npaid\n"]),
        ("18.0", &["nested in: 5.4\n", "[exit status 2]\n"]),
        ("37.0", &["of turn tb: ", "\nanswer (record 43, not_run, ", "bash was not run.\n"]),
        (
            "47.0",
            &[
                "state: interrupted; ",
                "results that came too late: record 53\n",
                "The outcome is unknown.\n\noutput so far:\nstopping web\n",
            ],
        ),
        // A provider's id in the turn that is open, though others have it too.
        ("call_2", &["call 47.0 of turn tc: "]),
    ];
    for (call, needed) in rows {
        let shown = asked(&sandbox, &["--call", call]);
        for words in needed {
            assert!(shown.contains(words), "{call}: {words:?} is not in\n{shown}");
        }
    }
    let named = asked(&sandbox, &["--turn", "ta", "--call", "call_2"]);
    assert!(named.starts_with("call 5.1 of turn ta: "), "{named}");
}

#[test]
fn a_call_that_the_session_file_or_a_message_answered_shows_that() {
    let sandbox = Sandbox::new();
    let owner = Owner::start();
    let ticket = sandbox.admit(&owner, "s", &["--turn", "t1"]);
    let seq = sandbox.announce(&ticket, &[("c1", "bash", json!({})), ("c2", "bash", json!({}))]);
    sandbox.step(&ticket, ["claim", &format!("{seq}.0")]).ok();
    sandbox.step(&ticket, ["claim", &format!("{seq}.1")]).ok();
    let said = crate::kit::tool_result("c1", "bash", "the tool said this", false);
    sandbox.step_in(&ticket, ["message", "-"], said.to_string()).ok();
    let said = crate::kit::tool_result("c2", "bash", "and that", false);
    let entry = crate::kit::entry("e1", None, &said);
    sandbox.step_in(&ticket, ["entry", "-"], entry.to_string()).ok();
    for (call, kind, said) in [("c1", "message", "the tool said this"), ("c2", "entry", "and that")] {
        let shown = sandbox.run(["inspect", "s", "--call", call]).ok().stdout;
        assert!(
            shown.contains(&format!(", {kind}, ")) && shown.ends_with(&format!("):\n{said}\n")),
            "{shown}"
        );
    }
    let open = sandbox.announce(&ticket, &[("c3", "bash", json!({"n": 1}))]);
    let shown = sandbox.run(["inspect", "s", "--call", &format!("{open}.0")]).ok().stdout;
    assert!(shown.ends_with("arguments:\n{\"n\":1}\n\nno answer\n"), "{shown}");
}

/// The document says what the status document says of a call, and the record that answered it.
#[test]
fn a_call_as_a_document() {
    let sandbox = Sandbox::new();
    let shown = |words: &[&str]| document(&sandbox, &[&[EVERY_KIND], words].concat());
    let status = shown(&["--turn", "ta"]);
    let calls = at(&status, "/calls").as_array().unwrap();
    assert_eq!(calls.len(), 6);
    for call in calls {
        let alone = shown(&["--call", &text(&call["ref"])]);
        assert_eq!((&alone["schema"], &alone["turn"]), (&json!("turnkeep.call/1"), &json!("ta")));
        assert_eq!(&alone["call"], call);
        assert_eq!(alone["answer"]["ref"], call["ref"]);
    }
    let answer = &shown(&["--call", "5.4"])["answer"];
    let journal = std::fs::read_to_string(EVERY_KIND).unwrap();
    let record = journal.lines().nth(23).and_then(parsed).unwrap();
    for key in ["seq", "at", "kind", "turn", "ref", "outcome", "by", "receipt", "content"] {
        assert_eq!(answer[key], record[key], "{key}");
    }
    assert_eq!(answer.as_object().unwrap().len(), 9, "{answer}");
}

#[test]
fn a_call_that_is_not_there_is_told_with_those_that_are() {
    let sandbox = Sandbox::new();
    for (words, said) in [
        (vec!["--call", "nope"], "turn tc has no call \"nope\"; it has 47.0"),
        (vec!["--turn", "tb", "--call", "5.0"], "turn tb has no call \"5.0\"; it has 37.0"),
    ] {
        sandbox.run([vec!["inspect", EVERY_KIND], words].concat()).exits(8).says(said);
    }
    sandbox.run(["admit", "s", "--turn", "t", "--text", "Hi", "--owner-pid", "none"]).ok();
    sandbox.run(["inspect", "s", "--call", "c1", "--json"]).exits(8).error("no_call");
}

/// `--records` prints lines of the journal as they are.
#[test]
fn records_are_chosen_by_number_kind_and_turn() {
    let sandbox = Sandbox::new();
    let journal = std::fs::read_to_string(EVERY_KIND).unwrap();
    let chosen = |take: &dyn Fn(&Value) -> bool| -> String {
        let kept = journal.lines().filter(|line| parsed(line).is_some_and(|record| take(&record)));
        // Record 38 is damage, which is passed over.
        kept.filter(|line| !line.contains("2025#")).map(|line| format!("{line}\n")).collect()
    };
    assert_eq!(asked(&sandbox, &["--records"]), chosen(&|_| true));
    assert_eq!(
        asked(&sandbox, &["--records", "--from", "52"]),
        chosen(&|record| record["seq"].as_u64() >= Some(52))
    );
    assert_eq!(
        asked(&sandbox, &["--records", "--kind", "delivery"]),
        chosen(&|record| record["kind"] == "delivery")
    );
    assert_eq!(
        asked(&sandbox, &["--records", "--turn", "tb", "--kind", "attempt", "--from", "35"]),
        chosen(&|record| record["turn"] == "tb" && record["kind"] == "attempt" && record["attempt"] == 2)
    );
    assert_eq!(asked(&sandbox, &["--records", "--from", "99"]), "");
    sandbox
        .run(["inspect", EVERY_KIND, "--records", "--kind", "nope"])
        .exits(2)
        .says("the kinds are opened, admitted");
}

/// The state as of a record is what the file up to it means.
#[test]
fn an_older_state_is_that_of_the_shorter_file() {
    let sandbox = Sandbox::new();
    let journal = std::fs::read_to_string(EVERY_KIND).unwrap();
    let mut short = String::new();
    for line in journal.lines() {
        short.push_str(line);
        short.push('\n');
        let Some(seq) = parsed(line).and_then(|record| record["seq"].as_u64()) else {
            continue;
        };
        if line.contains("2025#") || seq == 0 {
            continue;
        }
        let file = sandbox.write("short.jsonl", &short);
        // The session file is not looked at, so only what the journal says can be compared.
        let state = |path: &Path, more: &[&str]| -> Value {
            let mut state = document(&sandbox, &[&[path.to_str().unwrap()], more].concat());
            for about_the_file in ["next", "tree", "notes"] {
                state.as_object_mut().unwrap().remove(about_the_file).unwrap();
            }
            state
        };
        let older = state(Path::new(EVERY_KIND), &["--at", &seq.to_string()]);
        assert_eq!(older, state(&file, &[]), "record {seq}");
    }
    sandbox
        .run(["inspect", EVERY_KIND, "--at", "99"])
        .exits(8)
        .says("there is no record 99; the newest is 54");
}

#[test]
fn a_change_is_waited_for() {
    let sandbox = Sandbox::new();
    let owner = Owner::start();
    let ticket = sandbox.admit(&owner, "s", &["--turn", "t1"]);
    sandbox.run(["inspect", "s", "--until-change", "0.05"]).exits(14);
    let status = sandbox.run(["--json", "inspect", "s", "--until-change", "0.05"]).exits(14).json();
    assert_eq!(at(&status, "/turn"), "t1");
    for json in [false, true] {
        let mut words = vec!["inspect", "s", "--until-change", "60"];
        words.extend(json.then_some("--json"));
        let mut waiting = sandbox.cmd(words).start();
        // Whether it waits yet cannot be seen: notes are written until one is behind its first look.
        let mut notes = 0;
        let ran = loop {
            if waiting.is_done() {
                break waiting.wait();
            }
            sandbox.step_in(&ticket, ["note", "-"], format!("note {notes}")).ok();
            notes += 1;
        };
        let ran = ran.ok();
        if json {
            assert_eq!(ran.json()["schema"], "turnkeep.status/1");
        }
    }
    sandbox.run(["inspect", "nowhere", "--until-change", "1"]).exits(8);
}

#[test]
fn what_is_not_there_is_told_with_what_is_near() {
    let sandbox = Sandbox::new();
    sandbox.run(["inspect", "--json"]).exits(8).error("no_root");
    sandbox.run(["admit", "room-42", "--text", "Hi", "--owner-pid", "none"]).ok();
    for near in ["room-24", "ROOM-42", "room", "my-room-42"] {
        sandbox.run(["inspect", near]).exits(8).says("hint: near matches: room-42");
    }
    sandbox.run(["inspect", "hall-7"]).exits(8).says("no session \"hall-7\"").says_not("near");
    sandbox.run(["inspect", "./nofile"]).exits(8).says("there is no file ./nofile");
    sandbox.write("chat.jsonl", crate::kit::small_tree());
    // It has no turns and no records.
    for view in [&["--records"][..], &["--next"], &["--turn", "t1"], &["--delivery", "k"], &["--context"]] {
        let ran = sandbox.run([&["inspect", "chat.jsonl"][..], view].concat()).exits(2);
        ran.says("is a session file, not a journal").says("`turnkeep inspect FILE` draws it");
        sandbox
            .run([&["inspect", "./chat.jsonl", "--json"][..], view].concat())
            .exits(2)
            .error("session_file");
    }
}

#[test]
fn a_session_file_is_drawn_as_it_is() {
    let sandbox = Sandbox::new();
    sandbox.write("chat.jsonl", crate::kit::small_tree());
    let drawn = |words: &[&str]| sandbox.run([&["inspect", "chat.jsonl"][..], words].concat());
    let all = drawn(&[]).ok().stdout;
    assert!(all.starts_with("chat.jsonl\n  a1 user ") && all.ends_with(" <- active leaf\n"), "{all}");
    assert_eq!(drawn(&["--draw-tree"]).ok().stdout, all);
    let document = drawn(&["--json"]).ok().json();
    assert_eq!((at(&document, "/session"), at(&document, "/turn")), (&Value::Null, &Value::Null));
    assert_eq!(document["schema"], "turnkeep.tree/1");
    // What cannot be drawn is told behind it, remarks too, and damage is 3.
    let file = String::from_utf8(std::fs::read(sandbox.path("chat.jsonl")).unwrap()).unwrap();
    sandbox.write("chat.jsonl", file.trim_end());
    let noted = drawn(&[]).ok().stdout;
    assert!(noted.starts_with(&all) && noted.contains("no line ending"), "{noted}");
    sandbox.write("chat.jsonl", format!("{file}{{\"type\":\"custom\",\"id\":\"x\",\"parentId\":\"x\"}}\n"));
    let looped = drawn(&[]).exits(3).stdout;
    assert!(looped.contains("in a loop, or hanging on one:\n  x custom"), "{looped}");
}

/// A closed turn is named as closed while another one is open, and damage keeps anybody from counting.
#[test]
fn what_is_said_is_said_of_the_turn_that_was_asked_for() {
    let sandbox = Sandbox::new();
    let next = document(&sandbox, &[EVERY_KIND, "--turn", "ta"])["next"].clone();
    assert_eq!((&next["do"], &next["why"]), (&json!("done"), &json!("the turn is closed")));
    assert_eq!(document(&sandbox, &[EVERY_KIND])["turn"], "tc");
    let mut journal = std::fs::read(EVERY_KIND).unwrap();
    let place = journal.len() - 10;
    journal[place] ^= 1;
    let damaged = sandbox.write("damaged.jsonl", journal);
    let shown = sandbox.run(["inspect", damaged.to_str().unwrap()]).exits(3).stdout;
    assert!(shown.contains("damaged.jsonl: records up to 53, "), "{shown}");
    assert!(asked(&sandbox, &[]).contains("journal.jsonl: 55 records, "));
}

/// Cut behind its admission, a turn has no attempt yet.
#[test]
fn a_turn_without_an_attempt_is_verified_as_that() {
    let sandbox = Sandbox::new();
    let journal = std::fs::read_to_string(EVERY_KIND).unwrap();
    let cut: String = journal.lines().take(2).map(|line| format!("{line}\n")).collect();
    let cut = sandbox.write("cut.jsonl", cut);
    let shown = sandbox.run(["verify", cut.to_str().unwrap()]).ok().all();
    assert!(shown.contains("turn ta is open, and no attempt at it has begun"), "{shown}");
}

/// A key that nobody can read is not a key that nobody has.
#[test]
fn a_delivery_key_is_not_denied_while_a_journal_is_damaged() {
    let sandbox = Sandbox::new();
    let owner = Owner::start();
    sandbox.admit(&owner, "s", &["--delivery", "k"]);
    let other = sandbox.admit(&owner, "z", &["--delivery", "other"]);
    let ask = |words: &[&str]| sandbox.run([&["--json", "inspect"][..], words].concat());
    ask(&["--delivery", "nobody"]).exits(8).error("no_delivery");
    let damaged = String::from_utf8(sandbox.journal_bytes("s"))
        .unwrap()
        .replace("\"delivery\":\"k\"", "\"delivery\":\"K\"");
    std::fs::write(sandbox.journal_path("s"), damaged).unwrap();
    for words in [&["--delivery", "k"][..], &["s", "--delivery", "k"]] {
        let error = sandbox.unchanged("s", || ask(words)).exits(3).error("damaged");
        let message = text(&error["message"]);
        assert!(message.starts_with("no turn has the delivery key \"k\" that can be read: "), "{message}");
    }
    // One that is there is shown, whatever the others are like.
    assert_eq!(ask(&["--delivery", "other"]).ok().json()["session"], "z");
    // The same of a journal that cannot be read at all, and the worst of several is told.
    std::fs::create_dir(sandbox.journal_path("folder")).unwrap();
    ask(&["--delivery", "nobody"]).exits(3).error("damaged");
    std::fs::remove_file(sandbox.journal_path("s")).unwrap();
    ask(&["--delivery", "nobody"]).exits(1).error("io");
    std::fs::remove_dir(sandbox.journal_path("folder")).unwrap();
    // A view that there is none of is told of the turn that was found.
    ask(&["--delivery", "other", "--draw-tree"]).exits(8).error("no_tree");
    sandbox.step(&other, ["heartbeat"]).ok();
}

/// Tools that synchronise folders, and people, leave copies beside a journal.
#[test]
fn a_copy_under_another_name_is_not_the_session() {
    let sandbox = Sandbox::new();
    let owner = Owner::start();
    let ticket = sandbox.admit(&owner, "s", &["--delivery", "k", "--turn", "t1"]);
    let torn = [&sandbox.journal_bytes("s")[..], b"{\"seq\":"].concat();
    std::fs::write(sandbox.journal_path("s"), torn).unwrap();
    sandbox.step(&ticket, ["heartbeat"]).ok();
    let folder = sandbox.journal_path("s").parent().unwrap().to_owned();
    for name in ["s (conflicted copy).jsonl", "t.jsonl"] {
        let copy = folder.join(name);
        std::fs::copy(sandbox.journal_path("s"), &copy).unwrap();
        let ran = sandbox.unchanged("s", || sandbox.run(["--json", "inspect"]).exits(6));
        let rows = lines(ran.stdout.as_bytes());
        let states: Vec<_> = rows.iter().map(|row| (text(&row["session"]), text(&row["state"]))).collect();
        let stem = name.trim_end_matches(".jsonl").to_owned();
        let (own, other) = (("s".to_owned(), "open".to_owned()), (stem, "other_session".to_owned()));
        assert!(states.len() == 2 && states.contains(&own) && states.contains(&other), "{states:?}");
        let ran = sandbox.run(["--json", "inspect", "--delivery", "k"]).exits(6);
        assert_eq!(ran.json()["session"], "s", "one turn has it");
        ran.says("is the journal of session \"s\", not of");
        // What was cut off is kept under the name of the session, so a copy lacks nothing.
        sandbox.run(["verify", copy.to_str().unwrap()]).exits(6);
        // What the copy says is no plan.
        let ran = sandbox.run(["--json", "recover", "--all", "--force", "--why", "x"]).exits(1);
        assert_eq!(
            lines(ran.stdout.as_bytes()).iter().filter(|line| line["turn"] == "t1").count(),
            1,
            "{}",
            ran.all()
        );
        std::fs::remove_file(copy).unwrap();
    }
    sandbox.step(&ticket, ["heartbeat"]).ok();
}

#[test]
fn records_are_shown_as_they_come() {
    let sandbox = Sandbox::new();
    let owner = Owner::start();
    let ticket = sandbox.admit(&owner, "s", &["--turn", "t1"]);
    let note = |text: &str| drop(sandbox.step_in(&ticket, ["note", "-"], text).ok());
    note("before");
    let seen = |name: &str| std::fs::read_to_string(sandbox.path(name)).unwrap_or_default();
    let follow = |name: &str, more: &str| {
        let line = format!("exec turnkeep inspect s --follow {more} >{name} 2>{name}.err");
        let running = sandbox.program("sh", ["-c", &line]).start();
        // Whether it follows yet cannot be seen: notes are written until one comes.
        until("the first record", || {
            note("again");
            seen(name).contains("again")
        });
        running
    };
    let all = follow("all", "--from 0");
    let fresh = follow("fresh", "");
    let notes = follow("notes", "--records --kind note");
    sandbox.step(&ticket, ["heartbeat"]).ok();
    note("last");
    for name in ["all", "fresh", "notes"] {
        until("the last record", || seen(name).contains("last"));
    }
    // Whole lines, in order, none twice and none left out.
    assert_eq!(seen("all").as_bytes(), sandbox.journal_bytes("s"));
    assert!(seen("all").ends_with(&seen("fresh")) && !seen("fresh").contains("before"), "{}", seen("fresh"));
    assert!(lines(seen("notes").as_bytes()).iter().all(|record| record["kind"] == "note"));
    // A reader that leaves ends it; it is noticed with the next record.
    let mut head = sandbox.program("sh", ["-c", "turnkeep inspect s --follow --from 0 | head -n 1"]).start();
    until("the end of a reader", || {
        note("more");
        head.is_done()
    });
    assert_eq!(lines(head.wait().ok().stdout.as_bytes())[0]["kind"], "opened");
    // Another journal in its place is none whose records follow.
    let whole = sandbox.journal_bytes("s");
    let other = Sandbox::new();
    let stranger = other.admit(&owner, "s", &["--turn", "t1"]);
    while other.journal_bytes("s").len() <= whole.len() {
        other.step_in(&stranger, ["note", "-"], "stranger").ok();
    }
    std::fs::write(sandbox.path("other"), other.journal_bytes("s")).unwrap();
    std::fs::rename(sandbox.path("other"), sandbox.journal_path("s")).unwrap();
    for (running, name) in [(all, "all"), (fresh, "fresh"), (notes, "notes")] {
        running.wait().exits(3);
        let told = seen(&format!("{name}.err"));
        assert!(told.contains("is not the journal any more whose records were shown"), "{told}");
        assert!(!seen(name).contains("stranger"));
    }
    sandbox.run(["inspect", "s", "--follow", "--at", "1"]).exits(2);
    sandbox.run(["inspect", "s", "--from", "1"]).exits(2).says("--records");
    sandbox.run(["inspect", "nowhere", "--follow"]).exits(8);
}

#[test]
fn a_page_shows_the_time_line() {
    let sandbox = Sandbox::new();
    let owner = Owner::start();
    let hostile = "<script>alert(1)</script>\u{202e}";
    let ticket = sandbox.admit(&owner, "s", &["--turn", "t1", "--text", hostile]);
    sandbox.announce(&ticket, &[("a", "read", json!({"path": "</td>"})), ("b", "charge", json!({}))]);
    for call in ["a", "b"] {
        sandbox.step(&ticket, ["claim", call]).ok();
    }
    sandbox.step_in(&ticket, ["result", "a", "-"], "done").ok();
    owner.die();
    let page = |exit: i32| {
        let ran = sandbox.unchanged("s", || sandbox.run(["inspect", "s", "--html", "page.html"])).exits(exit);
        assert_eq!(ran.stdout, "");
        std::fs::read_to_string(sandbox.path("page.html")).unwrap()
    };
    let html = page(0);
    for told in ["session s", "turn t1: open", "attempt 1 (admit)", "read", "charge", "next: recover"] {
        assert!(html.contains(told), "{told:?} is not in {html}");
    }
    // One bar each for the attempt and the two calls; the one without an answer is uncertain, to the end of the line.
    assert_eq!(html.matches("class=\"bar\"").count(), 3, "{html}");
    assert_eq!(html.matches("<tr class=\"uncertain\">").count(), 1, "{html}");
    assert!(html.contains("claimed by attempt 1 at "), "{html}");
    // Nothing of others is markup, and nothing is fetched.
    assert!(!html.contains("<script") && !html.contains('\u{202e}') && !html.contains("</td>\""), "{html}");
    assert!(
        !html.contains("http:") && !html.contains("https:") && html.contains("default-src 'none'"),
        "{html}"
    );
    // Damage is told, and what is readable is shown.
    let journal = String::from_utf8(sandbox.journal_bytes("s")).unwrap();
    std::fs::write(
        sandbox.journal_path("s"),
        journal.replace("\"content\":\"done\"", "\"content\":\"gone\""),
    )
    .unwrap();
    let html = page(3);
    assert!(html.contains("is damaged in line") && html.contains("turn t1: parked"), "{html}");
    let nowhere = ["inspect", "s", "--html", "nowhere/page.html"];
    sandbox.run(nowhere).exits(1).says("could not write nowhere/page.html");
    sandbox.run(["inspect", "s", "--html", "page.html", "--next"]).exits(2);
}
