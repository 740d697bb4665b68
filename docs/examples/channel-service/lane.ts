/**
 * The lane: one conversation, one turn at a time, the oldest first. It does what the journal says comes next, for a
 * fresh turn and for one that a killed service left behind alike, and remembers nothing that a restart would need.
 *
 * What it cannot do ends the process: a supervisor starts it again, and it goes on from the journal.
 */
import type { Inbox, Post } from "./inbox.ts";
import { nextRecord, recover, type Status, statusOf, statusOfTurn, textOf, turnkeep, unclosedTurns } from "./journal.ts";
import type { Channel } from "./outside.ts";
import type { Pi } from "./pi.ts";

/** Longest pause between two requests to the channel about one turn. */
const PAUSE_MAX_MS = 60_000;

export class Lane {
  private readonly inbox: Inbox;
  private readonly pi: Pi;
  private readonly channel: Channel;
  private unclosed: string[] = [];
  /** Turns whose last request to the channel was in vain: when the next one is due. */
  private readonly later = new Map<string, { times: number; due: number }>();
  private wake = () => {};

  constructor(inbox: Inbox, pi: Pi, channel: Channel) {
    this.inbox = inbox;
    this.pi = pi;
    this.channel = channel;
  }

  /** Never returns. Turns that were left behind come before anything new. */
  async run(): Promise<never> {
    this.unclosed = await unclosedTurns();
    for (;;) {
      const woken = new Promise<void>((resolve) => (this.wake = resolve));
      let open = false;
      for (const turn of [...this.unclosed]) {
        const { state } = await this.advance(turn);
        if (state === "closed") this.forget(turn);
        open ||= state === "open" || state === "parked";
      }
      // A turn that is settled and waits for its delivery does not hold up the next one.
      const [post] = open ? [] : this.inbox.waiting();
      if (post) await this.begin(post);
      else await Promise.race(this.unclosed.length > 0 ? [woken, nextRecord()] : [woken]);
    }
  }

  /** There is something new in the inbox. */
  knock(): void {
    this.wake();
  }

  private async begin({ id, text }: Post): Promise<void> {
    let status = await statusOf(id);
    if (!status) {
      await this.pi.prompt(id, text);
      status = await statusOf(id);
      if (!status) throw new Error(`Pi did not admit ${id}`);
      // Another owner: a CLI call of a killed service came to its end in between.
      if (status.state === "open" && status.owner?.pid === process.pid) throw new Error(`Pi ended and left the turn of ${id} open: ${status.next.why}`);
    }
    if (!this.unclosed.includes(status.turn)) this.unclosed.push(status.turn);
    this.inbox.remove(id);
  }

  /** As far as it goes now. */
  private async advance(turn: string): Promise<Status> {
    for (;;) {
      const status = await recover(turn);
      if (status.delivery?.state === "begun") {
        if (!this.isDue(turn) || !(await this.lookUp(status))) return status;
        continue;
      }
      const { ticket } = status;
      if (!ticket) return status;
      switch (status.next.do) {
        case "call_model":
          await this.pi.goOn(status);
          if ((await statusOfTurn(turn)).state === "open") throw new Error(`Pi ended and left turn ${turn} open`);
          break;
        case "run_calls":
          for (const ref of status.next.refs) await this.pi.runDueCall(ticket, turn, status.calls.find((call) => call.ref === ref)!);
          break;
        case "settle":
          await turnkeep(["step", "--ticket", ticket, "settle"]);
          break;
        case "deliver":
          if (!this.isDue(turn) || !(await this.publish(ticket, status))) return status;
          break;
        case "recover":
          break;
        default: // done, or for somebody else to do
          return status;
      }
    }
  }

  /** Between the first and the last line of this the reply may be out without a receipt. */
  private async publish(ticket: string, { turn, delivery, reply }: Status): Promise<boolean> {
    const deliver = ["step", "--ticket", ticket, "deliver"];
    await turnkeep([...deliver, "--begin"]);
    const receipt = await this.channel.publish(delivery!.key, textOf(reply) ?? "");
    if (receipt === undefined) return this.tryLater(turn);
    await turnkeep([...deliver, "--receipt", receipt]);
    return true;
  }

  /**
   * A publication that was begun and has no receipt is never repeated on a guess. Where the channel can be asked for the
   * delivery id, it is; else this waits for a person. True when the journal was told.
   */
  private async lookUp({ session, turn, attempt, owner, delivery }: Status): Promise<boolean> {
    const found = await this.channel.lookUp(delivery!.key);
    if (found.is === "unknown") return this.tryLater(turn);
    // By the ticket where this process began it, else as the person's act that it stands for. The time tells two answers
    // of the channel apart: a "not sent" that was said of an earlier try says nothing of this one.
    const mine = owner?.pid === process.pid && owner.alive;
    const as = [...(mine ? ["--ticket", `${session}:${turn}:${attempt}`] : []), "deliver", ...(mine ? [] : ["--session", `${session}:${turn}`])];
    as.push("--by", `channel-service, asked the channel at ${new Date().toISOString()}`);
    await turnkeep(["step", ...as, ...(found.is === "there" ? ["--receipt", found.receipt] : ["--not-sent"])]);
    return true;
  }

  private forget(turn: string): void {
    this.unclosed = this.unclosed.filter((other) => other !== turn);
    this.later.delete(turn);
  }

  private isDue(turn: string): boolean {
    return Date.now() >= (this.later.get(turn)?.due ?? 0);
  }

  private tryLater(turn: string): false {
    const times = this.later.get(turn)?.times ?? 0;
    this.later.set(turn, { times: times + 1, due: Date.now() + Math.min(PAUSE_MAX_MS, 250 * 2 ** times) });
    return false;
  }
}
