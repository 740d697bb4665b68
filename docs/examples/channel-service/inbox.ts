/**
 * What was accepted and is not admitted yet: one file for each delivery id, written, synced and then linked to its
 * name, so that it is there as a whole or not at all. Once the journal has the turn, the file is removed; if that was
 * cut short by a crash, the journal counts.
 */
import { closeSync, existsSync, fsyncSync, linkSync, mkdirSync, openSync, readdirSync, readFileSync, unlinkSync, writeFileSync } from "node:fs";
import { join } from "node:path";

export type Post = { id: string; text: string; at: number };

export class Inbox {
  readonly folder: string;

  constructor(folder: string) {
    this.folder = folder;
    mkdirSync(folder, { recursive: true, mode: 0o700 });
    for (const name of readdirSync(folder)) if (name.endsWith(".new")) unlinkSync(join(folder, name));
  }

  find(id: string): Post | undefined {
    const path = join(this.folder, `${id}.json`);
    return existsSync(path) ? JSON.parse(readFileSync(path, "utf8")) : undefined;
  }

  /** When this returns, the post survives a crash. Whoever comes second under one id changes nothing. */
  add(id: string, text: string): void {
    const posts = this.waiting();
    const post: Post = { id, text, at: Math.max(Date.now(), (posts.at(-1)?.at ?? 0) + 1) };
    const [path, draft] = [join(this.folder, `${id}.json`), join(this.folder, `${id}.new`)];
    const fd = openSync(draft, "w", 0o600);
    writeFileSync(fd, JSON.stringify(post));
    fsyncSync(fd);
    closeSync(fd);
    if (!existsSync(path)) linkSync(draft, path);
    unlinkSync(draft);
    this.sync();
  }

  remove(id: string): void {
    const path = join(this.folder, `${id}.json`);
    if (existsSync(path)) unlinkSync(path);
  }

  /** In the order in which they were accepted. */
  waiting(): Post[] {
    const names = readdirSync(this.folder).filter((name) => name.endsWith(".json"));
    const posts: Post[] = names.map((name) => JSON.parse(readFileSync(join(this.folder, name), "utf8")));
    return posts.sort((a, b) => a.at - b.at);
  }

  private sync(): void {
    const fd = openSync(this.folder, "r");
    fsyncSync(fd);
    closeSync(fd);
  }
}
