//! Sessions, turns, messages and trees for tests, tersely.
//!
//! A [`Kit`] holds a draft and pushes records of one turn, `t1`, onto it; whatever it does not say is as plain as can
//! be. Tools are named by their policy: `safe`, `keyed`, `never`, `hold`, `ask`, `safe_ask`, `keyed_ask`. Processes
//! live if the kit's world says so; nothing here looks at the system.

use crate::chain::{self, call_key};
use crate::draft::Draft;
use crate::json::Raw;
use crate::message::{self, Format};
use crate::policy::Policy;
use crate::record::{self, *};
use crate::recovery::{self, CloseCalls, Plan, Refusal, Request, Surroundings};
use crate::tree::{self, Tree};
use crate::turn::decide::{Now, Sighting};
use crate::turn::next::{self, Asker, BranchState, Next};
use crate::turn::{Call, Mark, Retain, Session, Turn};

/// The policy that tools of a kit are named by.
pub(crate) const POLICY: &str = r#"{"format":"turnkeep-policy/1","rules":[
    {"tool":"safe","replay":"safe"},
    {"tool":"keyed","replay":"keyed"},
    {"tool":"never","replay":"never"},
    {"tool":"hold","replay":"never","unknown":"hold"},
    {"tool":"ask","replay":"never","approval":"required"},
    {"tool":"safe_ask","replay":"safe","approval":"required"},
    {"tool":"keyed_ask","replay":"keyed","approval":"required"}]}"#;

/// Offset of the first second of a kit's world, in microseconds since 1970.
const NOON: i64 = 1_795_953_600_000_000;

/// A policy from its text.
pub(crate) fn policy(text: &str) -> Policy {
    Policy::parse(text.as_bytes(), "test").expect("a policy")
}

