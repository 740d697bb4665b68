//! The loops: every operation of every command of a workload, and every way in which it goes wrong.

use super::model;
use super::script::{self, Act, Script, with_ticket};
use super::world::{self, Ack, Came, Front, Trouble, changes};
use crate::cli::error::Exit;
use crate::storage::{MemoryStorage, OpKind, Prefixes, Remains};
use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};

/// How much is looped over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Reach {
    /// Every how many-th point is taken.
    pub(super) stride: usize,
    /// The same of the points inside the recover that follows a fault; none where there is 0.
    pub(super) inner_stride: usize,
    /// Of the operations inside that recover that change nothing, every how many-th goes wrong.
    pub(super) inner_reads: usize,
    /// Behind every how many-th point a power cut leaves each beginning of an unsynced write, and not only some; behind
    /// none where there is 0. The recover that follows is looped over for some of them alone.
    pub(super) each_prefix: usize,
    /// The loops end when each of these was said; without any they go through to the end.
    pub(super) until: &'static [&'static str],
}

/// Loops over a workload and keeps what was found.
pub(super) struct Loop<'a> {
    front: Front<'a>,
    reach: Reach,
    seen: HashSet<u64>,
    nested: HashSet<u64>,
    /// Operations at which something went wrong.
    pub(super) points: usize,
    /// The same inside a recover behind a fault.
    pub(super) inner_points: usize,
    /// Distinct disks that were recovered and compared.
    pub(super) disks: usize,
    /// What was not as it must be.
    pub(super) problems: Vec<String>,
}

/// One command of a workload and how everything stood before it.
struct Stage {
    words: Vec<String>,
    disk: MemoryStorage,
    clock: i64,
    acked: Vec<Ack>,
    kinds: Vec<OpKind>,
}

impl<'a> Loop<'a> {
    pub(super) fn new(front: Front<'a>, reach: Reach) -> Self {
        Self {
            front,
            reach,
            seen: HashSet::new(),
            nested: HashSet::new(),
            points: 0,
            inner_points: 0,
            disks: 0,
            problems: Vec::new(),
        }
    }

    /// Loops over everything.
    pub(super) fn over(&mut self, script: &Script) {
        let stages = self.stages(script);
        for (index, stage) in stages.iter().enumerate() {
            let troubles = troubles(&stage.kinds, (0, 1));
            let chosen = troubles.into_iter().skip(index % self.reach.stride).step_by(self.reach.stride);
            for trouble in chosen {
                if self.all_said() {
                    return;
                }
                self.points += 1;
                world::set_clock(stage.clock);
                let disk = stage.disk.fork();
                let came = world::run(&disk, self.front, &stage.words, trouble);
                let told = format!("{} {} {trouble:?}", script.name, stage.words.join(" "));
                let mut acked = stage.acked.clone();
                if script.take_effect() {
                    match model::claim_of_effect(&stage.disk, &disk) {
                        Ok(claim) => acked.push(claim),
                        Err(why) => self.problems.push(format!("{told}: {why}")),
                    }
                }
                self.look(&disk, &came, trouble, &acked, &told, Depth::Outer);
            }
        }
    }

    fn all_said(&self) -> bool {
        let said = |words: &&str| self.problems.iter().any(|problem| problem.contains(*words));
        !self.reach.until.is_empty() && self.reach.until.iter().all(said)
    }

