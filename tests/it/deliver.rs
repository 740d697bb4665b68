//! `step deliver`: the reply is published once, or a person says what became of it.

use crate::kit::{Owner, Sandbox, assistant, at, text, until};
use serde_json::json;

/// A settled turn with a reply and a delivery key, and its ticket.
fn settled(sandbox: &Sandbox, owner: &Owner) -> String {
    let ticket = sandbox.admit(owner, "s", &["--turn", "t", "--delivery", "k"]);
    sandbox.step_in(&ticket, ["message", "-"], assistant("Hello.", &[]).to_string()).ok();
    let status = sandbox.step(&ticket, ["--json", "settle"]).ok().json();
    assert_eq!((at(&status, "/state"), at(&status, "/next/do")), (&json!("settled"), &json!("deliver")));
    ticket
}

#[test]
fn begin_comes_before_the_receipt() {
    let (sandbox, owner) = (Sandbox::new(), Owner::start());
    let ticket = settled(&sandbox, &owner);
    sandbox.unchanged("s", || {
        sandbox.step(&ticket, ["--json", "deliver", "--receipt", "r"]).exits(6).error("not_begun");
        sandbox.step(&ticket, ["--json", "deliver", "--not-sent"]).exits(6).error("not_begun");
        sandbox.step(&ticket, ["deliver"]).exits(2);
        sandbox.step(&ticket, ["deliver", "--begin", "--not-sent"]).exits(2);
        sandbox.step(&ticket, ["deliver", "--waive"]).exits(2);
    });
    sandbox.step(&ticket, ["deliver", "--begin"]).ok();
    let record = sandbox.last("s");
    assert_eq!((&record["state"], &record["key"]), (&json!("begun"), &json!("k")));
    sandbox.unchanged("s", || {
        sandbox.step(&ticket, ["--json", "deliver", "--begin"]).exits(7).error("delivery_begun");
        sandbox.step(&ticket, ["deliver", "--", "touch", "ran"]).exits(7);
    });
    let seq = sandbox.step(&ticket, ["deliver", "--receipt", "{\"id\": 5}"]).ok().seq();
    assert_eq!(sandbox.last("s")["receipt"], json!({"id": 5}));
    sandbox.unchanged("s", || {
        assert_eq!(sandbox.step(&ticket, ["deliver", "--receipt", "{\"id\":5}"]).ok().repeated(), seq);
        sandbox.step(&ticket, ["--json", "deliver", "--begin"]).exits(10).error("delivered");
        sandbox.step(&ticket, ["deliver", "--", "touch", "ran"]).exits(10);
        sandbox.step(&ticket, ["deliver", "--not-sent"]).exits(6);
        sandbox.step(&ticket, ["deliver", "--waive", "--why", "x"]).exits(6);
    });
    assert!(!sandbox.path("ran").exists());
    // Sent otherwise: kept as evidence.
    let late = sandbox.step(&ticket, ["--json", "deliver", "--receipt", "r2"]).exits(5);
    late.error("straggler");
    let record = sandbox.last("s");
    assert_eq!((&record["kind"], record.get("ref")), (&json!("straggler"), None));
    assert_eq!(record["content"], json!({"receipt": "r2"}));
    sandbox.unchanged("s", || sandbox.step(&ticket, ["deliver", "--receipt", "r2"]).exits(5));
}

#[test]
fn a_turn_that_is_not_settled_or_has_no_key_delivers_nothing() {
    let sandbox = Sandbox::new();
    let ticket = sandbox.run(["admit", "s", "--delivery", "k", "--text", "Hi"]).ok().line();
    sandbox.unchanged("s", || {
        sandbox.step(&ticket, ["--json", "deliver", "--begin"]).exits(6).error("not_settled")
    });
    let ticket = sandbox.run(["admit", "b", "--text", "Hi"]).ok().line();
    sandbox.unchanged("b", || {
        sandbox.step(&ticket, ["--json", "deliver", "--begin"]).exits(6).error("no_delivery_key")
    });
}

