/**
 * A small HTTP service around Pi: a text comes in under a delivery id, exactly one reply is published under it. It may be
 * killed at any time and started again; see README.md.
 *
 * The journal is its only store, but for the inbox of posts that no turn was admitted for yet.
 */
import { mkdirSync, renameSync, statSync, writeFileSync } from "node:fs";
import http from "node:http";
import net from "node:net";
import { join, resolve } from "node:path";
import { Inbox } from "./inbox.ts";
import { ALREADY_DONE, BUSY, CONFLICT, NOT_FOUND, Refused, SESSION, statusOf, textOf, turnkeep } from "./journal.ts";
import { Lane } from "./lane.ts";
import { Channel } from "./outside.ts";
import { Pi } from "./pi.ts";

const BODY_BYTES_MAX = 1 << 20;
const ID = /^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$/;

type Answer = { status: number; body: unknown };
class Wrong extends Error {
  readonly status: number;
  constructor(status: number, message: string) {
    super(message);
    this.status = status;
  }
}

const state = resolve(process.env.CHANNEL_STATE || "channel-state");
const url = process.env.CHANNEL_URL;
if (!url) {
  console.error("CHANNEL_URL is missing: where replies are published");
  process.exit(2);
}
mkdirSync(state, { recursive: true, mode: 0o700 });
await holdAlone(state);
process.env.TURNKEEP_ROOT ||= join(state, "turnkeep");

const inbox = new Inbox(join(state, "inbox"));
const pi = await Pi.start({
  work: resolve(process.env.CHANNEL_WORK || join(state, "work")),
  sessions: join(state, "pi"),
  extensions: (process.env.CHANNEL_EXTENSIONS || "").split(":").filter(Boolean).map((path) => resolve(path)),
  turnkeepExtension: resolve(process.env.CHANNEL_TURNKEEP_EXTENSION || join(import.meta.dirname, "../pi/turnkeep.ts")),
});
const lane = new Lane(inbox, pi, new Channel(url));
const server = http.createServer((request, response) => {
  answer(request).catch(failed).then(({ status, body }) => {
    const text = `${JSON.stringify(body)}\n`;
    response.writeHead(status, { "content-type": "application/json; charset=utf-8", "content-length": Buffer.byteLength(text) });
    response.end(text);
  });
});
server.on("error", ended);
server.listen(Number(process.env.CHANNEL_PORT ?? 8787), "127.0.0.1", () => {
  const { port } = server.address() as net.AddressInfo;
  writeFileSync(join(state, "port.new"), `${port}\n`);
  renameSync(join(state, "port.new"), join(state, "port"));
  console.error(`http://127.0.0.1:${port}/channel-turns, pid ${process.pid}`);
});
lane.run().catch(ended);

/** There is no half-broken service: the next one starts from the journal. */
function ended(error: unknown) {
  console.error(error instanceof Error ? error.message : error);
  process.exit(1);
}

/**
 * One service for each state folder. The name is an abstract socket, which the system gives back when this process is
 * gone, however it ended, and which no child of it can keep.
 */
function holdAlone(folder: string): Promise<void> {
  const { dev, ino } = statSync(folder);
  return new Promise((resolve) => {
    const lock = net.createServer().unref();
    lock.on("error", (error: NodeJS.ErrnoException) => {
      console.error(error.code === "EADDRINUSE" ? `another service works in ${folder}` : error.message);
      process.exit(4);
    });
    lock.listen(`\0turnkeep-channel-${dev}-${ino}`, resolve);
  });
}

async function answer(request: http.IncomingMessage): Promise<Answer> {
  // A name that somebody else's page had pointed at this address must not speak for its user.
  if (!/^(127\.0\.0\.1|localhost)(:\d+)?$/.test(request.headers.host ?? "")) throw new Wrong(421, "this is 127.0.0.1");
  const [, root, id, act, ...more] = new URL(request.url ?? "/", "http://127.0.0.1").pathname.split("/");
  if (root !== "channel-turns" || more.length > 0) throw new Wrong(404, "no such resource");
  if (id !== undefined && !ID.test(id)) throw new Wrong(404, "no such delivery id");
  switch (`${request.method} ${act ?? (id === undefined ? "turns" : "turn")}`) {
    case "POST turns": return await accept(await bodyOf(request));
    case "GET turn": return { status: 200, body: await documentOf(id!) };
    case "POST approvals": return { status: 200, body: await decide(id!, await bodyOf(request)) };
    case "POST permissions": return permit(await bodyOf(request));
    default: throw new Wrong(405, "no such method here");
  }
}