    /// The workload without trouble.
    fn stages(&mut self, script: &Script) -> Vec<Stage> {
        let (disk, mut ticket, mut acked) = (script.disk.fork(), script.ticket.clone(), Vec::new());
        let mut stages = Vec::new();
        for Act { before, words } in &script.commands {
            for event in before {
                event.happen(&disk, &mut acked);
            }
            let words = with_ticket(words, &ticket);
            let (before, clock) = (disk.fork(), world::clock());
            let came = world::run(&disk, self.front, &words, Trouble::Nothing);
            script.take_effect();
            let too_late = came.exit == Some(Exit::Fenced) && came.ack().is_some();
            if !too_late
                && !matches!(came.exit, Some(Exit::Done | Exit::Waiting | Exit::OfCommand(script::CMD_EXIT)))
            {
                self.problems.push(format!("{}: {words:?} ends with {came:?}", script.name));
                break;
            }
            ticket = came.ticket().unwrap_or(ticket);
            let kinds = came.ops.iter().map(|op| op.kind).collect();
            stages.push(Stage { words, disk: before, clock, acked: acked.clone(), kinds });
            acked.extend(came.ack());
        }
        stages
    }

    /// Looks at a disk behind a command in trouble: as it is, and after each power cut.
    fn look(
        &mut self,
        disk: &MemoryStorage,
        came: &Came,
        trouble: Trouble,
        acked: &[Ack],
        told: &str,
        depth: Depth,
    ) {
        let mut acked = acked.to_vec();
        acked.extend(came.ack());
        if let Err(why) = model::audit(came, trouble) {
            self.problems.push(format!("{told}: {why}"));
        }
        // Bytes whose sync failed and that would not be cut off: nothing is known of them before a restart.
        if !disk.is_doubtful() {
            self.judge(disk, Remains::Explained, &acked, &format!("{told}, gone on with"), depth);
        }
        self.look_behind_cuts(disk, Prefixes::Some, &acked, told, depth);
        let each = self.reach.each_prefix;
        if depth == Depth::Outer && each > 0 && self.points.is_multiple_of(each) {
            self.look_behind_cuts(disk, Prefixes::Each, &acked, told, Depth::Inner);
        }
    }

    fn look_behind_cuts(
        &mut self,
        disk: &MemoryStorage,
        prefixes: Prefixes,
        acked: &[Ack],
        told: &str,
        depth: Depth,
    ) {
        for (index, cut) in disk.power_cuts(prefixes).into_iter().enumerate() {
            if self.all_said() {
                return;
            }
            self.judge(&cut.storage, cut.remains, acked, &format!("{told}, power cut {index}"), depth);
        }
    }

    fn judge(&mut self, disk: &MemoryStorage, remains: Remains, acked: &[Ack], told: &str, depth: Depth) {
        let known = fingerprint(disk, acked);
        if self.seen.insert(known) {
            self.disks += 1;
            if let Err(why) = model::judge(&disk.fork(), self.front, remains, acked) {
                self.problems.push(format!("{told}: {why}"));
            }
        }
        if depth == Depth::Outer && remains == Remains::Explained && self.nested.insert(known) {
            self.inside_recover(disk, acked, told);
        }
    }

