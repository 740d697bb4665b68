//! `turnkeep admit`: a turn is accepted once, with the session file and leaf that it answers on.
//!
//! The delivery key is looked at first. Everything that can refuse has refused before the first byte is written.

use super::advice;
use super::args::{AdmitArgs, Mode, WhenBusy};
use super::become_cmd;
use super::context::{Context, WithCmd, json_option, milliseconds, nameable, read_file};
use super::desk::{self, Desk, Repeated};
use super::error::{Exit, Failure, TURN_ID_HINT};
use super::recover::{self, Recovery};
use crate::draft::Draft;
use crate::journal::{Journal, JournalError};
use crate::json::{Raw, View};
use crate::record::{
    Admitted, AdmittedTree, Attempt, Cause, Entry, Hash, Kind, Opened, Owner, Steered, TreeMode, TurnId,
};
use crate::storage::ItemKind;
use crate::tree::{self, Leaf, Tree, Writable};
use crate::treefile;
use crate::turn::next::Asker;
use crate::turn::{Retain, Session, Turn};
use std::path::Path;

/// Runs the command.
pub fn run(context: &Context, args: AdmitArgs) -> Result<Exit, Failure> {
    let with_cmd = WithCmd::of(&args.cmd);
    let owner = context.owner(&args.owner, with_cmd)?;
    become_cmd::check(&args.cmd)?;
    let input = input(context, args.text.as_deref(), args.input.as_deref())?;
    let meta = args.meta.as_deref().map(|meta| json_option("--meta", meta)).transpose()?;
    let wanted = args.turn.as_deref().map(str::parse::<TurnId>).transpose();
    let wanted = wanted.map_err(|why| Failure::usage("bad_turn_id", why).hint(TURN_ID_HINT))?;
    check_key(args.delivery.as_deref())?;
    let turn = match &wanted {
        Some(turn) => turn.clone(),
        None => context.fresh_id().parse().map_err(Failure::unexpected)?,
    };
    context.arm()?;
    let mut admission =
        Admission { context, args: &args, owner, with_cmd, input, meta, wanted, turn, tree: None };
    // An id that cannot be one is told before anything else.
    context.root.journal(&args.session)?;
    if !context.has_session(&args.session) {
        admission.check_fresh()?;
    }
    let signal = || context.signal();
    let journal = Journal::open_or_create(context.setting(&signal), &args.session)?;
    let desk = Desk::new(context, journal);
    match admission.decide(desk)? {
        Came::Fresh { turn, ticket } => admission.hand_over(&turn, &ticket),
        Came::Resume(turn) => recover::recover(context, &Recovery::resuming(&args, turn)),
        Came::Answered(exit) => Ok(exit),
    }
}

/// The input that text, a file or stdin gives; nothing is no input.
pub fn input(context: &Context, text: Option<&str>, file: Option<&Path>) -> Result<Raw, Failure> {
    let input = match (text, file) {
        (Some(text), _) => Some((text.to_owned(), true)),
        (None, Some(file)) => Some((read_file(context, file)?, false)),
        (None, None) => None,
    };
    let Some((text, plain)) = input.filter(|(text, _)| !text.trim().is_empty()) else {
        return Err(Failure::usage(
            "no_input",
            "there is no input: give --text TEXT, or a file (`-` for stdin)",
        )
        .hint("stdin is read for `-` only; nothing was written"));
    };
    if plain {
        return Ok(Raw::text(&text));
    }
    // A JSON string is the one spelling of a text that nothing can mistake.
    match View::of(&text) {
        View::String(_) => Ok(Raw::parse(&text)?),
        _ => Ok(Raw::structured_or_text(&text)?),
    }
}

/// A delivery key names a reply for the outside world.
pub fn check_key(key: Option<&str>) -> Result<(), Failure> {
    match key {
        Some(key) if key.is_empty() || key.chars().any(char::is_control) => Err(Failure::usage(
            "bad_delivery_key",
            "a delivery key is not empty and has no control characters",
        )
        .hint("give the id that the outside world has for this request; nothing was written")),
        _ => Ok(()),
    }
}

const OTHER_TURN_HINT: &str =
    "a delivery key belongs to one turn for ever: leave --turn out, or give a fresh key for a new turn";

