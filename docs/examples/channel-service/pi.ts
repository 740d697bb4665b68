/**
 * Pi 1.6.0 in this process, by its SDK: with the extension that journals each step, with a gate that waits for a
 * person's approval before a call is claimed, and with the tools and permission extensions that the service was given.
 *
 * A Pi session is opened anew for each run, since Pi does not notice that `recover` wrote to its file.
 */
import { type AgentToolCall, type AgentToolResult, runToolCall } from "@earendil-works/pi-agent-core";
import {
  type AgentSession, createAgentSession, DefaultResourceLoader, type ExtensionAPI, getAgentDir, ModelRuntime, SessionManager, SettingsManager,
} from "@earendil-works/pi-coding-agent";
import { randomUUID } from "node:crypto";
import { mkdirSync } from "node:fs";
import { basename } from "node:path";
import { ALREADY_DONE, type Call, nextRecord, NOT_PERMITTED, statusOf, SESSION, type Status, turnkeep } from "./journal.ts";

export type Settings = { work: string; sessions: string; extensions: string[]; turnkeepExtension: string };
/** A question of one of Pi's extensions, most often whether a tool may run. Known to this process alone. */
export type Ask = { ask: string; kind: "select" | "confirm" | "input"; title: string; text?: string; options?: string[] };
type Answered = { ask: Ask; answer: (value: unknown) => void };

export class Pi {
  /** The delivery id of the turn that runs in Pi. */
  private current = "";
  private readonly asked = new Map<string, Answered>();
  private readonly settings: Settings;
  private readonly models: ModelRuntime;

  private constructor(settings: Settings, models: ModelRuntime) {
    this.settings = settings;
    this.models = models;
  }

  static async start(settings: Settings): Promise<Pi> {
    process.env.TURNKEEP_PI_SESSION = SESSION;
    for (const folder of [settings.work, settings.sessions]) mkdirSync(folder, { recursive: true, mode: 0o700 });
    return new Pi(settings, await ModelRuntime.create());
  }

  /** A new turn: the extension admits it under the delivery id, and settles it. */
  async prompt(id: string, text: string): Promise<void> {
    process.env.TURNKEEP_DELIVERY = id; // the extension takes it out again when it is loaded
    const manager = SessionManager.continueRecent(this.settings.work, this.settings.sessions);
    // What comes from the channel is never a command of Pi, nor a template.
    await this.run(id, manager, (session) => session.prompt(text, { expandPromptTemplates: false }));
  }

  /** Goes on with a turn of which this process has the ticket, without a user message. */
  async goOn({ ticket, tree, delivery }: Status): Promise<void> {
    if (!tree) throw new Error("a turn without a session file, which Pi could not have admitted");
    const manager = SessionManager.open(tree.path, this.settings.sessions, this.settings.work);
    const message = { customType: "turnkeep-resume", content: [], display: false, details: { ticket, leaf: tree.leaf } };
    await this.run(delivery!.key, manager, (session) => session.sendCustomMessage(message, { triggerTurn: true }));
  }

  private async run(id: string, manager: SessionManager, act: (session: AgentSession) => Promise<void>): Promise<void> {
    const session = await this.open(manager, [this.settings.turnkeepExtension]);
    this.current = id;
    try {
      await act(session);
      await session.waitForIdle();
    } finally {
      this.current = "";
      this.asked.clear();
      session.dispose();
    }
  }

  /**
   * Runs a call that `recover` found to be due, by Pi's own tool and behind Pi's own permission extensions, and records
   * its end. Pi's loop cannot: it only runs what a model asked for just now. The Pi session behind it has no file.
   */
  async runDueCall(ticket: string, turn: string, call: Call): Promise<void> {
    const session = await this.open(SessionManager.inMemory(this.settings.work), []);
    const toolCall = { type: "toolCall" as const, id: call.id, name: call.tool, arguments: call.args as AgentToolCall["arguments"] };
    const { tools } = session.agent.state;
    let claimed = false;
    let lapsed = false;
    try {
      const { result, isError, durationMs } = await runToolCall(toolCall, {
        tools,
        assistantMessage: { role: "assistant", content: [toolCall] } as never,
        context: { systemPrompt: "", messages: [], tools } as never,
        beforeToolCall: async (context, signal) => {
          const verdict = await session.agent.beforeToolCall?.(context, signal);
          if (verdict?.block) return verdict;
          // An approval may have run out while a permission was asked for; then nothing is recorded, and it is asked for again.
          const { code } = await turnkeep(["step", "--ticket", ticket, "claim", call.ref], [0, NOT_PERMITTED, ALREADY_DONE]);
          lapsed = code !== 0;
          claimed = !lapsed;
          return lapsed ? { block: true, reason: "not permitted any more" } : verdict;
        },
        afterToolCall: session.agent.afterToolCall,
      });
      if (lapsed) return;
      if (claimed) return await recordResult(ticket, call, result, isError, durationMs);
      await recordRefusal(ticket, turn, call);
    } finally {
      this.asked.clear();
      session.dispose();
    }
  }