    /// The fault inside the recovery from a fault.
    fn inside_recover(&mut self, disk: &MemoryStorage, acked: &[Ack], told: &str) {
        if self.reach.inner_stride == 0 {
            return;
        }
        let words = model::recover_words(disk);
        let now = world::clock();
        world::set_clock(model::behind_leases(disk));
        let whole = world::run(&disk.fork(), self.front, &words, Trouble::Nothing);
        let kinds: Vec<OpKind> = whole.ops.iter().map(|op| op.kind).collect();
        let offset = self.nested.len() % self.reach.inner_stride;
        // Other ones behind each disk, so that all have their turn.
        let reads = (self.nested.len(), self.reach.inner_reads);
        let troubles = troubles(&kinds, reads).into_iter();
        for trouble in troubles.skip(offset).step_by(self.reach.inner_stride) {
            self.inner_points += 1;
            let disk = disk.fork();
            let came = world::run(&disk, self.front, &words, trouble);
            let told = format!("{told}, recover {trouble:?}");
            self.look(&disk, &came, trouble, acked, &told, Depth::Inner);
        }
        world::set_clock(now);
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Depth {
    Outer,
    Inner,
}

/// Everything that can go wrong in a command with these operations; of those that change nothing, in every how many-th,
/// behind so many.
fn troubles(kinds: &[OpKind], (first, stride): (usize, usize)) -> Vec<Trouble> {
    let mut all = Vec::new();
    let chosen = |at: usize, kind: OpKind| changes(kind) || (at + first).is_multiple_of(stride);
    for (at, kind) in kinds.iter().enumerate().filter(|(at, kind)| chosen(*at, **kind)) {
        // Between two operations that change nothing a stop is the stop before both.
        if changes(*kind) {
            all.push(Trouble::Stop(at + 1));
        }
        all.extend([Trouble::Once(at), Trouble::ForEver(at)]);
        match kind {
            OpKind::Append => {
                all.extend([1, 60].map(|bytes| Trouble::Short(at, bytes)));
                all.extend([0, 1, 60].map(|bytes| Trouble::ShortThenFull(at, bytes)));
            }
            OpKind::ReadAt => all.push(Trouble::Short(at, 1)),
            _ => {}
        }
    }
    all
}

fn fingerprint(disk: &MemoryStorage, acked: &[Ack]) -> u64 {
    let mut hasher = DefaultHasher::new();
    disk.files().hash(&mut hasher);
    if !disk.is_durable() {
        disk.power_cuts(Prefixes::Some).iter().for_each(|cut| cut.storage.files().hash(&mut hasher));
    }
    acked.hash(&mut hasher);
    hasher.finish()
}

mod workloads {
    use super::*;
    use std::time::Instant;

    /// Every how many-th point is taken in the quick form, so that each workload takes about as long.
    fn reach(quick_stride: usize) -> Reach {
        let quick =
            Reach { stride: quick_stride, inner_stride: 499, inner_reads: 8, each_prefix: 0, until: &[] };
        let Some(slow) = std::env::var_os("TURNKEEP_SLOW") else { return quick };
        // An optimized build goes through ten times as much in the same time.
        if cfg!(debug_assertions) {
            return Reach { stride: 1, inner_stride: 100, ..quick };
        }
        let (inner_stride, inner_reads, each_prefix) = if slow == "all" { (1, 1, 1) } else { (100, 8, 10) };
        Reach { stride: 1, inner_stride, inner_reads, each_prefix, ..quick }
    }

    fn nothing_is_found(script: &Script, quick_stride: usize) {
        nothing_is_found_within(script, reach(quick_stride));
    }

    #[expect(clippy::print_stderr, reason = "how much was looped over is told with --nocapture")]
    fn nothing_is_found_within(script: &Script, reach: Reach) {
        let started = Instant::now();
        let mut found = Loop::new(&world::honest, reach);
        found.over(script);
        eprintln!(
            "{}: {} points, {} inside recover, {} disks, {} problems in {:?}",
            script.name,
            found.points,
            found.inner_points,
            found.disks,
            found.problems.len(),
            started.elapsed()
        );
        let some: Vec<&String> = found.problems.iter().take(5).collect();
        assert!(some.is_empty(), "{} problems: {some:#?}", found.problems.len());
        assert!(found.points > 10 && found.inner_points > 3 && found.disks > 10);
    }

    #[test]
    fn a_new_session_survives_every_trouble() {
        nothing_is_found(&script::fresh(), 43);
    }

    /// Stops the first command behind each thing that it does to the session file; says how many there are.
    fn stopped_behind_each_write_of_the_tree(script: &Script) -> usize {
        let words = with_ticket(&script.commands.first().expect("a command").words, &script.ticket);
        let whole = world::run(&script.disk.fork(), &world::honest, &words, Trouble::Nothing);
        let ops = whole.ops.iter().enumerate();
        let writes = ops.filter(|(_, op)| changes(op.kind) && op.path.ends_with("chat.jsonl"));
        let writes: Vec<usize> = writes.map(|(at, _)| at).collect();
        for at in &writes {
            let disk = script.disk.fork();
            world::run(&disk, &world::honest, &words, Trouble::Stop(at + 1));
            model::judge(&disk, &world::honest, Remains::Explained, &[]).expect("as the model says");
        }
        writes.len()
    }

    /// `recovered` vouches for a branch, so what is found of it is synced even where nothing is written.
    #[test]
    fn a_tree_that_its_writer_did_not_sync_is_durable_behind_recover() {
        let writes = stopped_behind_each_write_of_the_tree(&script::fresh());
        assert_eq!(writes, 3, "it is created, written and synced");
    }

    /// So does the answer that there is nothing to recover: a settlement closed the turn, and its writer died.
    #[test]
    fn the_tree_of_a_closed_turn_is_durable_behind_recover() {
        let mut script = script::asked();
        script.begin_at(script.commands.len() - 1);
        let writes = stopped_behind_each_write_of_the_tree(&script);
        assert_eq!(writes, 2, "it is written and synced");
    }

    /// A step finds the record that a dead writer wrote and did not sync: what is acknowledged then is durable.
    #[test]
    fn a_record_that_is_found_is_synced_before_it_is_acknowledged() {
        // A message, and an answer.
        for command in [1, 5] {
            let mut script = script::branch();
            script.begin_at(command);
            let words = with_ticket(&script.commands.first().expect("a command").words, &script.ticket);
            let whole = world::run(&script.disk.fork(), &world::honest, &words, Trouble::Nothing);
            let append = whole.ops.iter().position(|op| op.kind == OpKind::Append).expect("a record");
            let disk = script.disk.fork();
            world::run(&disk, &world::honest, &words, Trouble::Stop(append + 1));
            assert!(!disk.is_durable(), "{words:?} was stopped before its sync");
            let again = world::run(&disk, &world::honest, &words, Trouble::Nothing);
            let acked = again.ack().unwrap_or_else(|| panic!("the same step again: {again:?}"));
            assert_eq!(Some(&acked), whole.ack().as_ref(), "{words:?} is told as it was recorded");
            model::is_durable(&disk, &[acked]).unwrap_or_else(|why| panic!("{words:?}: {why}"));
        }
    }

    #[test]
    fn a_branch_survives_every_trouble() {
        nothing_is_found(&script::branch(), 43);
    }

    /// This workload is the longest, and is played in two parts, so that both cores have work.
    const BEFORE_RECOVER: usize = 13;

    #[test]
    fn what_people_and_machines_say_survives_every_trouble() {
        let mut script = script::asked();
        script.keep(&(0..BEFORE_RECOVER).collect::<Vec<_>>());
        nothing_is_found(&script, 101);
    }

    #[test]
    fn what_they_say_behind_a_recover_survives_every_trouble() {
        let mut script = script::asked();
        script.begin_at(BEFORE_RECOVER);
        nothing_is_found(&script, 101);
    }

    #[test]
    fn what_turnkeep_runs_itself_survives_every_trouble() {
        nothing_is_found(&script::runs(), 61);
    }

    #[test]
    fn what_an_agent_writes_itself_survives_every_trouble() {
        // What the agent wrote is synced by nobody, so there would be each prefix of it behind each point.
        nothing_is_found_within(&script::entries(), Reach { each_prefix: 0, ..reach(101) });
    }

    #[test]
    fn leases_force_and_nested_calls_survive_every_trouble() {
        nothing_is_found(&script::forced(), 101);
    }

    #[test]
    fn two_turns_of_which_one_is_parked_survive_every_trouble() {
        nothing_is_found(&script::parked(), 101);
    }

    #[test]
    fn what_is_left_behind_damage_survives_every_trouble() {
        nothing_is_found(&script::salvaged(), 43);
    }

    #[test]
    fn torn_tails_survive_every_trouble() {
        nothing_is_found(&script::torn(), 43);
    }
}
