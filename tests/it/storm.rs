//! A storm on the lock: thousands of processes contend for one session, half of them killed, some of them stopped.
//!
//! They take notes, claim calls and answer them, speak as the model and as a person, settle the turn, admit the next
//! one and take it over from each other. What an answered process was told must stand, under a number that nobody
//! else was told. The state root is spelled in three ways, so two spellings of one session meet.

mod judge;

use crate::kit::*;
use crate::points::{can_trace, slow};
use judge::{Act, End, Told, judge};
use serde_json::Value;
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::Mutex;
use std::time::Duration;

/// How many are started at least, and how many of them at a time.
fn crowd() -> (usize, u64) {
    if slow() { (8_000, 12) } else { (2_000, 8) }
}

/// Numbers without a pattern, the same in each run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }
}

/// What becomes of a process on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Lives,
    DiesAfter(Duration),
    StopsAfter(Duration),
    /// On entry to the k-th call of a kind: where a clock hits too seldom.
    DiesAt(&'static str, u32),
}

/// Before its write, between the write and the sync, behind the sync, and with its answer on the lips.
const DEATHS: [(&str, u32); 5] = [("write", 1), ("fdatasync", 2), ("write", 2), ("flock", 1), ("fsync", 2)];

fn fate(dice: &mut Dice, usual: Duration, traces: bool, more_must_die: bool) -> Fate {
    // Anywhere on its way; some are faster than that, and answered.
    let usual = usual.as_micros() as u64;
    let after = Duration::from_micros(dice.below(usual + 1));
    match dice.below(100) {
        0..3 => Fate::StopsAfter(after),
        3..18 if more_must_die && traces => {
            let (call, index) = dice.one_of(&DEATHS);
            Fate::DiesAt(call, index)
        }
        3..95 if more_must_die => Fate::DiesAfter(after),
        _ => Fate::Lives,
    }
}

/// What the processes are given, and how often among a hundred. `Reconcile` comes only where it is called for.
const ACTS: [(Act, u64); 9] = [
    (Act::Note, 18),
    (Act::Heartbeat, 8),
    (Act::Steer, 14),
    (Act::Claim, 22),
    (Act::Result, 22),
    (Act::Message, 8),
    (Act::Settle, 3),
    (Act::Admit, 2),
    (Act::Recover, 3),
];

fn any_act(dice: &mut Dice) -> Act {
    let mut left = dice.below(100);
    let mut acts = ACTS.iter();
    loop {
        let (act, share) = acts.next().expect("the shares are a hundred");
        match left.checked_sub(*share) {
            Some(less) => left = less,
            None => return *act,
        }
    }
}

/// What is known of those that ended: without it none would have a ticket that is good.
#[derive(Default)]
struct Known {
    ticket: String,
    /// Calls that were claimed and not answered.
    open: Vec<String>,
    /// What is to be done before anything else can be, and whether somebody is at it.
    next: Option<Act>,
    mending: bool,
    /// Too many took it over for nothing: now only a person can.
    parked: bool,
    /// What `recover` waits for a person to find out: the model never got to speak, so nobody can be told.
    held: Option<String>,
    started: usize,
    killed: usize,
    /// Those that are killed by the clock are killed before so much time is over.
    usual: Duration,
}

impl Known {
    fn act(&mut self, dice: &mut Dice) -> Act {
        let next = self.next.take();
        self.mending |= next.is_some_and(Act::gives_a_ticket);
        match next.unwrap_or_else(|| any_act(dice)) {
            Act::Result if self.open.is_empty() => Act::Claim,
            act => act,
        }
    }

    /// What comes of the end of a process, which was started with `ticket`.
    fn hears(&mut self, told: &Told, ticket: &str, code: i32) {
        self.killed += usize::from(told.end == End::Killed);
        self.mending &= !told.act.gives_a_ticket();
        if told.act == Act::Recover && told.end != End::Killed {
            self.parked = told.stderr.contains("the turn is parked");
            self.held = told.held.clone();
        }
        if told.act == Act::Claim && told.end == End::Answered {
            self.open.push(told.mark.clone());
        }
        if let Some(ticket) = &told.ticket {
            self.ticket.clone_from(ticket);
            self.open.clear();
            // Behind other claims it would have to wait for their answers.
            self.next = Some(Act::Message);
        } else if told.act == Act::Settle && told.end == End::Answered {
            self.next = Some(Act::Admit);
        } else if !self.mending && ticket == self.ticket {
            self.next = self.next.or(self.mend(told.act, code));
        }
    }

