// A scripted model: an OpenAI-compatible chat completions server on 127.0.0.1 that streams what a script says and
// refuses, with 400 and a reason, each request that a strict provider would refuse: calls without results, results
// without calls, doubled ids, nothing to answer.
//
// usage: node server.mjs SCRIPT.json LOG.jsonl PORTFILE
// SCRIPT is a list of steps, one for each accepted request, in order:
//   {"text"?, "reasoning"?, "calls"?: [{"id","name","arguments"}], "finish"?, "tokens"?, "status"?, "hold"?}
//   hold: "start", "text" or "calls": stream up to there, note it in LOG, and then say nothing more.
// SCRIPT may also be {"rounds": [STEP...]}: the step is then chosen by how many messages of the model the request has
// behind its last user message, and %T in a step is the number of user messages. So it stays in step through crashes.
// LOG gets {"event":"request",n,refused,messages,tools} for each request and {"event":"held",n,at}; never rewritten.
import fs from "node:fs";
import http from "node:http";

const [scriptFile, logFile, portFile] = process.argv.slice(2);
const script = JSON.parse(fs.readFileSync(scriptFile, "utf8"));
const log = (event) => fs.appendFileSync(logFile, `${JSON.stringify(event)}\n`);
let requests = 0;
let served = 0;

function stepFor(messages) {
  if (Array.isArray(script)) return script[served];
  const users = messages.filter((message) => message.role === "user").length;
  const behind = messages.slice(messages.findLastIndex((message) => message.role === "user"));
  const step = script.rounds[behind.filter((message) => message.role === "assistant").length];
  return step && JSON.parse(JSON.stringify(step).replaceAll("%T", users));
}

/** Why a strict provider would refuse these messages, or null. */
function refusal({ messages }) {
  if (!Array.isArray(messages) || messages.length === 0) return "no messages";
  if (!["system", "developer"].includes(messages[0].role)) return "no system prompt";
  let open = new Set();
  for (const [at, message] of messages.entries()) {
    if (message.role === "tool") {
      if (!open.delete(message.tool_call_id)) return `messages[${at}]: a result for ${JSON.stringify(message.tool_call_id)}, which is no open call`;
      continue;
    }
    if (open.size) return `messages[${at}]: ${message.role} while calls have no result: ${[...open].join(", ")}`;
    const ids = (message.tool_calls ?? []).map((call) => call.id);
    if (ids.some((id) => !id)) return `messages[${at}]: a call with an empty id`;
    open = new Set(ids);
    if (open.size !== ids.length) return `messages[${at}]: doubled call ids`;
    for (const call of message.tool_calls ?? []) JSON.parse(call.function.arguments);
  }
  if (open.size) return `calls without a result at the end: ${[...open].join(", ")}`;
  if (!["user", "tool"].includes(messages.at(-1).role)) return `nothing to answer: the last message is of role ${messages.at(-1).role}`;
  return null;
}

const pieces = (text) => text.match(/.{1,16}/gsu) ?? [];

const server = http.createServer(async (request, response) => {
  let raw = "";
  for await (const chunk of request) raw += chunk;
  const json = (status, value) => {
    response.writeHead(status, { "content-type": "application/json" });
    response.end(JSON.stringify(value));
  };
  if (!request.url.endsWith("/chat/completions")) return json(404, {});
  const body = JSON.parse(raw);
  const n = requests++;
  const step = stepFor(body.messages ?? []);
  const refused = refusal(body) ?? (step ? null : "the script has no further step");
  log({ event: "request", n, refused, messages: body.messages, tools: (body.tools ?? []).map((tool) => tool.function?.name) });
  if (refused) return json(400, { error: { message: refused, type: "invalid_request_error" } });
  served++;
  if (step.status) return json(step.status, { error: { message: "scripted failure" } });

  response.writeHead(200, { "content-type": "text/event-stream" });
  const send = (delta, finish_reason = null) =>
    response.write(`data: ${JSON.stringify({ id: `chat-${n}`, object: "chat.completion.chunk", created: 1, model: body.model, choices: [{ index: 0, delta, finish_reason }] })}\n\n`);
  const held = (at) => step.hold === at && (log({ event: "held", n, at }), true);
  send({ role: "assistant", content: "" });
  if (held("start")) return;
  for (const piece of pieces(step.reasoning ?? "")) send({ reasoning_content: piece });
  for (const piece of pieces(step.text ?? "")) send({ content: piece });
  if (held("text")) return;
  for (const [index, call] of (step.calls ?? []).entries()) {
    send({ tool_calls: [{ index, id: call.id, type: "function", function: { name: call.name, arguments: "" } }] });
    for (const piece of pieces(JSON.stringify(call.arguments))) send({ tool_calls: [{ index, function: { arguments: piece } }] });
  }
  if (held("calls")) return;
  send({}, step.finish ?? (step.calls ? "tool_calls" : "stop"));
  const prompt_tokens = step.tokens ?? 100 + n;
  response.write(`data: ${JSON.stringify({ id: `chat-${n}`, object: "chat.completion.chunk", created: 1, model: body.model, choices: [], usage: { prompt_tokens, completion_tokens: 20, total_tokens: prompt_tokens + 20 } })}\n\n`);
  response.end("data: [DONE]\n\n");
});

server.listen(0, "127.0.0.1", () => {
  fs.writeFileSync(`${portFile}.new`, String(server.address().port));
  fs.renameSync(`${portFile}.new`, portFile);
});