#[test]
fn not_sent_lets_it_begin_anew_and_a_receipt_takes_that_back() {
    let (sandbox, owner) = (Sandbox::new(), Owner::start());
    let ticket = settled(&sandbox, &owner);
    sandbox.step(&ticket, ["deliver", "--begin"]).ok();
    let seq = sandbox.step(&ticket, ["deliver", "--not-sent", "--by", "ann"]).ok().seq();
    sandbox.unchanged("s", || {
        assert_eq!(sandbox.step(&ticket, ["deliver", "--not-sent", "--by", "ann"]).ok().repeated(), seq);
    });
    sandbox.step(&ticket, ["deliver", "--begin"]).ok();
    sandbox.unchanged("s", || {
        let again = sandbox.step(&ticket, ["--json", "deliver", "--not-sent", "--by", "ann"]).exits(6);
        again.error("said_before");
    });
    let force = ["deliver", "--not-sent", "--by", "ann", "--force", "--why", "looked again"];
    sandbox.step(&ticket, force).ok();
    sandbox.step(&ticket, ["deliver", "--receipt", "r"]).ok();
    assert_eq!(sandbox.last("s")["state"], "sent");
}

/// A driver that can look its reply up says it as often as it tried.
#[test]
fn whoever_began_it_may_say_not_sent_of_each_try() {
    let (sandbox, owner) = (Sandbox::new(), Owner::start());
    let ticket = settled(&sandbox, &owner);
    let mut seqs = Vec::new();
    for _ in 0..3 {
        sandbox.step(&ticket, ["deliver", "--begin"]).ok();
        seqs.push(sandbox.step(&ticket, ["deliver", "--not-sent"]).ok().seq());
    }
    assert!(seqs.is_sorted() && seqs[0] < seqs[2], "{seqs:?}");
}

#[test]
fn waive_ends_it_without_publishing() {
    let (sandbox, owner) = (Sandbox::new(), Owner::start());
    let ticket = settled(&sandbox, &owner);
    let words = ["deliver", "--waive", "--why", "too old", "--by", "ann"];
    let seq = sandbox.step(&ticket, words).ok().seq();
    let record = sandbox.last("s");
    assert_eq!(
        (&record["state"], &record["why"], &record["by"]),
        (&json!("waived"), &json!("too old"), &json!("ann"))
    );
    sandbox.unchanged("s", || {
        assert_eq!(sandbox.step(&ticket, words).ok().repeated(), seq);
        sandbox.step(&ticket, ["deliver", "--begin"]).exits(10);
    });
    sandbox.step(&ticket, ["deliver", "--receipt", "r"]).exits(5);
    assert_eq!(sandbox.last("s")["kind"], "straggler");
}

#[test]
fn cmd_publishes_and_its_output_is_the_receipt() {
    let (sandbox, owner) = (Sandbox::new(), Owner::start());
    let ticket = settled(&sandbox, &owner);
    sandbox.script(
        "post.sh",
        "cat >posted; echo \"$TURNKEEP_KEY ${TURNKEEP_TICKET-none}\" >>posted; echo err >&2; echo receipt-7",
    );
    let ran =
        sandbox.step_cmd(&ticket, ["deliver", "--", "./post.sh"]).env("TURNKEEP_TICKET", &ticket).go().ok();
    assert_eq!(std::fs::read_to_string(sandbox.path("posted")).unwrap(), "Hello.k none\n");
    assert_eq!(ran.stdout, "");
    ran.says("err");
    let records = sandbox.journal("s");
    let (begun, sent) = (&records[records.len() - 2], &records[records.len() - 1]);
    assert_eq!((&begun["state"], at(begun, "/runner/pid").is_u64()), (&json!("begun"), true));
    assert_eq!((&sent["state"], &sent["receipt"]), (&json!("sent"), &json!("receipt-7")));
    sandbox.unchanged("s", || sandbox.step(&ticket, ["deliver", "--", "./post.sh"]).exits(10));
}

#[test]
fn raw_gives_the_replys_bytes_and_json_one_document() {
    let (sandbox, owner) = (Sandbox::new(), Owner::start());
    let ticket = settled(&sandbox, &owner);
    let words = ["--json", "deliver", "--raw", "--", "tee", "posted"];
    let status = sandbox.step(&ticket, words).ok().json();
    assert_eq!(status["state"], "closed");
    let posted = std::fs::read_to_string(sandbox.path("posted")).unwrap();
    assert_eq!(posted, assistant("Hello.", &[]).to_string());
    assert_eq!(at(&status, "/delivery/receipt/content/0/text"), "Hello.", "stdout is the receipt");
}