    /// What has to be done about a refusal.
    fn mend(&self, act: Act, code: i32) -> Option<Act> {
        match (act, code) {
            (Act::Recover, 10) => Some(Act::Admit),
            (Act::Recover, 14) if self.held.is_some() => Some(Act::Reconcile),
            (Act::Recover, 6 | 14) | (Act::Reconcile, _) => Some(Act::Recover),
            // Taken over or settled; a message waits for answers that may never come.
            (Act::Note | Act::Heartbeat | Act::Claim | Act::Settle | Act::Message, 5 | 6 | 8) => {
                Some(Act::Recover)
            }
            _ => None,
        }
    }
}

/// Whether the lock does what it is there for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lock {
    Whole,
    /// So slow that all are on their way together.
    Slow,
    /// As slow, and strace answers each flock without making it.
    Broken,
}

/// A command, what marks it, and the ticket that was the newest.
struct Words {
    words: Vec<String>,
    mark: String,
    ticket: String,
}

struct Storm {
    sandbox: Sandbox,
    /// One folder, spelled in three ways.
    roots: [PathBuf; 3],
    lock: Lock,
    traces: bool,
    known: Mutex<Known>,
}

impl Storm {
    fn new(lock: Lock) -> Self {
        let sandbox = Sandbox::in_memory();
        std::os::unix::fs::symlink("state", sandbox.path("linked")).unwrap();
        let roots = [sandbox.root(), "state/../state".into(), sandbox.path("linked")];
        let known = Known { usual: Duration::from_millis(5), ..Known::default() };
        Self { sandbox, roots, lock, traces: can_trace(), known: Mutex::new(known) }
    }

    /// Starts so many, and more until half of all were killed if `some_die`; answers with what they were told.
    fn of(&self, count: usize, at_a_time: u64, some_die: bool) -> Vec<Told> {
        let first = self.one(0, Act::Admit, Fate::Lives);
        assert_eq!(first.end, End::Answered, "{}", first.stderr);
        let mut told = vec![first];
        std::thread::scope(|scope| {
            let workers: Vec<_> =
                (1..=at_a_time).map(|seed| scope.spawn(move || self.worker(seed, count, some_die))).collect();
            told.extend(workers.into_iter().flat_map(|worker| worker.join().unwrap()));
        });
        told
    }

