/**
 * The channel that replies are published to: `PUT URL/ID` with the text publishes, `GET URL/ID` tells whether it is
 * there. Replace this file by what your channel speaks.
 *
 * A 404 of the GET must mean "is not there and will not come": on it the reply is published again. A channel that may
 * still be at work on an earlier PUT, or that cannot look anything up, answers anything else.
 */
export type Found = { is: "there"; receipt: string } | { is: "absent" } | { is: "unknown" };

/** Longer than the channel takes; whoever runs into it asks the channel afterwards. */
const PATIENCE_MS = 30_000;

export class Channel {
  readonly url: string;

  constructor(url: string) {
    this.url = url.replace(/\/$/, "");
  }

  /** The receipt. Nothing where it is not known what became of the reply. */
  async publish(id: string, text: string): Promise<string | undefined> {
    const answer = await this.ask(id, { method: "PUT", body: text, headers: { "content-type": "text/plain; charset=utf-8" } });
    return answer?.ok ? answer.text || id : undefined;
  }

  async lookUp(id: string): Promise<Found> {
    const answer = await this.ask(id, { method: "GET" });
    if (answer?.ok) return { is: "there", receipt: answer.text || id };
    return { is: answer?.status === 404 ? "absent" : "unknown" };
  }

  private async ask(id: string, how: RequestInit): Promise<{ ok: boolean; status: number; text: string } | undefined> {
    try {
      const answer = await fetch(`${this.url}/${id}`, { ...how, redirect: "error", signal: AbortSignal.timeout(PATIENCE_MS) });
      return { ok: answer.ok, status: answer.status, text: (await answer.text()).trim() };
    } catch (error) {
      console.error(`channel: ${how.method} ${id}: ${error instanceof Error ? (error.cause ?? error.message) : error}`);
      return undefined;
    }
  }
}
