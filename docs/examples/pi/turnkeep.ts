/**
 * turnkeep for stock Pi 1.6.0: each step of a turn is in the journal before Pi goes on.
 *
 * Every hook below is awaited by Pi and calls the `turnkeep` CLI synchronously, so its fsync has returned before the
 * hook does. When the CLI fails, nothing more happens: no tool starts, no request is sent, the run ends and the turn
 * stays open for `/turnkeep-continue`. What could not be journaled by then waits in memory and is journaled as soon as
 * the CLI works again. This file keeps no state on disk and decides nothing about recovery.
 */
import { spawnSync } from "node:child_process";
import { randomUUID } from "node:crypto";
import { closeSync, existsSync, openSync, unlinkSync, writeSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { ExtensionAPI, ExtensionContext } from "@earendil-works/pi-coding-agent";

const BIN = process.env.TURNKEEP_BIN || "turnkeep";
/** Longer than the CLI waits for its own lock (10 s); a CLI that hangs must not hang Pi for ever. */
const PATIENCE_MS = 60_000;
/** Stands in the session file where a turn was continued without a user message; the model does not see it. */
const RESUME = "turnkeep-resume";
/** Exit codes of the CLI that are told apart here; every other one is simply a failure. */
const BUSY = 4, CONFLICT = 6, NOT_FOUND = 8, ALREADY_DONE = 10, NOT_PERMITTED = 11, WAITING = 14;

/** How a run begins: what a user or an extension sent (admit it), or a turn that already has a ticket. */
type Start = { input: string } | { ticket: string; leaf?: string };
/** A call between its start and its end, named as the journal names it: ENTRYID.POS, nested ones ENTRYID.POS/N. */
type Call = { id: string; ref: string; parent?: string; announced: boolean; cutOff: boolean };
/** `owed`: the steps that wait behind a failure, in order. */
type Turn = { ticket: string; journaled: Set<string>; open: Call[]; message?: string; started: number; inputSeen: boolean; owed: Step[] };
type Step = { args: string[]; body?: string };

class Refused extends Error {
  constructor(readonly code: number | null, what: string, why: string) {
    super(`turnkeep ${what} ${code === null ? "did not end" : `exited ${code}`}${why ? `: ${why}` : ""}`);
  }
}

/** Pi's word for a call that it did not let go on. */
const isAbort = (content: { type: string; text?: string }[]) => content.length === 1 && content[0].text === "Operation aborted";

/** Runs the CLI to its end. `body` becomes its stdin. */
function turnkeep(args: string[], body?: string): string {
  const stdin = body === undefined ? undefined : spool(body);
  try {
    const ran = spawnSync(BIN, args, {
      stdio: [stdin ?? "ignore", "pipe", "pipe"], encoding: "utf8", timeout: PATIENCE_MS, maxBuffer: 1 << 28,
    });
    const what = args.filter((arg) => /^[a-z]+$/.test(arg)).slice(0, 2).join(" ");
    if (ran.error) throw new Refused(null, what, ran.error.message);
    if (ran.status !== 0) throw new Refused(ran.status, what, ran.stderr.trim() || ran.stdout.trim());
    return ran.stdout;
  } finally {
    if (stdin !== undefined) closeSync(stdin);
  }
}

/**
 * Stdin as an unlinked file and not as a pipe: if Pi is killed while it feeds a pipe, the CLI sees an early end of
 * file and could take the first half of a result for the whole.
 */
function spool(body: string): number {
  const path = join(tmpdir(), `turnkeep-${randomUUID()}`);
  const fd = openSync(path, "wx+", 0o600);
  unlinkSync(path);
  const bytes = Buffer.from(body);
  // Written at explicit offsets, which leaves the descriptor's own offset, where the CLI starts to read, at 0.
  for (let at = 0; at < bytes.length; ) at += writeSync(fd, bytes, at, bytes.length - at, at);
  return fd;
}

/** The turn of the session that was admitted under this delivery key, if there is one. Other sessions may use it too. */
function admittedUnder(key: string, session: string): { turn: string; state: string } | undefined {
  try {
    const found = turnkeep(["inspect", "--delivery", key, "--json"]).split("\n").filter(Boolean).map((line) => JSON.parse(line));
    return found.find((status) => status.session === session);
  } catch (error) {
    if (error instanceof Refused && error.code === NOT_FOUND) return undefined;
    throw error;
  }
}

/** What the model reads where a tool was not entered. Pi's file keeps it as the result of the call. */
const notRun = (why: string) => `This call was not run: ${why}`;

/** Takes a variable out of the environment: a tool's shell must not inherit the right to write into a turn. */
function take(name: string): string | undefined {
  const value = process.env[name];
  delete process.env[name];
  return value || undefined;
}

export default function (pi: ExtensionAPI) {
  const given = { ticket: take("TURNKEEP_TICKET"), delivery: take("TURNKEEP_DELIVERY") };
  let start: Start | undefined; // set between before_agent_start and agent_start
  let turn: Turn | undefined; // from its admission to its settlement
  let running = false; // agent_start to agent_end
  let broken: string | undefined; // why the journal cannot be trusted in this run
  let unhealed: Turn | undefined; // its run is over and it owes steps

  const sessionOf = (ctx: ExtensionContext) => process.env.TURNKEEP_PI_SESSION || `pi-${ctx.sessionManager.getSessionId()}`;

  function tell(ctx: ExtensionContext, text: string, exit = 1) {
    if (ctx.hasUI) return ctx.ui.notify(`turnkeep: ${text}`, exit ? "error" : "info");
    console.error(`[turnkeep] ${text}`);
    if (exit) process.exitCode = exit; // `pi -p` would else end with 0
  }

  /** The run ends here. Throwing would do nothing: Pi swallows what hooks other than `tool_call` throw. */
  function fail(ctx: ExtensionContext, error: unknown) {
    const why = error instanceof Error ? error.message : String(error);
    if (broken === undefined) tell(ctx, `${why}; the run is stopped, /turnkeep-continue goes on with what is journaled`);
    broken ??= why;
    ctx.abort();
  }

  function guarded(ctx: ExtensionContext, act: () => void) {
    try {
      act();
    } catch (error) {
      fail(ctx, error);
    }
  }

  /** Journals what has happened. From the first failure on it is owed instead, so that the order stays true. */
  function journal(ctx: ExtensionContext, turn: Turn, args: string[], body?: string) {
    turn.owed.push({ args, body });
    if (broken === undefined) guarded(ctx, () => pay(turn));
  }

  /** Each step is safe to repeat, so one that failed only for us (it is in the journal) is no trouble. */
  function pay(turn: Turn) {
    for (let next = turn.owed[0]; next; next = turn.owed[0]) {
      turnkeep(["step", "--ticket", turn.ticket, ...next.args], next.body);
      turn.owed.shift();
    }
  }

  /** Tries once more to journal what a run owes. Where that is in vain, `recover` judges by what Pi's file says. */
  function heal(ctx: ExtensionContext) {
    if (!unhealed) return;
    const count = unhealed.owed.length;
    try {
      pay(unhealed);
      unhealed = undefined;
      tell(ctx, `the journal works again and has the ${count} steps that it lacked`, 0);
    } catch (error) {
      tell(ctx, `the journal still lacks ${unhealed!.owed.length} steps: ${error instanceof Error ? error.message : error}`);
    }
  }

  /** Journals what Pi has appended to the active branch since the last time, as Pi persisted it. */
  function journalEntries(ctx: ExtensionContext) {
    if (!turn) return;
    const { journaled } = turn;
    const fresh = ctx.sessionManager.getBranch().filter((entry) => !journaled.has(entry.id));
    if (fresh.length === 0) return;
    for (const entry of fresh) journaled.add(entry.id);
    journal(ctx, turn, ["entry", "-"], fresh.map((entry) => `${JSON.stringify(entry)}\n`).join(""));
  }

  /** Ids on the active branch up to `leaf`: what was there before the turn. */
  function idsUpTo(ctx: ExtensionContext, leaf: string | null | undefined): Set<string> {
    const ids = ctx.sessionManager.getBranch().map((entry) => entry.id);
    return new Set(ids.slice(0, leaf ? ids.indexOf(leaf) + 1 : 0));
  }

  function admit(ctx: ExtensionContext, input: string): Turn {
    const file = ctx.sessionManager.getSessionFile();
    const args = ["admit", sessionOf(ctx), "--input", "-", "--owner-pid", String(process.pid)];
    if (given.delivery) args.push("--delivery", given.delivery);
    // Pi creates its file with the first user message, which comes later. What it holds in memory until then
    // (header, model, thinking level) belongs to the turn, or a file that never came to be could not be recovered.
    const leaf = file && existsSync(file) ? ctx.sessionManager.getLeafId() : null;
    if (file) args.push("--tree", file, "--leaf", leaf ?? "root");
    if (file && !existsSync(file)) args.push("--tree-header", JSON.stringify(ctx.sessionManager.getHeader()));
    const ticket = turnkeep(args, input).trim();
    given.delivery = undefined; // one key, one input
    return { ticket, journaled: idsUpTo(ctx, leaf), open: [], started: 0, inputSeen: false, owed: [] };
  }

  // ---- Admission. `input` is the only hook that can refuse a prompt before anything of it is written.
  pi.on("input", (event, ctx) => {
    if (running || event.streamingBehavior) return; // joins the running turn, see message_end
    try {
      const status = JSON.parse(turnkeep(["inspect", sessionOf(ctx), "--json"]));
      const known = given.delivery && admittedUnder(given.delivery, sessionOf(ctx));
      if (status.state === "open" || status.state === "parked") {
        tell(ctx, `prompt refused: turn ${status.turn} is ${status.state}, next: ${status.next?.do}; /turnkeep-continue goes on with it`, BUSY);
      } else if (known) {
        tell(ctx, `prompt refused: delivery ${given.delivery} is that of turn ${known.turn}, which is ${known.state}`, ALREADY_DONE);
      } else {
        return;
      }
    } catch (error) {
      if (error instanceof Refused && error.code === NOT_FOUND) return; // a session's first turn
      tell(ctx, `prompt refused: ${error instanceof Error ? error.message : error}`);
    }
    return { action: "handled" as const };
  });

  pi.on("before_agent_start", (event) => {
    broken = undefined;
    if (event.messageType === "custom") {
      const { customType, content, details } = event.message;
      const resumed = details as { ticket?: string; leaf?: string } | undefined;
      start = customType === RESUME && resumed?.ticket ? { ticket: resumed.ticket, leaf: resumed.leaf } : { input: JSON.stringify(content) };
    } else if (event.images?.length) {
      const content = [{ type: "text", text: event.prompt }, ...event.images];
      start = { input: JSON.stringify({ role: "user", content, timestamp: Date.now() }) };
    } else {
      start = { input: JSON.stringify(event.prompt) }; // a JSON string, so that a prompt like `42` stays text
    }
  });

  // Here the leaf is final and nothing of the run is appended yet. Fires again on each retry of the same run.
  pi.on("agent_start", (_event, ctx) => {
    running = true;
    const begin = start;
    start = undefined;
    if (!begin) return;
    turn = undefined;
    guarded(ctx, () => {
      turn = "ticket" in begin
        ? { ticket: begin.ticket, journaled: idsUpTo(ctx, begin.leaf), open: [], started: 0, inputSeen: true, owed: [] }
        : admit(ctx, begin.input);
    });
  });

  // ---- Model.
  pi.on("before_provider_request", (_event, ctx) => {
    if (!running) return; // a compaction between runs
    if (!turn || broken !== undefined) return ctx.abort(); // also a run that began past the admission
    journalEntries(ctx);
  });

  // A user message that is not the admitted one was typed while the turn ran: it joins the turn, before Pi writes it.
  pi.on("message_end", (event, ctx) => {
    if (!turn) return;
    const { message } = event;
    if (message.role === "toolResult" && message.durationMs === undefined && isAbort(message.content)) {
      // Pi says "Operation aborted" alike of a call that was stopped and of one that never started, as this one.
      return { message: { ...message, content: [{ type: "text" as const, text: notRun(broken ? `the journal failed: ${broken}` : "the run was aborted") }] } };
    }
    if (message.role !== "user") return;
    if (!turn.inputSeen) {
      turn.inputSeen = true;
      return;
    }
    const { content } = message;
    const plain = typeof content === "string" ? content : content.every((part) => part.type === "text") ? content.map((part) => part.text).join("\n") : message;
    // The key is there only so that the step can be repeated.
    journal(ctx, turn, ["steer", "-", "--delivery", `pi-${randomUUID()}`], JSON.stringify(plain));
  });

  // ---- Tools. Starts come in the order of the message, one by one, before any call of a parallel batch runs.
  pi.on("tool_execution_start", (event, ctx) => {
    if (!turn) return;
    const { open } = turn;
    if (event.parentToolCallId !== undefined) { // made by a tool; Pi names it PARENTID/N
      const parent = open.find((call) => call.id === event.parentToolCallId)?.ref;
      const ref = parent + event.toolCallId.slice(event.parentToolCallId.length);
      if (parent) open.push({ id: event.toolCallId, ref, parent, announced: false, cutOff: false });
      return;
    }
    journalEntries(ctx); // the intents are durable now
    const asked = ctx.sessionManager.getBranch().findLast((entry) => entry.type === "message" && entry.message.role === "assistant");
    if (asked?.type !== "message" || asked.message.role !== "assistant") return;
    if (turn.message !== asked.id) Object.assign(turn, { message: asked.id, started: 0 });
    const cutOff = asked.message.stopReason !== "toolUse" && asked.message.stopReason !== "stop";
    open.push({ id: event.toolCallId, ref: `${asked.id}.${turn.started++}`, announced: true, cutOff });
  });

  // The only hook whose throw keeps a tool from running.
  pi.on("tool_call", (event, ctx) => {
    if (broken !== undefined) throw new Error(notRun(`the journal failed: ${broken}`));
    const twins = turn?.open.filter((call) => call.id === event.toolCallId) ?? [];
    const call = twins.at(-1);
    if (!turn || !call) throw new Error(notRun("no turn is admitted"));
    // Their ends could not be told apart.
    if (twins.length > 1) throw new Error(notRun(`another running call has the same id "${event.toolCallId}"`));
    const declared = call.announced ? [] : ["--tool", event.toolName, "--args", JSON.stringify(event.input), ...(call.parent ? ["--parent", call.parent] : [])];
    try {
      // Never owed: a claim stands before the effect or not at all.
      turnkeep(["step", "--ticket", turn.ticket, "claim", call.ref, ...declared]);
      call.announced = true;
    } catch (error) {
      // A call that wants a person's approval is told so to the model; after any other refusal the run ends.
      if (error instanceof Refused && error.code === NOT_PERMITTED) call.announced = true;
      else fail(ctx, error);
      throw new Error(notRun(error instanceof Error ? error.message : String(error)));
    }
  });

  // Fires for each call, also for blocked, unknown and invalid ones, and long before Pi writes the results of a batch.
  pi.on("tool_execution_end", (event, ctx) => {
    const at = turn?.open.findLastIndex((call) => call.id === event.toolCallId) ?? -1;
    const call = turn?.open.splice(at, at < 0 ? 0 : 1)[0];
    if (!turn || !call?.announced || call.cutOff) return; // a cut-off call got its `not_run` with its entry
    if (event.durationMs === undefined) return journal(ctx, turn, ["result", call.ref, "--not-run"]); // the tool was never entered
    const { content, details, usage } = event.result;
    journal(ctx, turn, ["result", call.ref, "-"], JSON.stringify({
      role: "toolResult", toolCallId: event.toolCallId, toolName: event.toolName, content: content ?? [], details, usage,
      isError: event.isError, durationMs: event.durationMs, timestamp: Date.now(),
    }));
  });

  pi.on("turn_end", (_event, ctx) => journalEntries(ctx));

  // ---- Settlement. After a failure the turn stays open: what happened in it is for `recover` to find out.
  pi.on("agent_end", () => void (running = false));

  pi.on("agent_settled", (event, ctx) => {
    if (!turn) return;
    journalEntries(ctx);
    if (broken === undefined) {
      const last = ctx.sessionManager.getBranch().findLast((entry) => entry.type === "message" && entry.message.role === "assistant");
      const answer = last?.type === "message" && last.message.role === "assistant" ? last.message : undefined;
      guarded(ctx, () => {
        const settle = ["step", "--ticket", turn!.ticket, "settle"];
        if (event.aborted || answer?.stopReason === "aborted") turnkeep([...settle, "--status", "cancelled", "--reason", "aborted in Pi"]);
        else if (answer?.stopReason === "error") turnkeep([...settle, "--status", "failed", "--reason", answer.errorMessage || "the model request failed"]);
        else turnkeep(settle);
      });
    } else if (turn.owed.length > 0) {
      unhealed = turn;
      heal(ctx);
    }
    turn = undefined;
  });

  // ---- Continue a turn that was cut short, without another user message.
  pi.registerCommand("turnkeep-continue", {
    description: "Recover the open turn of this session (or of SESSION[:TURN]) and go on with it",
    handler: async (args, ctx) => {
      await ctx.waitForIdle();
      heal(ctx); // before `recover` looks at what the journal lacks
      let ticket = given.ticket; // of a `turnkeep recover` that was run outside
      given.ticket = undefined;
      let status: any;
      try {
        if (ticket) {
          const [, session, id] = /^(.*):([^:]*):[^:]*$/s.exec(ticket) ?? [];
          if (!session) throw new Error(`TURNKEEP_TICKET is not SESSION:TURN:ATTEMPT: ${ticket}`);
          status = JSON.parse(turnkeep(["inspect", session, "--turn", id, "--json"]));
        } else {
          // --close-calls: Pi cannot run a call outside its own loop, so none may stay unanswered.
          status = JSON.parse(turnkeep(["recover", args.trim() || sessionOf(ctx), "--close-calls", "--owner-pid", String(process.pid), "--json"]));
          ticket = status.ticket as string;
        }
      } catch (error) {
        const code = error instanceof Refused ? error.code : null;
        const hint = code === ALREADY_DONE ? "nothing to continue" : code === WAITING ? "waiting for somebody else" : code === BUSY ? "another process has it" : "cannot continue";
        // Pi's file contradicts the journal; to go on all the same is for a person to say, and not from in here.
        const wayOut = code === CONFLICT ? `\n\`turnkeep recover ${args.trim() || sessionOf(ctx)} --close-calls --owner-pid none --force --why TEXT\` gives the TURNKEEP_TICKET for this command` : "";
        return tell(ctx, `${hint}: ${error instanceof Error ? error.message : error}${wayOut}`, code ?? 1);
      }
      const todo = status.next?.do;
      if (todo === "settle") {
        // The crash came between the final answer and its settlement; there is nothing to ask the model.
        try {
          turnkeep(["step", "--ticket", ticket, "settle"]);
          tell(ctx, `turn ${status.turn} had its answer and is settled now`, 0);
        } catch (error) {
          tell(ctx, String(error));
        }
        return;
      }
      if (todo !== "call_model") return tell(ctx, `nothing for the model to do in turn ${status.turn}; next: ${todo} (${status.next?.why ?? "see turnkeep inspect"})`, todo === "deliver" || todo === "done" ? 0 : WAITING);
      if (!status.tree?.path) return tell(ctx, `turn ${status.turn} has no session file that Pi could open`);
      // Pi does not notice that its file has grown: open it anew. That replaces this extension, so the ticket travels
      // in the message that starts the run.
      const details = { ticket, leaf: status.tree.leaf };
      await ctx.switchSession(status.tree.path, {
        withSession: async (fresh) => {
          await fresh.sendMessage({ customType: RESUME, content: [], display: false, details }, { triggerTurn: true });
          await fresh.waitForIdle();
        },
      });
    },
  });
}