    fn worker(&self, seed: u64, count: usize, some_die: bool) -> Vec<Told> {
        let mut dice = Dice(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        let mut told = Vec::new();
        loop {
            let (number, act, fate) = {
                let mut known = self.known.lock().unwrap();
                let more_must_die = some_die && known.killed * 2 <= known.started;
                if known.started >= count && !more_must_die || known.started >= 2 * count {
                    return told;
                }
                known.started += 1;
                let act = known.act(&mut dice);
                // While nobody has a good ticket there is no contention.
                let spared = act.gives_a_ticket() && dice.below(4) > 0;
                let fate = match some_die {
                    true => fate(&mut dice, known.usual, self.traces, more_must_die && !spared),
                    false => Fate::Lives,
                };
                (known.started, act, fate)
            };
            told.push(self.one(number, act, fate));
        }
    }

    fn words(&self, number: usize, act: Act) -> Words {
        let mark = format!("{act:?}-{number}").to_lowercase();
        let file = format!("marks/{mark}");
        let (ticket, call, parked) = {
            let mut known = self.known.lock().unwrap();
            let call = match act {
                Act::Result => known.open.pop(),
                Act::Reconcile => known.held.take(),
                _ => None,
            };
            (known.ticket.clone(), call.unwrap_or_else(|| "none".to_owned()), known.parked)
        };
        let unpark: &[&str] = if parked { &["--unpark", "--by", "ann"] } else { &[] };
        let step = ["step", "--ticket", &ticket, "--wait", "50"];
        let own = ["--text", &mark, "--delivery", &mark];
        let words = match act {
            Act::Note => [&step[..], &["note", &file]].concat(),
            Act::Heartbeat => [&step[..], &["heartbeat"]].concat(),
            Act::Steer => [&["step", "--wait", "50", "steer", "--session", "s"][..], &own].concat(),
            Act::Claim => [&step[..], &["claim", &mark, "--tool", "curl"]].concat(),
            Act::Result => [&step[..], &["result", &call, &file]].concat(),
            Act::Message => [&step[..], &["message", &file]].concat(),
            Act::Settle => [&step[..], &["settle", "--status", "failed", "--reason", &mark]].concat(),
            Act::Admit => {
                [&["--wait", "50", "--json", "admit", "s", "--turn", &mark, "--owner-pid", "none"][..], &own]
                    .concat()
            }
            Act::Recover => [
                &["--wait", "50", "--json", "recover", "s", "--owner-pid", "none"][..],
                &["--force", "--why", &mark],
                unpark,
            ]
            .concat(),
            Act::Reconcile => {
                let found = ["--session", "s", "--by", "ann", "--outcome", "unknown", "--receipt", &mark];
                [&["step", "--wait", "50", "reconcile", &call][..], &found].concat()
            }
        };
        let said = if act == Act::Message { assistant(&mark, &[]).to_string() } else { mark.clone() };
        self.sandbox.write(&file, said);
        let words = words.into_iter().map(str::to_owned).collect();
        Words { words, mark, ticket }
    }

    /// The options of strace, if the process needs one.
    fn traced(&self, fate: Fate) -> Option<Vec<String>> {
        let slow = "write:delay_enter=5000";
        let inject = match (self.lock, fate) {
            (Lock::Whole, Fate::DiesAt(call, index)) => vec![format!("{call}:signal=KILL:when={index}")],
            (Lock::Whole, _) => return None,
            (Lock::Slow, _) => vec![slow.to_owned()],
            (Lock::Broken, _) => vec![slow.to_owned(), "flock:retval=0".to_owned()],
        };
        let calls: Vec<&str> = inject.iter().filter_map(|what| Some(what.split_once(':')?.0)).collect();
        let mut options = vec![
            "-o".to_owned(),
            "/dev/null".to_owned(),
            "-e".to_owned(),
            format!("trace={}", calls.join(",")),
        ];
        for what in inject {
            options.extend(["-e".to_owned(), format!("inject={what}")]);
        }
        Some(options)
    }

    fn one(&self, number: usize, act: Act, fate: Fate) -> Told {
        let Words { words, mark, ticket } = self.words(number, act);
        let mut command = match self.traced(fate) {
            Some(options) => {
                let mut command = Command::new("strace");
                command.args(options).arg(bin());
                command
            }
            None => Command::new(bin()),
        };
        command.args(words).current_dir(self.sandbox.dir()).env_clear();
        command.env("TURNKEEP_ROOT", &self.roots[number % self.roots.len()]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let output = lives_or_dies(command, fate);
        let (told, code) = told(act, mark, output);
        let mut known = self.known.lock().unwrap();
        if let Fate::DiesAfter(_) = fate {
            // So that three of four die, whatever the machine and the crowd are like.
            known.usual = match told.end {
                End::Killed => known.usual * 17 / 16,
                _ => known.usual * 13 / 16,
            };
        }
        known.hears(&told, &ticket, code);
        told
    }
}

fn lives_or_dies(mut command: Command, fate: Fate) -> Output {
    let mut child = command.spawn().unwrap();
    match fate {
        Fate::Lives | Fate::DiesAt(..) => {}
        Fate::DiesAfter(after) => {
            std::thread::sleep(after);
            child.kill().unwrap();
        }
        Fate::StopsAfter(after) => {
            std::thread::sleep(after);
            // It may be over; nobody else has its number before it is waited for.
            signal(child.id(), "STOP");
            std::thread::sleep(Duration::from_millis(30));
            signal(child.id(), "CONT");
        }
    }
    child.wait_with_output().unwrap()
}

/// What a process was told, and its exit code.
fn told(act: Act, mark: String, output: Output) -> (Told, i32) {
    let code = output.status.code().unwrap_or_else(|| 128 + output.status.signal().unwrap());
    let end = match code {
        0 => End::Answered,
        137 => End::Killed,
        4 | 5 | 6 | 8 | 10 | 14 => End::Refused,
        code => End::Other(code),
    };
    let answer = answer(&output.stdout);
    let held = answer.as_ref().filter(|answer| answer["next"]["do"] == "reconcile");
    let held = held.map(|answer| text(&answer["next"]["refs"][0]));
    let answer = answer.filter(|_| end != End::Refused);
    let receipt = answer.as_ref().and_then(|answer| {
        // A recover tells only its head, which is its own record.
        let head = answer.get("receipt").or_else(|| answer.get("head")).unwrap_or(answer);
        Some((head["seq"].as_u64()?, text(&head["hash"])))
    });
    let ticket = answer.and_then(|answer| Some(answer["ticket"].as_str()?.to_owned()));
    // The status of a turn that nobody can take is no answer of a record.
    let receipt = receipt.filter(|_| act != Act::Recover || ticket.is_some());
    (Told { act, mark, end, receipt, ticket, held, stderr: string(output.stderr) }, code)
}

/// The document on stdout. Half a line is no answer.
fn answer(stdout: &[u8]) -> Option<Value> {
    serde_json::from_slice(stdout.strip_suffix(b"\n")?).ok()
}

/// What the journal of a storm says, also where it is damaged.
fn readable(storm: &Storm) -> Vec<Value> {
    let bytes = storm.sandbox.journal_bytes("s");
    bytes.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok()).collect()
}

#[test]
fn no_number_is_told_twice_and_no_record_lost() {
    let storm = Storm::new(Lock::Whole);
    let (count, at_a_time) = crowd();
    let mut told = storm.of(count, at_a_time, true);
    // The last of them may have been killed in the middle of its write.
    for act in [Act::Settle, Act::Recover, Act::Admit] {
        told.push(storm.one(told.len(), act, Fate::Lives));
    }
    storm.sandbox.run(["verify", "s"]).ok();
    let journal = storm.sandbox.journal("s");
    let wrong = judge(&told, &journal);
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
    let ended = |end: End| told.iter().filter(|told| told.end == end).count();
    let (answered, killed, refused) = (ended(End::Answered), ended(End::Killed), ended(End::Refused));
    let written = judge::written(&journal);
    let untold = |told: &&Told| told.receipt.is_none() && written.contains(told.mark.as_str());
    let untold = told.iter().filter(untold).count();
    eprintln!(
        "{} processes: {answered} answered, {refused} refused, {killed} killed, {untold} of these behind their write",
        told.len()
    );
    // Those that were on their way when it was enough may have lived.
    assert!((killed + at_a_time as usize) * 2 >= told.len(), "only {killed} of {} were killed", told.len());
    assert!(answered * 5 >= count, "only {answered} of {} were answered", told.len());
    assert!(!storm.traces || untold > 0, "nobody was killed between its write and its answer");
    let answered = |act: Act| told.iter().filter(|told| told.act == act && told.end == End::Answered).count();
    for (act, _) in ACTS {
        assert!(answered(act) * 500 >= count, "{act:?} was answered only {} times", answered(act));
    }
    assert!(answered(Act::Reconcile) > 0, "no held call was reconciled");
}

/// What the judge says of a storm in which nobody is killed.
fn judged(lock: Lock) -> Vec<String> {
    let storm = Storm::new(lock);
    let told = storm.of(60, 8, false);
    judge(&told, &readable(&storm))
}

/// The storm would show it: where flock is answered and not made, numbers are told twice, and only there.
#[test]
fn a_lock_that_does_not_lock_is_found() {
    if !can_trace() {
        return;
    }
    assert_eq!(judged(Lock::Slow), Vec::<String>::new());
    // Which of two writers wins is up to the kernel: one storm may lose nothing.
    let wrong: Vec<String> = (0..5).flat_map(|_| judged(Lock::Broken)).collect();
    let wrong = wrong.join("\n");
    eprintln!("without a lock:\n{wrong}");
    assert!(wrong.contains(" was told to "), "no number is told twice without a lock: {wrong}");
    assert!(wrong.contains(" has the number "), "no number stands twice without a lock: {wrong}");
}

/// Whoever has the journal open and locked, and then starts turnkeep, shuts himself out: it does not take the lock
/// that it inherited for its own.
#[test]
fn an_inherited_lock_is_not_ours() {
    let sandbox = Sandbox::new();
    if !sandbox.has("flock") {
        eprintln!("skipped: there is no flock(1) here");
        return;
    }
    let owner = Owner::start();
    let ticket = sandbox.admit(&owner, "s", &["--turn", "t1"]);
    let journal = sandbox.journal_path("s");
    let script = format!(
        "exec 9>>'{}'; flock 9; turnkeep --wait 0 step --ticket {ticket} heartbeat; code=$?; exec 9>&-; exit $code",
        journal.display()
    );
    sandbox.unchanged("s", || sandbox.sh(&script).exits(4).says("is locked by"));
    // Open and not locked, it is in nobody's way.
    let script = format!("turnkeep step --ticket {ticket} heartbeat 9>>'{}'", journal.display());
    sandbox.sh(&script).ok();
    sandbox.run(["verify", "s"]).ok();
}

/// A tool that lives on, in the background and with every stream open, keeps neither the lock nor a descriptor.
#[test]
fn a_tool_inherits_no_descriptor() {
    let sandbox = Sandbox::new();
    let owner = Owner::start();
    let ticket = sandbox.admit(&owner, "s", &["--turn", "t1"]);
    let tool = sandbox
        .script("tool.sh", "ls -l /proc/self/fd; sleep 1000 >/dev/null 2>&1 </dev/null & echo $! >left");
    let ran = sandbox.step(&ticket, ["run", "--tool", "sh", "one", "--", tool.to_str().unwrap()]).ok();
    let left = std::fs::read_to_string(sandbox.path("left")).unwrap();
    let left: u32 = left.trim().parse().unwrap();
    let open = |pid: u32| -> Vec<String> {
        let files = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
        files.map(|file| std::fs::read_link(file.unwrap().path()).unwrap().display().to_string()).collect()
    };
    let held = open(left);
    signal(left, "KILL");
    assert!(!ran.stdout.contains("/state/"), "{}", ran.stdout);
    assert!(held.iter().all(|path| !path.contains("/state/")), "{held:?}");
    sandbox.cmd(["--wait", "0", "step", "--ticket", &ticket, "heartbeat"]).go().ok();
}
