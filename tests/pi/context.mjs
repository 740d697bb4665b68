// Prints the messages of the active branch of a session file, one JSON document a line, as Pi itself reads them.
// usage: node context.mjs PI_PACKAGE_DIR SESSION.jsonl
import fs from "node:fs";
import os from "node:os";
import path from "node:path";

const [pkg, file] = process.argv.slice(2);
const { SessionManager } = await import(path.join(pkg, "dist/index.js"));
// Pi may write when it opens a file; looking must not.
const copy = path.join(fs.mkdtempSync(path.join(os.tmpdir(), "context-")), path.basename(file));
fs.copyFileSync(file, copy);
for (const message of SessionManager.open(copy).buildSessionContext().messages) console.log(JSON.stringify(message));
fs.rmSync(path.dirname(copy), { recursive: true });