  asks(): Ask[] {
    return [...this.asked.values()].map(({ ask }) => ask);
  }

  /** False where nothing of that name is asked (any more). */
  answer(ask: string, value: unknown): boolean {
    const found = this.asked.get(ask);
    if (found) found.answer(value);
    return found !== undefined;
  }

  private async open(sessionManager: SessionManager, last: string[]): Promise<AgentSession> {
    const { work } = this.settings;
    const agentDir = getAgentDir();
    // Extensions are those that the operator named, and nothing that lies in the working folder.
    const settingsManager = SettingsManager.create(work, agentDir, { projectTrusted: false });
    const resourceLoader = new DefaultResourceLoader({
      cwd: work, agentDir, settingsManager, noExtensions: true,
      additionalExtensionPaths: [...this.settings.extensions, ...last],
      extensionFactories: last.length > 0 ? [(pi) => this.gate(pi)] : [],
      // Hooks run in this order. The claim comes last, behind everything that may still refuse the call.
      extensionsOverride: (base) => {
        const isLast = ({ path }: { path: string }) => last.some((wanted) => basename(wanted) === basename(path));
        return { ...base, extensions: [...base.extensions.filter((each) => !isLast(each)), ...base.extensions.filter(isLast)] };
      },
    });
    await resourceLoader.reload();
    const { errors } = resourceLoader.getExtensions();
    if (errors.length > 0) throw new Error(errors.map(({ path, error }) => `${path}: ${error}`).join("\n"));
    const { session } = await createAgentSession({ cwd: work, agentDir, sessionManager, settingsManager, resourceLoader, modelRuntime: this.models });
    await session.bindExtensions({ uiContext: this.dialogs() as never, mode: "rpc", onError: (error) => console.error(`[pi] ${error.extensionPath}: ${error.error}`) });
    return session;
  }

  /** Holds a call whose policy wants an approval until a person has given or refused it. */
  private gate(pi: ExtensionAPI) {
    pi.on("tool_call", async (event) => {
      for (;;) {
        const status = await statusOf(this.current);
        const call = status?.calls.findLast((call) => call.id === event.toolCallId);
        if (call?.approval === "denied") return { block: true, reason: "This call was not run: a person denied it." };
        if (call?.do !== "ask") return;
        await nextRecord();
      }
    });
  }

  /** What extensions may ask a person. All else that a terminal could show does nothing here. */
  private dialogs() {
    const dialog = (kind: Ask["kind"], rest: Omit<Ask, "ask" | "kind">) => new Promise((resolve) => {
      const ask = { ask: randomUUID(), kind, ...rest };
      this.asked.set(ask.ask, { ask, answer: (value) => (this.asked.delete(ask.ask), resolve(value)) });
      console.error(`asked (${kind}): ${rest.title}`);
    });
    const known: Record<string, unknown> = {
      select: (title: string, options: string[]) => dialog("select", { title, options }),
      confirm: async (title: string, text: string) => (await dialog("confirm", { title, text })) === true,
      input: (title: string) => dialog("input", { title }),
      notify: (text: string) => console.error(text),
    };
    return new Proxy(known, { get: (target, name) => target[name as string] ?? (() => undefined) });
  }
}

async function recordResult(ticket: string, call: Call, result: AgentToolResult<unknown>, isError: boolean, durationMs?: number) {
  const message = {
    role: "toolResult", toolCallId: call.id, toolName: call.tool, content: result.content ?? [], details: result.details, isError, durationMs, timestamp: Date.now(),
  };
  await turnkeep(["step", "--ticket", ticket, "result", call.ref, "-"], [0], JSON.stringify(message));
}

/** It was refused before its claim. If it was claimed earlier, what became of that stays unknown. */
async function recordRefusal(ticket: string, turn: string, call: Call) {
  if (call.state === "intent") await turnkeep(["step", "--ticket", ticket, "result", call.ref, "--not-run"]);
  else await turnkeep(["step", "reconcile", call.ref, "--outcome", "unknown", "--by", "permission refused in Pi", "--session", `${SESSION}:${turn}`]);
}