function failed(error: unknown): Answer {
  const message = error instanceof Error ? error.message : String(error);
  if (error instanceof Wrong) return { status: error.status, body: { error: message } };
  const status = error instanceof Refused ? { [NOT_FOUND]: 404, [BUSY]: 409, [CONFLICT]: 409, [ALREADY_DONE]: 409 }[error.code] : undefined;
  return { status: status ?? 500, body: { error: message } };
}

/** Only as JSON: a page in somebody's browser cannot send that without asking. */
async function bodyOf(request: http.IncomingMessage): Promise<Record<string, unknown>> {
  if (!/^application\/json\b/.test(request.headers["content-type"] ?? "")) throw new Wrong(415, "content-type must be application/json");
  const parts: Buffer[] = [];
  let bytes = 0;
  for await (const part of request) {
    bytes += part.length;
    if (bytes > BODY_BYTES_MAX) throw new Wrong(413, `a body is at most ${BODY_BYTES_MAX} bytes`);
    parts.push(part);
  }
  try {
    const body = JSON.parse(Buffer.concat(parts).toString("utf8"));
    if (body && typeof body === "object") return body;
  } catch {
    // said below
  }
  throw new Wrong(400, "the body must be a JSON object");
}

function textIn(body: Record<string, unknown>, name: string): string {
  const value = body[name];
  if (typeof value !== "string" || value === "") throw new Wrong(400, `${name} must be a text`);
  return value;
}

/** Durable when it is answered. The same post again is answered with what there is; nothing happens twice. */
async function accept(body: Record<string, unknown>): Promise<Answer> {
  const [id, text] = [textIn(body, "id"), textIn(body, "text")];
  if (!ID.test(id)) throw new Wrong(400, `an id is ${ID.source}`);
  const known = await textKnownUnder(id);
  if (known === undefined) {
    inbox.add(id, text);
    lane.knock();
  }
  // Also right behind the add: of two posts at once, the one that came first counts.
  if ((known ?? (await textKnownUnder(id))) !== text) throw new Wrong(409, `the id ${id} was used with another text`);
  return { status: known === undefined ? 202 : 200, body: await documentOf(id) };
}

/** The inbox is asked first: what leaves it meanwhile is in the journal. */
async function textKnownUnder(id: string): Promise<unknown> {
  return inbox.find(id)?.text ?? (await statusOf(id))?.input;
}

/** What a client sees of a turn. */
async function documentOf(id: string) {
  const queued = inbox.find(id);
  const status = await statusOf(id);
  if (!status) {
    if (!queued) throw new Wrong(404, "no such delivery id");
    return { id, state: "queued", text: queued.text, reply: null, next: null, delivery: null, calls: [], asks: [] };
  }
  const { state, input, reply, next, delivery, calls } = status;
  return {
    id, state, text: input, reply: textOf(reply), next,
    delivery: delivery && { state: delivery.state, receipt: delivery.receipt },
    calls: calls.map(({ ref, tool, args, state, approval, do: todo }) => ({ call: ref, tool, args, state, do: todo, approval })),
    asks: state === "open" ? pi.asks() : [],
  };
}

/** A person's word on a call that the policy wants approved. It is in the journal, and survives. */
async function decide(id: string, body: Record<string, unknown>) {
  const status = await statusOf(id);
  if (!status) throw new Wrong(404, "no such delivery id");
  const [call, by, decision] = [textIn(body, "call"), textIn(body, "by"), textIn(body, "decision")];
  if (!/^\d+\.\d+$/.test(call)) throw new Wrong(400, "call must be a ref such as 7.0");
  const args = ["--json", "--session", `${SESSION}:${status.turn}`, `--by=${by}`];
  if (decision === "deny") args.push(...(body.reason === undefined ? [] : [`--reason=${textIn(body, "reason")}`]));
  else if (decision !== "approve") throw new Wrong(400, "decision must be approve or deny");
  else if (body.for !== undefined) {
    if (!Number.isSafeInteger(body.for) || (body.for as number) < 1) throw new Wrong(400, "for must be a number of seconds");
    args.push(`--for=${body.for}`);
  }
  const { out } = await turnkeep(["step", decision, call, ...args]);
  lane.knock();
  return { receipt: JSON.parse(out).receipt };
}

/** An answer to what an extension of Pi asks. It is known to this process alone, and asked again by the next. */
function permit(body: Record<string, unknown>): Answer {
  if (!pi.answer(textIn(body, "ask"), body.answer)) throw new Wrong(404, "nothing of that name is asked");
  return { status: 200, body: {} };
}
