//! The journal on disk, checked with nothing of ours: a shell, `sed`, `tr`, `sha256sum`.

use crate::kit::{Owner, Sandbox, assistant, text};
use serde_json::json;

/// A session with every kind of record that steps write.
fn busy() -> Sandbox {
    let sandbox = Sandbox::new();
    sandbox.policy(json!([{"tool": "deploy", "replay": "never", "approval": "required"}]));
    let owner = Owner::start();
    for (turn, key) in [("t1", "k1"), ("t2", "k2")] {
        let ticket = sandbox.admit(&owner, "s", &["--turn", turn, "--delivery", key, "--meta", "{\"a\":1}"]);
        let calls = [
            ("c1", "bash", json!({})),
            ("c2", "deploy", json!({})),
            ("c3", "bash", json!({})),
            ("c4", "bash", json!({})),
        ];
        sandbox.announce(&ticket, &calls);
        sandbox.step(&ticket, ["claim", "c1"]).ok();
        sandbox.step_in(&ticket, ["result", "c1", "-"], "out \"quoted\" ü\n").ok();
        sandbox.run(["step", "deny", "c2", "--by", "ann", "--session", "s"]).ok();
        sandbox.step(&ticket, ["dispatch", "c3", "--to", "farm"]).ok();
        sandbox
            .run(["step", "reconcile", "c3", "--by", "ann", "--session", "s", "--outcome", "unknown"])
            .ok();
        sandbox.step(&ticket, ["run", "c4", "--", "echo", "hi"]).ok();
        sandbox.run(["step", "steer", "--text", "More", "--session", "s"]).ok();
        sandbox.step_in(&ticket, ["message", "-"], assistant("", &[]).to_string()).ok();
        sandbox.step_in(&ticket, ["message", "-"], assistant("Done.", &[]).to_string()).ok();
        sandbox.step(&ticket, ["heartbeat"]).ok();
        sandbox.step_in(&ticket, ["note", "-"], ",\"hash\":\"0\"}").ok();
        sandbox.step(&ticket, ["settle"]).ok();
    }
    sandbox.step("s:t1:1", ["deliver", "--begin"]).ok();
    sandbox.step("s:t1:1", ["deliver", "--receipt", "r"]).ok();
    sandbox
}

#[test]
fn a_shell_confirms_every_record() {
    let sandbox = busy();
    sandbox.script(
        "check.sh",
        r#"file=$1; prev=0000000000000000000000000000000000000000000000000000000000000000; n=0
while IFS= read -r line; do
    hash=$(printf '%s\n' "$line" | sed 's/.*,"hash":"\([0-9a-f]*\)"}$/\1/')
    sum=$(printf '%s\n' "$line" | sed 's/,"hash":"[0-9a-f]*"}$//' | tr -d '\n' | sha256sum)
    [ "$hash" = "${sum%% *}" ] || { echo "line $n: hash"; exit 1; }
    case $line in
    "{\"seq\":$n,\"at\":\""*",\"prev\":\"$prev\",\"hash\":\"$hash\"}") ;;
    *) echo "line $n: seq or prev"; exit 1 ;;
    esac
    prev=$hash; n=$((n + 1))
done <"$file"
echo "$n $prev""#,
    );
    let path = sandbox.journal_path("s");
    let ran = sandbox.program("sh", ["check.sh", path.to_str().unwrap()]).go().ok();
    let records = sandbox.journal("s");
    assert_eq!(ran.stdout, format!("{} {}\n", records.len(), text(&records.last().unwrap()["hash"])));
    // The check can fail.
    let spoiled = String::from_utf8(sandbox.journal_bytes("s")).unwrap().replacen("Done.", "Gone.", 1);
    let path = sandbox.write("spoiled.jsonl", spoiled);
    assert!(
        sandbox.program("sh", ["check.sh", path.to_str().unwrap()]).go().exits(1).stdout.contains("hash")
    );
}