/// What came of an admission.
enum Came {
    /// The turn has its first attempt.
    Fresh { turn: TurnId, ticket: String },
    /// It was admitted before and is gone on with.
    Resume(TurnId),
    /// There is nothing to start; the answer is given.
    Answered(Exit),
}

struct Admission<'a> {
    context: &'a Context,
    args: &'a AdmitArgs,
    owner: Option<Owner>,
    with_cmd: WithCmd,
    input: Raw,
    meta: Option<Raw>,
    wanted: Option<TurnId>,
    /// The id of the turn if it becomes a new one.
    turn: TurnId,
    /// The session file, once it was looked at.
    tree: Option<AdmissionTree>,
}

impl Admission<'_> {
    /// Refuses what can be refused before there is a journal.
    fn check_fresh(&mut self) -> Result<(), Failure> {
        self.look_at_tree()?;
        if let Some(tree) = &self.tree {
            tree.sync(self.context)?;
        }
        let opened = Opened {
            format: crate::record::FORMAT.to_owned(),
            session: self.args.session.clone(),
            id: self.context.fresh_id(),
        };
        let line_bytes_max = self.context.setting(&|| None).line_bytes_max;
        let mut draft = Draft::genesis(opened, self.context.at(), line_bytes_max)?;
        for kind in self.first_records() {
            draft.push(kind)?;
        }
        match self.context.signal() {
            Some(signal) => Err(JournalError::Signal { signal }.into()),
            None => self.check_parent(),
        }
    }

    fn look_at_tree(&mut self) -> Result<(), Failure> {
        if let (Some(path), None) = (&self.args.tree, &self.tree) {
            self.tree = Some(AdmissionTree::read(self.context, path, self.args)?);
        }
        Ok(())
    }

    fn check_parent(&self) -> Result<(), Failure> {
        self.context.check_parent(&self.args.owner, self.with_cmd, self.owner.as_ref())
    }

    fn first_records(&self) -> Vec<Kind> {
        let mut kinds = vec![self.admitted().into(), self.attempt(&self.turn).into()];
        kinds.extend(self.header_entry().map(Kind::from));
        kinds
    }

    fn decide(&mut self, mut desk: Desk<'_>) -> Result<Came, Failure> {
        if let Some(turn) = self.known(&mut desk)? {
            return self.again(desk, &turn);
        }
        if let Some(open) = desk.journal.session().and_then(Session::open).map(|turn| turn.id.clone()) {
            return self.busy(desk, &open);
        }
        self.look_at_tree()?;
        self.check_parent()?;
        self.begin(desk, &self.turn, self.first_records())
    }

    /// The turn that was admitted before under the same key or id; other input under it is a conflict.
    fn known(&self, desk: &mut Desk<'_>) -> Result<Option<TurnId>, Failure> {
        if desk.journal.session().is_none() || (self.args.delivery.is_none() && self.wanted.is_none()) {
            return Ok(None);
        }
        let loaded = desk.journal.load_all(Retain::All)?;
        let Some(session) = loaded.session else { return Ok(None) };
        let by_key = self.args.delivery.as_deref().and_then(|key| session.turn_of_key(key));
        let by_id = self.wanted.as_ref().filter(|turn| session.knows(turn));
        let id = match (by_key, by_id) {
            (Some(by_key), Some(by_id)) if by_key != by_id => {
                return Err(Failure::conflict(
                    "other_turn",
                    format!("the delivery key belongs to turn {by_key}, --turn names {by_id}"),
                )
                .hint(OTHER_TURN_HINT));
            }
            (Some(by_key), None) if self.wanted.is_some() => {
                return Err(Failure::conflict(
                    "other_turn",
                    format!("the delivery key belongs to turn {by_key}"),
                )
                .hint(OTHER_TURN_HINT));
            }
            (by_key, by_id) => by_key.or(by_id),
        };
        let Some(turn) = id.and_then(|id| session.turn(id)) else { return Ok(None) };
        let steered = self
            .args
            .delivery
            .as_deref()
            .and_then(|key| turn.steered.iter().find(|steered| steered.delivery.as_deref() == Some(key)));
        let digest = steered.map_or(turn.input_sha256.as_str().to_owned(), |steered| steered.input.sha256());
        if digest != self.input.sha256() {
            let what = match (steered, by_key) {
                (Some(_), _) => format!("a message that joined turn {} came under the same key", turn.id),
                (None, Some(_)) => format!("turn {} was admitted under the same key", turn.id),
                (None, None) => format!("turn {} was admitted before", turn.id),
            };
            return Err(Failure::conflict("other_input", format!("{what} with another input"))
                .with("turn", &turn.id)
                .hint("a delivery key, and a turn id, names one input for ever; use a fresh one for a new input"));
        }
        if by_key.is_none() && self.args.delivery.is_some() && turn.delivery_key != self.args.delivery {
            return Err(Failure::conflict(
                "other_key",
                format!("turn {} was admitted under another delivery key", turn.id),
            )
            .hint("give the key that it was admitted under, or admit a new turn under another id"));
        }
        Ok(Some(turn.id.clone()))
    }

    /// The same admission once more.
    fn again(&self, mut desk: Desk<'_>, id: &TurnId) -> Result<Came, Failure> {
        if desk.turn(id).is_some_and(|turn| turn.attempts.is_empty()) {
            // It was killed between its two records, so nobody ever had a ticket.
            self.check_parent()?;
            let header = self.args.tree_header.as_deref().map(header).transpose()?;
            let entry = |entry| Entry { turn: id.clone(), attempt: 1, entry, calls: None };
            let mut kinds = vec![self.attempt(id).into()];
            kinds.extend(header.map(|header| Kind::from(entry(header))));
            return self.begin(desk, id, kinds);
        }
        if self.args.resume && desk.turn(id).is_some() {
            return Ok(Came::Resume(id.clone()));
        }
        let loaded = desk.journal.load_all(Retain::All)?;
        let session = loaded.session.ok_or_else(|| Failure::unexpected("no session"))?;
        let turn = session.turn(id);
        let status = desk::status_of(self.context, &session, turn, &loaded.history, &desk.at, Asker::Other);
        self.context.out.note(&format!(
            "turn {id} was admitted before and is {}; next: {}",
            status.state.unwrap_or("unknown"),
            status.next.r#do
        ));
        if self.context.out.json {
            self.context.out.document(&status)?;
        } else if let Some(reply) = &status.reply {
            self.context.out.foreign(&crate::message::text_of(reply))?;
        }
        Ok(Came::Answered(Exit::AlreadyDone))
    }

    /// Another turn is open: refuse, or join it.
    fn busy(&self, mut desk: Desk<'_>, open: &TurnId) -> Result<Came, Failure> {
        let turn = desk.turn(open).cloned();
        let calls = turn.iter().flat_map(Turn::open_calls);
        let waiting: Vec<String> = calls
            .map(|call| format!("{} {} {}", call.r#ref, call.tool, crate::status::call_state(call)))
            .collect();
        let cancelled = turn.as_ref().is_some_and(|turn| turn.cancelled.is_some());
        if self.args.when_busy == WhenBusy::Reject || cancelled {
            let calls = if waiting.is_empty() { String::new() } else { format!(" ({})", waiting.join(", ")) };
            let parked = turn.as_ref().is_some_and(|turn| turn.parked.is_some());
            let (state, hint) = if parked {
                let session = advice::quoted(&self.args.session);
                let unpark = format!("`turnkeep recover {session} --unpark --by WHO --why TEXT`");
                ("parked", format!("a person looks at it first: {unpark}"))
            } else if cancelled {
                ("cancelled and not settled yet", "settle it or recover it first".to_owned())
            } else {
                let steer = "`--when-busy steer` lets the input join it";
                ("open", format!("step it, settle it or recover it first; {steer}"))
            };
            return Err(Failure::of(Exit::Busy, "turn_open", format!("turn {open} is {state}{calls}"))
                .with("turn", open)
                .hint(hint));
        }
        let steered = Steered {
            turn: open.clone(),
            delivery: self.args.delivery.clone(),
            input: self.input.clone(),
            input_sha256: digest(&self.input),
        };
        desk.update_tree(open);
        let receipt = desk.step(open, vec![steered.into()])?;
        if self.context.out.json {
            let mut status = desk.status(Some(open), Asker::Other)?;
            status.receipt = Some(receipt);
            self.context.out.document(&status)?;
        } else {
            self.context.out.document(&receipt)?;
        }
        Ok(Came::Answered(Exit::Done))
    }

    /// Records the beginning of a turn, and in `append` mode writes its input onto the tree.
    fn begin(&self, mut desk: Desk<'_>, turn: &TurnId, kinds: Vec<Kind>) -> Result<Came, Failure> {
        if let Some(tree) = &self.tree {
            tree.sync(self.context)?;
        }
        let marks = desk.record(kinds)?;
        desk.update_tree(turn);
        let mut status = desk.status(Some(turn), Asker::Owner)?;
        status.notes.extend(self.tree.as_ref().and_then(|tree| tree.refused.clone()));
        let ticket = desk.turn(turn).map(|turn| crate::status::ticket(&self.args.session, turn));
        let ticket = ticket.ok_or_else(|| Failure::unexpected("the turn is gone"))?;
        for note in &status.notes {
            self.context.out.note(note);
        }
        if self.with_cmd == WithCmd::No {
            if self.context.out.json {
                let receipt = marks.last().map(|mark| desk::receipt(mark, Repeated::No));
                self.context.out.document(&crate::status::Status {
                    ticket: Some(ticket.clone()),
                    receipt,
                    ..status
                })?;
            } else {
                self.context.out.line(&ticket)?;
            }
        }
        Ok(Came::Fresh { turn: turn.clone(), ticket })
    }

    fn hand_over(&self, _turn: &TurnId, ticket: &str) -> Result<Exit, Failure> {
        match self.with_cmd {
            WithCmd::No => Ok(Exit::Done),
            WithCmd::Yes => Err(become_cmd::exec(self.context, &self.args.cmd, &self.args.session, ticket)),
        }
    }

    fn admitted(&self) -> Admitted {
        Admitted {
            turn: self.turn.clone(),
            delivery: self.args.delivery.clone(),
            input: self.input.clone(),
            input_sha256: digest(&self.input),
            tree: self.tree.as_ref().map(|tree| tree.admitted.clone()),
            policy_sha256: self.context.policy.sha256().cloned(),
            meta: self.meta.clone(),
        }
    }

    fn attempt(&self, turn: &TurnId) -> Attempt {
        Attempt {
            turn: turn.clone(),
            attempt: 1,
            cause: Cause::Admit,
            why: None,
            owner: self.owner.clone(),
            lease_ms: self.args.owner.lease.map(milliseconds),
        }
    }

    fn header_entry(&self) -> Option<Entry> {
        let header = self.tree.as_ref()?.header.clone()?;
        Some(Entry { turn: self.turn.clone(), attempt: 1, entry: header, calls: None })
    }
}

/// The session file at admission.
struct AdmissionTree {
    admitted: AdmittedTree,
    header: Option<Raw>,
    exists: bool,
    /// Why the request that Pi would build on the leaf is refused.
    refused: Option<String>,
}

/// The id in a header line.
fn header_id(header: &Raw) -> Option<String> {
    header.view().object()?.string("id")
}

impl AdmissionTree {
    fn read(context: &Context, path: &Path, args: &AdmitArgs) -> Result<Self, Failure> {
        let (path, spelled) = nameable(path)?;
        refuse_in_root(context, &path)?;
        let tree = treefile::read(context.storage.as_ref(), &path)?;
        let mode = match args.tree_mode {
            Mode::Branch => TreeMode::Branch,
            Mode::Append => TreeMode::Append,
        };
        let header = args.tree_header.as_deref().map(header).transpose()?;
        let exists = tree.tail != tree::Tail::Empty;
        let is_folder = |path: &Path| context.kind_of(path).is_ok_and(|kind| kind == ItemKind::Dir);
        if let Some(folder) = path.parent().filter(|folder| !exists && !is_folder(folder)) {
            let text = format!("there is no folder {} to keep the session file in", folder.display());
            return Err(Failure::usage("no_folder", text).hint("make it first; nothing was written"));
        }
        let mut admitted = AdmittedTree {
            path: spelled.clone(),
            format: "pi/3".to_owned(),
            header_id: None,
            leaf: None,
            leaf_at: None,
            bytes: tree.size,
            mode,
        };
        if exists {
            if let Some((id, offset)) = leaf(&tree, args.leaf.as_deref())? {
                (admitted.leaf, admitted.leaf_at) = (Some(id), Some(offset));
            }
            tree::check_path(&tree, admitted.leaf.as_deref())?;
            admitted.header_id = tree.header.as_ref().and_then(|header| header.id.clone());
            let given = header.as_ref().and_then(header_id);
            if given.is_some() && given != admitted.header_id {
                let text = format!("{spelled} is there, and its header is not the one of --tree-header");
                return Err(Failure::conflict("other_header", text)
                    .hint("leave --tree-header out, or name the session file that has it"));
            }
            if tree.needs_newline() {
                context.out.note(&format!(
                    "the last line of {spelled} has no newline; one is written before anything is appended"
                ));
            }
            let refused = tree::sent::refused(&tree, admitted.leaf.as_deref());
            return Ok(Self { admitted, header: None, exists, refused });
        }
        if let Some(leaf) = args.leaf.as_deref().filter(|leaf| *leaf != "root") {
            return Err(no_leaf(leaf, "the session file does not exist yet"));
        }
        admitted.header_id = header.as_ref().and_then(header_id);
        Ok(Self { admitted, header, exists, refused: None })
    }

    /// The leaf that the turn answers on must not vanish in a power cut.
    fn sync(&self, context: &Context) -> Result<(), Failure> {
        if self.exists {
            Ok(treefile::sync(context.storage.as_ref(), Path::new(&self.admitted.path))?)
        } else {
            Ok(())
        }
    }
}

/// A session file inside the state root would be taken for a journal.
fn refuse_in_root(context: &Context, path: &Path) -> Result<(), Failure> {
    let real = |path: &Path| context.storage.resolve(path).unwrap_or_else(|_| path.to_owned());
    let folder = path.parent().map(real).unwrap_or_default();
    if !folder.starts_with(real(context.root.path())) {
        return Ok(());
    }
    let text = format!("{} is inside the state root, which is for journals alone", path.display());
    Err(Failure::usage("tree_in_root", text).hint("keep session files elsewhere; nothing was written"))
}

/// The entry to admit on, and where its line begins.
fn leaf(tree: &Tree, wanted: Option<&str>) -> Result<Option<(String, u64)>, Failure> {
    // Version 1 has no ids, so the version is looked at before a leaf is looked for.
    if let Writable::Older { version } | Writable::Newer { version } = tree.writable() {
        let older = version < tree::VERSION;
        let refusal = if older { tree::Refusal::Older { version } } else { tree::Refusal::Newer { version } };
        return Err(refusal.into());
    }
    let place = |index: usize| tree.entries.get(index).map(|entry| (entry.id.to_string(), entry.offset));
    match wanted {
        Some("root") => Ok(None),
        Some(id) => match tree.find(id) {
            Some(index) => Ok(place(index)),
            None => Err(no_leaf(id, "the session file has no such entry")),
        },
        None => match tree.leaf() {
            Leaf::Entry(index) => Ok(place(index)),
            Leaf::None => Ok(None),
            Leaf::Undefined { line, why } => Err(Failure::of(
                Exit::Damaged,
                "tree_damaged",
                format!("line {line}, the last of the session file, could not be a leaf: {why}"),
            )
            .hint("name the entry to admit on with --leaf")),
        },
    }
}

fn no_leaf(leaf: &str, why: &str) -> Failure {
    Failure::of(Exit::NotFound, "no_leaf", format!("there is no entry {leaf:?}: {why}"))
        .hint("`turnkeep verify ./FILE` shows the file's leaf; --leaf root admits on no entry")
}

fn header(text: &str) -> Result<Raw, Failure> {
    let header = json_option("--tree-header", text)?;
    let known = header.view().object().is_some_and(|object| {
        object.string("type").as_deref() == Some("session") && object.get("version") == Some("3")
    });
    if known {
        return Ok(header);
    }
    Err(Failure::usage("bad_header", "--tree-header is not the header of a Pi session file of version 3")
        .hint(
            r#"its line is {"type":"session","version":3,"id":…,"timestamp":…,"cwd":…}; nothing was written"#,
        ))
}

/// The digest that a record carries.
pub fn digest(raw: &Raw) -> Hash {
    crate::chain::digest(raw.get().as_bytes())
}
