/**
 * The `turnkeep` CLI, called without blocking, and the documents that it prints.
 *
 * Each call ends only when the record is synced. An exit code that the caller did not expect is an error: nobody acts
 * on what the journal did not accept.
 */
import { spawn } from "node:child_process";
import { randomUUID } from "node:crypto";
import { closeSync, openSync, unlinkSync, writeSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

/** The session that all turns of this service belong to. */
export const SESSION = process.env.CHANNEL_SESSION || "channel";
/** Exit codes of the CLI that are told apart here. */
export const BUSY = 4, CONFLICT = 6, NOT_FOUND = 8, ALREADY_DONE = 10, NOT_PERMITTED = 11, WAITING = 14;

/** What is used of the status document, `turnkeep.status/1`. */
export type Status = {
  session: string; turn: string; attempt: number; ticket: string | null;
  state: "open" | "parked" | "settled" | "closed";
  next: { do: string; refs: string[]; why: string };
  owner: { pid: number; alive: boolean } | null;
  input: unknown; reply: unknown;
  calls: Call[];
  tree: { path: string; leaf: string | null } | null;
  delivery: { key: string; state: "begun" | "sent" | "not_sent" | "waived" | null; receipt: unknown } | null;
};
export type Call = { ref: string; id: string; tool: string; args: unknown; state: string; do: string | null; approval: string | null };

export type Ran = { code: number; out: string; err: string };

export class Refused extends Error {
  readonly code: number;
  constructor(code: number, what: string, why: string) {
    super(`turnkeep ${what} exited ${code}: ${why}`);
    this.code = code;
  }
}

/** Runs the CLI to its end. `body` becomes its stdin; the exit codes in `expected` are answers, others throw. */
export async function turnkeep(args: string[], expected: number[] = [0], body?: string): Promise<Ran> {
  const stdin = body === undefined ? undefined : spool(body);
  try {
    const child = spawn(process.env.TURNKEEP_BIN || "turnkeep", args, { stdio: [stdin ?? "ignore", "pipe", "pipe"] });
    const ran = { code: 0, out: "", err: "" };
    child.stdout!.setEncoding("utf8").on("data", (text) => void (ran.out += text));
    child.stderr!.setEncoding("utf8").on("data", (text) => void (ran.err += text));
    ran.code = await new Promise<number>((resolve, reject) => {
      child.on("error", reject);
      child.on("close", (code) => resolve(code ?? -1));
    });
    if (!expected.includes(ran.code)) throw new Refused(ran.code, args.slice(0, 4).join(" "), ran.err.trim() || ran.out.trim());
    return ran;
  } finally {
    if (stdin !== undefined) closeSync(stdin);
  }
}

/**
 * Stdin as an unlinked file and not as a pipe: a service that is killed while it feeds a pipe would end the input
 * early, and the CLI could take the first half of a result for the whole.
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

const parsed = (out: string): Status[] => out.split("\n").filter(Boolean).map((line) => JSON.parse(line));

/** The turn that was admitted under this delivery id. */
export async function statusOf(id: string): Promise<Status | undefined> {
  const { code, out } = await turnkeep(["inspect", "--delivery", id, "--json"], [0, NOT_FOUND]);
  return code === 0 ? parsed(out).find((status) => status.session === SESSION) : undefined;
}

export async function statusOfTurn(turn: string): Promise<Status> {
  return JSON.parse((await turnkeep(["inspect", SESSION, "--turn", turn, "--json"])).out);
}

/** Turns that are not closed, oldest first. Meant for the start, when no owner lives: a living one's are left out. */
export async function unclosedTurns(): Promise<string[]> {
  const { code, out, err } = await turnkeep(["recover", "--all", "--match", SESSION, "--json"], [0, NOT_FOUND, WAITING]);
  if (code === NOT_FOUND) return []; // no journal yet
  return parsed(out).map((plan) => plan.turn);
}

/**
 * Makes this process the owner of the turn, or finds that it is already, and says what comes next. Without a ticket
 * there is nothing that this process could do now: the turn is closed, or waits for somebody else.
 */
export async function recover(turn: string): Promise<Status> {
  const { code, out } = await turnkeep(["recover", `${SESSION}:${turn}`, "--owner-pid", String(process.pid), "--json"], [0, ALREADY_DONE, WAITING]);
  return code === 0 ? JSON.parse(out) : await statusOfTurn(turn);
}

/** Returns when the session got a record, or after a second: a person may act by the CLI, beside this process. */
export async function nextRecord(): Promise<void> {
  await turnkeep(["inspect", SESSION, "--until-change", "1"], [0, NOT_FOUND, WAITING]);
}

/** The reply as text, as the CLI gives it to a command that delivers it. */
export function textOf(reply: unknown): string | null {
  const content = (reply as { content?: unknown } | null)?.content;
  if (typeof content === "string") return content;
  if (!Array.isArray(content)) return null;
  return content.filter((part) => part.type === "text").map((part) => part.text).join("\n");
}