#[test]
fn a_publisher_that_fails_leaves_it_begun() {
    for (script, told) in [("exit 3", "ended with 3"), ("kill -9 $$", "SIGKILL")] {
        let (sandbox, owner) = (Sandbox::new(), Owner::start());
        let ticket = settled(&sandbox, &owner);
        let ran = sandbox.step(&ticket, ["--json", "deliver", "--", "sh", "-c", script]).exits(7);
        let error = ran.error("delivery_unknown");
        assert!(text(&error["message"]).contains(told), "{error}");
        assert!(text(&error["hint"]).contains("--not-sent"), "{error}");
        assert_eq!(sandbox.last("s")["state"], "begun");
        sandbox.unchanged("s", || sandbox.step(&ticket, ["deliver", "--", "touch", "ran"]).exits(7));
        // Its runner is gone, so a person may say what became of it.
        sandbox.run(["step", "deliver", "--not-sent", "--session", "s", "--by", "ann"]).ok().says("turn t");
        sandbox.step(&ticket, ["deliver", "--", "true"]).ok();
        assert!(sandbox.last("s").get("receipt").is_none(), "no output is no receipt");
    }
}

#[test]
fn a_publisher_that_is_not_there_is_refused_before_anything_is_written() {
    let (sandbox, owner) = (Sandbox::new(), Owner::start());
    let ticket = settled(&sandbox, &owner);
    sandbox.unchanged("s", || {
        sandbox.step(&ticket, ["--json", "deliver", "--", "no-such"]).exits(2).error("no_command")
    });
}

#[test]
fn while_the_publisher_lives_nobody_decides_over_its_head() {
    let (sandbox, owner) = (Sandbox::new(), Owner::start());
    let ticket = settled(&sandbox, &owner);
    sandbox.script("post.sh", "touch started; read line <gate; echo \"$line\"");
    sandbox.program("mkfifo", ["gate"]).go().ok();
    let running = sandbox.step_cmd(&ticket, ["deliver", "--", "./post.sh"]).start();
    until("the publisher", || sandbox.path("started").exists());
    sandbox.unchanged("s", || {
        for words in [vec!["--receipt", "r"], vec!["--not-sent"], vec!["--waive", "--why", "x"]] {
            let words = [&["--json", "step", "deliver", "--session", "s"], &words[..]].concat();
            sandbox.run(words).exits(4).error("publisher_alive");
        }
    });
    let words = ["step", "deliver", "--session", "s", "--waive", "--force", "--why", "enough"];
    sandbox.run(words).ok();
    std::fs::write(sandbox.path("gate"), "late\n").unwrap();
    // Its receipt finds the delivery waived: kept, and no answer.
    running.wait().exits(5);
    let record = sandbox.last("s");
    assert_eq!((&record["kind"], &record["content"]), (&json!("straggler"), &json!({"receipt": "late"})));
}

#[test]
fn persons_acts_take_the_session_and_never_the_environment() {
    let (sandbox, owner) = (Sandbox::new(), Owner::start());
    let ticket = settled(&sandbox, &owner);
    sandbox.step(&ticket, ["deliver", "--begin"]).ok();
    // The owner that began it lives.
    sandbox.unchanged("s", || {
        let words = ["--json", "step", "deliver", "--not-sent", "--session", "s"];
        sandbox.run(words).exits(4).error("publisher_alive");
    });
    owner.die();
    sandbox.run(["step", "deliver", "--receipt", "r", "--by", "ann", "--session", "s"]).ok();
    assert_eq!(sandbox.last("s")["by"], "ann");
    assert_eq!(sandbox.last("s")["attempt"], 1);
}