/// A policy with one rule.
pub(crate) fn rule_for(tool: &str, replay: Replay, approval: bool, hold: bool) -> Policy {
    let approval = if approval { r#","approval":"required""# } else { "" };
    let hold = if hold { r#","unknown":"hold""# } else { "" };
    policy(&format!(
        r#"{{"format":"turnkeep-policy/1","rules":[{{"tool":"{tool}","replay":"{replay}"{approval}{hold}}}]}}"#
    ))
}

/// The moment `seconds` into the world of a kit.
pub(crate) fn at(seconds: i64) -> At {
    At::from_micros(NOON + seconds * 1_000_000)
}

/// A turn id.
pub(crate) fn turn_id(id: &str) -> TurnId {
    id.parse().expect("a turn id")
}

/// A JSON body.
pub(crate) fn raw(text: &str) -> Raw {
    Raw::parse(text).expect("JSON")
}

/// A call's name.
pub(crate) fn call(name: &str) -> CallRef {
    name.parse().expect("a ref")
}

/// A process. Those from 9000 on are elsewhere, and nobody can look at them.
pub(crate) fn process(pid: u64) -> Owner {
    Owner {
        pid,
        started: 7,
        boot: "b-1".to_owned(),
        pidns: 1,
        host: "h-1".to_owned(),
        cmd: "./driver.sh".to_owned(),
    }
}

/// A Pi message of a model: its text, its stop reason and its calls, each `id:tool`.
pub(crate) fn model(text: &str, stop: &str, calls: &[&str]) -> String {
    let mut content = vec![format!(r#"{{"type":"text","text":"{text}"}}"#)];
    content.extend(calls.iter().map(|call| {
        let (id, tool) = call.split_once(':').expect("id:tool");
        format!(r#"{{"type":"toolCall","id":"{id}","name":"{tool}","arguments":{{"of":"{id}"}}}}"#)
    }));
    format!(r#"{{"role":"assistant","content":[{}],"stopReason":"{stop}","timestamp":9}}"#, content.join(","))
}

/// A Pi tool-result message.
pub(crate) fn tool_result(id: &str, text: &str) -> String {
    format!(
        r#"{{"role":"toolResult","toolCallId":"{id}","toolName":"x","content":[{{"type":"text","text":"{text}"}}],"isError":false,"timestamp":9}}"#
    )
}

/// A Pi user message.
pub(crate) fn user(text: &str) -> String {
    format!(r#"{{"role":"user","content":[{{"type":"text","text":"{text}"}}],"timestamp":9}}"#)
}

/// A Pi entry around a message.
pub(crate) fn entry(id: &str, parent: &str, message: &str) -> String {
    let parent = if parent == "null" { parent.to_owned() } else { format!("\"{parent}\"") };
    format!(
        r#"{{"type":"message","id":"{id}","parentId":{parent},"timestamp":"2026-11-29T15:30:00.000Z","message":{message}}}"#
    )
}

/// A Pi entry of another type, with further members.
pub(crate) fn other_entry(kind: &str, id: &str, parent: &str, members: &str) -> String {
    format!(
        r#"{{"type":"{kind}","id":"{id}","parentId":"{parent}","timestamp":"2026-11-29T15:30:00.000Z"{members}}}"#
    )
}

/// The bytes of a session file.
#[derive(Debug, Clone, Default)]
pub(crate) struct File(pub(crate) String);

impl File {
    /// A file with a header and two messages, of which `a2` is the leaf.
    pub(crate) fn new() -> Self {
        let mut file = Self::default();
        file.add(
            r#"{"type":"session","version":3,"id":"pi-1","timestamp":"2026-11-29T15:00:00.000Z","cwd":"/"}"#,
        );
        file.add(&entry("a1", "null", &user("hi")));
        file.add(&entry("a2", "a1", &model("hello", "stop", &[])));
        file
    }

    /// Adds a line.
    pub(crate) fn add(&mut self, line: &str) {
        self.0.push_str(line);
        self.0.push('\n');
    }

    /// The file as a tree.
    pub(crate) fn tree(&self) -> Tree {
        tree::read(self.0.clone())
    }

    /// Does what a plan says.
    pub(crate) fn write(&mut self, plan: &crate::branch::Plan) {
        for line in &plan.write {
            self.add(line.get());
        }
    }

    /// What stands on the path to the last line behind `leaf`, short: `role:text`, or the type of an entry.
    pub(crate) fn branch_behind(&self, leaf: &str) -> Vec<String> {
        let tree = self.tree();
        let Some(last) = tree.last_entry() else { return Vec::new() };
        let path = tree.path(last).entries;
        let from = path.iter().position(|index| &*tree.entries[*index].id == leaf).map_or(0, |at| at + 1);
        path[from..].iter().map(|index| short(&tree, *index)).collect()
    }

    /// Ids of all lines behind the first `lines`.
    pub(crate) fn ids_behind(&self, lines: usize) -> Vec<String> {
        self.tree()
            .entries
            .iter()
            .filter(|entry| entry.line > lines)
            .map(|entry| entry.id.to_string())
            .collect()
    }
}

fn short(tree: &Tree, index: usize) -> String {
    let Some(message) = tree.message(index) else { return tree.entries[index].kind.to_string() };
    let message = raw(message);
    let meaning = message::meaning(Format::Pi, &message).expect("a message");
    let about = meaning.answers.first().map(|answer| format!("({})", answer.call_id)).unwrap_or_default();
    format!("{}{about}:{}", meaning.role_word, meaning.text.lines().next().unwrap_or_default())
}

/// A session with one turn in the making.
#[derive(Clone)]
pub(crate) struct Kit {
    /// The records so far.
    pub(crate) draft: Draft,
    /// The turn that records are about.
    pub(crate) turn: TurnId,
    /// The policy in force.
    pub(crate) policy: Policy,
    /// Processes that live.
    pub(crate) living: Vec<u64>,
}

impl Kit {
    /// A session without a turn.
    pub(crate) fn empty() -> Self {
        let opened = Opened {
            format: FORMAT.to_owned(),
            session: "room".to_owned(),
            id: "01934c5e-0000-7000-8000-00000000002a".to_owned(),
        };
        let draft = Draft::genesis(opened, at(0), 1 << 20).expect("a genesis");
        Self { draft, turn: turn_id("t1"), policy: policy(POLICY), living: Vec::new() }
    }

    /// A session with an open turn: seq 1 `admitted`, seq 2 its first attempt, held by process 4001.
    pub(crate) fn new() -> Self {
        let mut kit = Self::empty();
        kit.push(kit.admitted("go"));
        kit.push(kit.attempt(1));
        kit
    }

    /// The same with a delivery key, `k1`.
    pub(crate) fn with_key() -> Self {
        let mut kit = Self::empty();
        kit.push(Admitted { delivery: Some("k1".to_owned()), ..kit.admitted("go") });
        kit.push(kit.attempt(1));
        kit
    }

    /// The same admitted on a file.
    pub(crate) fn on(file: &File, mode: TreeMode) -> Self {
        let mut kit = Self::empty();
        kit.push(kit.admitted_on(file, mode, "go"));
        kit.push(kit.attempt(1));
        kit
    }

    // Records.

    pub(crate) fn admitted(&self, input: &str) -> Admitted {
        let input = Raw::text(input);
        Admitted {
            turn: self.turn.clone(),
            delivery: None,
            input_sha256: crate::chain::digest(input.get().as_bytes()),
            input,
            tree: None,
            policy_sha256: None,
            meta: None,
        }
    }

    pub(crate) fn admitted_on(&self, file: &File, mode: TreeMode, input: &str) -> Admitted {
        let tree = file.tree();
        let leaf = tree.last_entry().map(|last| &tree.entries[last]);
        let admitted = AdmittedTree {
            path: "/home/user/chat.jsonl".to_owned(),
            format: "pi/3".to_owned(),
            header_id: tree.header.as_ref().and_then(|header| header.id.clone()),
            leaf: leaf.map(|leaf| leaf.id.to_string()),
            leaf_at: leaf.map(|leaf| leaf.offset),
            bytes: file.0.len() as u64,
            mode,
        };
        Admitted { tree: Some(admitted), ..self.admitted(input) }
    }

    /// Attempt N, held by process 4000 + N: the first of an admission, later ones of a recover.
    pub(crate) fn attempt(&self, number: u64) -> Attempt {
        Attempt {
            turn: self.turn.clone(),
            attempt: number,
            cause: if number == 1 { Cause::Admit } else { Cause::Recover },
            why: None,
            owner: Some(process(4000 + number)),
            lease_ms: None,
        }
    }

    /// The decisions of a recovery; open calls that are not named are on hold.
    pub(crate) fn recovered(&self, decisions: &[(CallRef, Decision)]) -> Recovered {
        let named = |call: &Call| decisions.iter().any(|(r#ref, _)| *r#ref == call.r#ref);
        let open = self.session().turn(&self.turn).into_iter().flat_map(Turn::open_calls);
        let held = open.filter(|call| !named(call)).map(|call| (call.r#ref, Decision::Hold));
        let all: Vec<(CallRef, Decision)> = decisions.iter().copied().chain(held).collect();
        self.recovered_only(&all)
    }

    pub(crate) fn recovered_only(&self, decisions: &[(CallRef, Decision)]) -> Recovered {
        let decisions = decisions.iter().map(|(r#ref, decision)| Decided {
            r#ref: *r#ref,
            decision: *decision,
            why: "-".to_owned(),
            replay_stored: self.at_ref(*r#ref).map_or(Replay::Never, |call| call.replay),
            replay_now: self.at_ref(*r#ref).map_or(Replay::Never, |call| call.replay),
        });
        let (turn, attempt) = (self.turn.clone(), self.number());
        Recovered { turn, attempt, decisions: decisions.collect(), branch: None }
    }

    pub(crate) fn message(&self, body: &str) -> record::Message {
        self.message_of(Format::Pi, body)
    }

    pub(crate) fn message_of(&self, format: Format, body: &str) -> record::Message {
        let message = raw(body);
        let meaning = message::meaning(format, &message).expect("a message");
        let calls =
            recovery::intents(self.session(), &self.turn, self.draft.next_seq(), &meaning, &self.policy);
        record::Message {
            turn: self.turn.clone(),
            attempt: self.number(),
            format: format.to_string(),
            role: meaning.role_word,
            message,
            calls: (!calls.is_empty()).then_some(calls),
        }
    }

    pub(crate) fn entry(&self, line: &str) -> record::Entry {
        recovery::entry_record(&self.draft, &self.turn, &raw(line), &self.policy)
    }

    pub(crate) fn intent(&self, id: &str, tool: &str, parent: Option<CallRef>) -> Intent {
        let r#ref = CallRef { seq: self.draft.next_seq(), position: 0 };
        let args = raw("{}");
        let rule = self.policy.classify(tool, args.get());
        Intent {
            turn: self.turn.clone(),
            attempt: self.number(),
            id: id.to_owned(),
            tool: tool.to_owned(),
            args_sha256: crate::chain::digest(args.get().as_bytes()),
            args,
            replay: rule.replay,
            approval: rule.approval,
            unknown: rule.unknown,
            key: call_key(&self.session().genesis, &self.turn, r#ref),
            parent,
        }
    }

    pub(crate) fn claimed(&self, r#ref: CallRef) -> Claimed {
        let key = call_key(&self.session().genesis, &self.turn, r#ref);
        Claimed { turn: self.turn.clone(), attempt: self.number(), r#ref, key, link: None, runner: None }
    }

    pub(crate) fn run_by(&self, r#ref: CallRef, pid: u64) -> Claimed {
        Claimed { runner: Some(process(pid)), ..self.claimed(r#ref) }
    }

    pub(crate) fn result(&self, r#ref: CallRef, content: &str) -> Outcome {
        Outcome {
            turn: self.turn.clone(),
            attempt: self.number(),
            r#ref,
            error: false,
            content: Some(Raw::text(content)),
            exit: None,
            signal: None,
            stdout: None,
            stderr: None,
            truncated: None,
            output_sha256: None,
            duration_ms: None,
        }
    }

    pub(crate) fn interrupted(&self, r#ref: CallRef) -> Interrupted {
        let (turn, attempt) = (self.turn.clone(), self.number());
        Interrupted { turn, attempt, r#ref, explanation: "unknown".to_owned(), output_so_far: None }
    }

    pub(crate) fn not_run(&self, r#ref: CallRef, why: NotRunWhy) -> NotRun {
        let (turn, attempt) = (self.turn.clone(), self.number());
        NotRun { turn, attempt, r#ref, why, explanation: "not run".to_owned() }
    }

    pub(crate) fn dispatched(&self, r#ref: CallRef, receipt: Option<&str>) -> Dispatched {
        Dispatched {
            turn: self.turn.clone(),
            attempt: self.number(),
            r#ref,
            to: "farm".to_owned(),
            receipt: receipt.map(Raw::text),
        }
    }

    pub(crate) fn approval(&self, r#ref: CallRef, decision: ApprovalDecision) -> Approval {
        let turn = self.turn.clone();
        Approval { turn, r#ref, decision, by: "ann".to_owned(), expires: None, reason: None }
    }

    pub(crate) fn reconciled(&self, r#ref: CallRef, outcome: ReconciledOutcome) -> Reconciled {
        let content = (outcome == ReconciledOutcome::Applied).then(|| Raw::text("it happened"));
        Reconciled { turn: self.turn.clone(), r#ref, outcome, by: "ann".to_owned(), receipt: None, content }
    }

    pub(crate) fn straggler(&self, r#ref: Option<CallRef>, attempt: u64) -> Straggler {
        let (content, why) = (Raw::text("late"), "late".to_owned());
        Straggler { turn: self.turn.clone(), attempt, r#ref, content, why }
    }

    pub(crate) fn steered(&self, text: &str, delivery: Option<&str>) -> Steered {
        let input = Raw::text(text);
        Steered {
            turn: self.turn.clone(),
            delivery: delivery.map(str::to_owned),
            input_sha256: crate::chain::digest(input.get().as_bytes()),
            input,
        }
    }

    pub(crate) fn cancelled(&self) -> Cancelled {
        Cancelled { turn: self.turn.clone(), by: "ann".to_owned(), reason: None }
    }

    pub(crate) fn settled(&self, status: SettledStatus, reply: Option<&str>) -> Settled {
        let (turn, attempt) = (self.turn.clone(), self.number());
        Settled { turn, attempt, status, reply: reply.map(Raw::text), reason: None }
    }

    pub(crate) fn delivery(&self, state: DeliveryState) -> Delivery {
        Delivery {
            turn: self.turn.clone(),
            attempt: self.number(),
            state,
            key: "k1".to_owned(),
            receipt: None,
            by: None,
            why: None,
            runner: None,
        }
    }

    pub(crate) fn parked(&self) -> Parked {
        Parked { turn: self.turn.clone(), why: "enough".to_owned(), by: "turnkeep".to_owned() }
    }

    pub(crate) fn unparked(&self) -> Unparked {
        Unparked { turn: self.turn.clone(), why: "again".to_owned(), by: "ann".to_owned() }
    }

    pub(crate) fn heartbeat(&self, lease_ms: u64) -> Heartbeat {
        Heartbeat { turn: self.turn.clone(), attempt: self.number(), lease_ms }
    }

    pub(crate) fn note(&self, attempt: u64) -> Note {
        Note { turn: self.turn.clone(), attempt, content: Raw::text("by the way") }
    }

    // What is done with them.

    /// Adds a record, which has to be legal.
    pub(crate) fn push(&mut self, kind: impl Into<Kind>) -> Mark {
        self.draft.push(kind).expect("a legal record")
    }

    /// Adds a record, which has to be illegal and change nothing; says why.
    pub(crate) fn refuse(&mut self, kind: impl Into<Kind>) -> String {
        let before = (format!("{:?}", self.draft.session), self.draft.bytes.len(), self.draft.history.len());
        let error = self.draft.push(kind).expect_err("an illegal record");
        let after = (format!("{:?}", self.draft.session), self.draft.bytes.len(), self.draft.history.len());
        assert_eq!(before, after, "an error changes nothing");
        error.to_string()
    }

    /// A model's message with calls, each `id:tool`; the names of the calls.
    pub(crate) fn ask(&mut self, calls: &[&str]) -> Vec<CallRef> {
        let stop = if calls.is_empty() { "stop" } else { "toolUse" };
        let mark = self.push(self.message(&model("working", stop, calls)));
        (0..calls.len() as u64).map(|position| CallRef { seq: mark.seq, position }).collect()
    }

    /// A model's message with one call.
    pub(crate) fn ask_one(&mut self, tool: &str) -> CallRef {
        self.ask(&[&format!("c:{tool}")])[0]
    }

    /// A model's last words.
    pub(crate) fn say(&mut self, text: &str) -> Mark {
        self.push(self.message(&model(text, "stop", &[])))
    }

    pub(crate) fn claim(&mut self, r#ref: CallRef) -> Mark {
        self.push(self.claimed(r#ref))
    }

    pub(crate) fn answer(&mut self, r#ref: CallRef, content: &str) -> Mark {
        self.push(self.result(r#ref, content))
    }

    /// The owner dies and a recover that decides so is complete.
    pub(crate) fn recover(&mut self, decisions: &[(CallRef, Decision)]) {
        self.push(self.attempt(self.number() + 1));
        self.push(self.recovered(decisions));
    }

    // What is there.

    pub(crate) fn session(&self) -> &Session {
        &self.draft.session
    }

    /// The session that the same bytes give a reader who lost the records of these numbers, or why a record behind
    /// them cannot be.
    pub(crate) fn reread(&self, retain: Retain, lost: &[u64]) -> Result<Session, String> {
        let mut session: Option<Session> = None;
        let mut offset = 0;
        for line in self.draft.bytes.split_inclusive(|byte| *byte == b'\n') {
            let record = chain::decode(&line[..line.len() - 1]).expect("a record");
            match &mut session {
                None => session = Some(Session::begin("room".to_owned(), &record, retain)),
                Some(session) if lost.contains(&record.seq) => session.pass_damage(offset),
                Some(session) => session.apply(&record, offset).map_err(|error| error.to_string())?,
            }
            offset += line.len() as u64;
        }
        Ok(session.expect("a genesis"))
    }

    pub(crate) fn turn(&self) -> &Turn {
        self.session().turn(&self.turn).expect("the turn")
    }

    pub(crate) fn at_ref(&self, r#ref: CallRef) -> Option<&Call> {
        self.session().turn(&self.turn)?.call(r#ref)
    }

    pub(crate) fn number(&self) -> u64 {
        self.session().turn(&self.turn).map_or(0, Turn::current_number)
    }

    /// Looks at the world of this kit at a moment.
    pub(crate) fn now<T>(&self, seconds: i64, look: impl FnOnce(&Now<'_>) -> T) -> T {
        let sight = |owner: &Owner| match owner.pid {
            9000.. => Sighting::Elsewhere,
            pid if self.living.contains(&pid) => Sighting::Alive,
            _ => Sighting::Gone,
        };
        look(&Now { at: at(seconds), policy: &self.policy, look: &sight })
    }

    pub(crate) fn decision(&self, r#ref: CallRef) -> Decision {
        let call = self.at_ref(r#ref).expect("the call");
        self.now(0, |now| crate::turn::decide::rule(self.turn(), call, now).decision)
    }

    pub(crate) fn next(&self, asker: Asker) -> Next {
        self.next_at(0, BranchState::UpToDate, asker)
    }

    pub(crate) fn next_at(&self, seconds: i64, branch: BranchState, asker: Asker) -> Next {
        self.now(seconds, |now| next::next(self.session().turn(&self.turn), now, branch, asker))
    }

    /// Plans a recovery on behalf of process 5000, at noon.
    pub(crate) fn plan(&self, file: Option<&File>) -> Result<Plan, Refusal> {
        self.plan_as(file, &asked_by(5000), 0)
    }

    pub(crate) fn plan_as(
        &self,
        file: Option<&File>,
        request: &Request,
        seconds: i64,
    ) -> Result<Plan, Refusal> {
        let tree = file.map(File::tree);
        let mut draft = self.draft.clone();
        draft.bytes.clear();
        draft.at = at(seconds);
        self.now(seconds, |now| {
            let now = Now { at: now.at.clone(), policy: now.policy, look: now.look };
            let around = Surroundings { now, tree: tree.as_ref(), output_so_far: &|_| None };
            recovery::plan(draft.clone(), &self.turn, request, &around)
        })
    }

    /// Carries a plan out.
    pub(crate) fn carry_out(&mut self, plan: &Plan, file: Option<&mut File>) {
        self.draft = plan.draft.clone();
        let (Some(branch), Some(file)) = (&plan.branch, file) else { return };
        if let Some(header) = &plan.header {
            file.add(header.get());
        }
        file.write(branch);
    }
}

/// A request of a process.
pub(crate) fn asked_by(pid: u64) -> Request {
    Request {
        owner: Some(process(pid)),
        lease_ms: None,
        force: None,
        calls: CloseCalls::No,
        onto: recovery::Onto::Admission,
        unpark: None,
        tree_path: None,
    }
}