#[test]
fn keys_stand_in_order_and_base_leads_to_what_is_needed() {
    let sandbox = busy();
    let bytes = sandbox.journal_bytes("s");
    let (mut offset, mut line_offsets) = (0, Vec::new());
    for line in bytes.split_inclusive(|byte| *byte == b'\n') {
        line_offsets.push(offset);
        offset += line.len();
        let line = std::str::from_utf8(line).unwrap();
        assert!(line.starts_with("{\"seq\":") && line.ends_with("\"}\n"), "{line}");
        let order: Vec<usize> =
            ["\"seq\":", "\"at\":", "\"kind\":"].iter().map(|key| line.find(key).unwrap()).collect();
        assert!(order.is_sorted(), "{line}");
        let tail: Vec<usize> =
            [",\"base\":", ",\"prev\":", ",\"hash\":"].iter().map(|key| line.rfind(key).unwrap()).collect();
        assert!(tail.is_sorted(), "{line}");
        assert_eq!(line.len() - 1 - tail[2], 75, "the last 75 bytes are the hash");
    }
    let records = sandbox.journal("s");
    let admitted = |turn: &str| {
        let at =
            records.iter().position(|record| record["kind"] == "admitted" && record["turn"] == turn).unwrap();
        line_offsets[at]
    };
    for (record, own) in records.iter().zip(&line_offsets) {
        let sent = record["kind"] == "delivery" && record["state"] == "sent";
        let wanted = match record["seq"].as_u64().unwrap() {
            0 => *own,
            // t1 is the oldest turn that is not closed until its delivery was sent; then t2 is.
            _ if sent => admitted("t2"),
            _ => admitted("t1"),
        };
        assert_eq!(record["base"], wanted, "{record}");
        let at = text(&record["at"]);
        assert!(at.len() == 27 && at.ends_with('Z'), "{at}");
    }
    sandbox.step("s:t2:1", ["deliver", "--waive", "--why", "x"]).ok();
    let last = sandbox.last("s");
    assert_eq!(last["base"], bytes.len(), "none is needed any more: its own offset");
}

#[test]
fn a_field_without_a_value_is_absent() {
    let sandbox = busy();
    for line in String::from_utf8(sandbox.journal_bytes("s")).unwrap().lines() {
        assert!(!line.contains(":null"), "{line}");
    }
    let records = sandbox.journal("s");
    assert!(
        records
            .iter()
            .filter(|record| record["kind"] == "admitted")
            .all(|record| record["policy_sha256"].is_string())
    );
    let digest = sandbox.sh("sha256sum <state/policy.json").ok();
    assert_eq!(text(&records[1]["policy_sha256"]), digest.stdout.split(' ').next().unwrap());
}

#[test]
fn a_torn_tail_is_kept_and_cut_and_anything_else_is_damage() {
    let sandbox = busy();
    let ticket = sandbox.run(["admit", "s", "--turn", "t3", "--text", "Hi"]).ok().line();
    let good = sandbox.journal_bytes("s");
    let path = sandbox.journal_path("s");
    std::fs::write(&path, [&good[..], b"{\"seq\":99,\"at\":\"20"].concat()).unwrap();
    sandbox.step(&ticket, ["heartbeat"]).ok();
    let records = sandbox.journal("s");
    let repaired = &records[records.len() - 2];
    assert_eq!(
        (&repaired["kind"], &repaired["offset"], &repaired["bytes"]),
        (&json!("repaired"), &json!(good.len()), &json!(18))
    );
    let saved = std::fs::read(sandbox.root().join(text(&repaired["saved_as"]))).unwrap();
    assert_eq!(saved, b"{\"seq\":99,\"at\":\"20");
    // A whole record without its newline is kept, and the next write begins with it.
    let whole = sandbox.journal_bytes("s");
    std::fs::write(&path, &whole[..whole.len() - 1]).unwrap();
    sandbox.step(&ticket, ["heartbeat"]).ok();
    assert_eq!(&sandbox.journal_bytes("s")[..whole.len()], &whole[..]);
    // A bit in the middle of what is needed.
    let mut spoiled = sandbox.journal_bytes("s");
    let place = spoiled.len() - 200;
    spoiled[place] ^= 1;
    std::fs::write(&path, &spoiled).unwrap();
    sandbox.unchanged("s", || {
        let error = sandbox.step(&ticket, ["--json", "heartbeat"]).exits(3).error("damaged");
        assert!(error["line"].is_u64() && error["offset"].is_u64(), "{error}");
        assert_eq!(error["turns"], json!(["t2", "t3"]), "{error}");
        assert!(text(&error["hint"]).contains("--salvage"), "{error}");
    });
}

#[test]
fn a_newer_format_is_not_damage() {
    let sandbox = Sandbox::new();
    let ticket = sandbox.run(["admit", "s", "--turn", "t", "--text", "Hi"]).ok().line();
    let first = String::from_utf8(sandbox.journal_bytes("s")).unwrap();
    let genesis = first.lines().next().unwrap().replace("turnkeep/1", "turnkeep/2");
    let body = &genesis[..genesis.rfind(",\"hash\":").unwrap()];
    let sum = sandbox.program("sha256sum", [""; 0]).stdin(body).go().ok();
    let line = format!(
        "{body},\"hash\":\"{}\"}}\n{{\"something\":\"new\"}}\n",
        sum.stdout.split(' ').next().unwrap()
    );
    std::fs::write(sandbox.journal_path("s"), line).unwrap();
    sandbox.unchanged("s", || {
        let error = sandbox.step(&ticket, ["--json", "heartbeat"]).exits(12).error("other_format");
        assert_eq!(error["found"], "turnkeep/2");
        sandbox.run(["admit", "s", "--text", "Hi"]).exits(12);
    });
}