#[test]
fn the_attempt_that_began_it_brings_its_receipt_after_a_takeover_too() {
    let (sandbox, owner) = (Sandbox::new(), Owner::start());
    let old = settled(&sandbox, &owner);
    owner.die();
    let owner = Owner::start();
    let new = sandbox.recover(&owner, "s", &[]);
    let in_env = |ticket: &str, words: &[&str]| {
        let words = [&["--json", "step", "deliver"], words].concat();
        sandbox.cmd(words).env("TURNKEEP_TICKET", ticket).go()
    };
    sandbox.unchanged("s", || {
        in_env(&old, &["--begin"]).exits(5).error("fenced");
        in_env(&old, &["--not-sent"]).exits(5).error("fenced");
        in_env(&new, &["--receipt", "r"]).exits(6).error("not_begun");
    });
    in_env(&new, &["--begin"]).ok();
    // A receipt of an attempt that did not begin it is refused and kept.
    in_env(&old, &["--receipt", "r"]).exits(5);
    assert_eq!(sandbox.last("s")["kind"], "straggler");
    owner.die();
    let words = ["--json", "recover", "s", "--owner-pid", "none"];
    sandbox.run(words).exits(14);
    in_env(&new, &["--receipt", "r"]).ok();
    assert_eq!(sandbox.last("s")["state"], "sent");
}

#[test]
fn without_a_turn_the_oldest_begun_delivery_is_meant() {
    let (sandbox, owner) = (Sandbox::new(), Owner::start());
    let mut tickets = Vec::new();
    for turn in ["t1", "t2", "t3"] {
        let ticket = sandbox.admit(&owner, "s", &["--turn", turn, "--delivery", turn]);
        sandbox.step_in(&ticket, ["settle", "-"], "reply").ok();
        tickets.push(ticket);
    }
    sandbox.step(&tickets[1], ["deliver", "--begin"]).ok();
    sandbox.step(&tickets[2], ["deliver", "--begin"]).ok();
    owner.die();
    sandbox.run(["step", "deliver", "--receipt", "r", "--session", "s"]).ok();
    assert_eq!(sandbox.last("s")["turn"], "t2");
    sandbox.run(["step", "deliver", "--receipt", "r", "--session", "s:t3"]).ok();
    assert_eq!(sandbox.last("s")["turn"], "t3");
    sandbox.unchanged("s", || sandbox.run(["step", "deliver", "--begin", "--session", "s:t1"]).exits(2));
}

/// Whoever started a publisher and saw it fail knows no more than anybody else: only a person says what came of it.
#[test]
fn a_driver_does_not_say_what_became_of_a_publisher() {
    let (sandbox, owner) = (Sandbox::new(), Owner::start());
    let ticket = sandbox.admit(&owner, "s", &["--turn", "t", "--delivery", "k"]);
    sandbox.step_in(&ticket, ["settle", "-"], "reply").ok();
    let in_env = |words: &[&str]| {
        sandbox.cmd([&["step", "deliver"], words].concat()).env("TURNKEEP_TICKET", &ticket).go()
    };
    in_env(&["--", "sh", "-c", "echo out >>published; exit 1"]).exits(7);
    for said in [&["--not-sent"][..], &["--receipt", "r"], &["--waive", "--why", "x"]] {
        sandbox.unchanged("s", || in_env(said).exits(2).says("a person's act needs --session"));
    }
    in_env(&["--", "sh", "-c", "echo out >>published"]).exits(7);
    assert_eq!(std::fs::read_to_string(sandbox.path("published")).unwrap(), "out\n");
    sandbox.run(["step", "deliver", "--not-sent", "--session", "s", "--by", "ann"]).ok();
    in_env(&["--", "sh", "-c", "echo out >>published"]).ok();
    // By hand it begins, and so it ends.
    let other = sandbox.admit(&owner, "z", &["--turn", "t", "--delivery", "k"]);
    sandbox.step_in(&other, ["settle", "-"], "reply").ok();
    let in_env = |words: &[&str]| {
        sandbox.cmd([&["step", "deliver"], words].concat()).env("TURNKEEP_TICKET", &other).go()
    };
    in_env(&["--begin"]).ok();
    in_env(&["--not-sent"]).ok();
}

/// What nobody began is not waived by guess.
#[test]
fn without_a_turn_nothing_is_waived_that_was_not_begun() {
    let (sandbox, owner) = (Sandbox::new(), Owner::start());
    let ticket = sandbox.admit(&owner, "s", &["--turn", "t", "--delivery", "k"]);
    sandbox.step_in(&ticket, ["settle", "-"], "reply").ok();
    let waive = ["step", "deliver", "--waive", "--why", "x", "--session"];
    sandbox.unchanged("s", || sandbox.run([&waive[..], &["s"]].concat()).exits(6).says("name one as s:TURN"));
    sandbox.run([&waive[..], &["s:t"]].concat()).ok();
}
