// The world outside of the service, in a process of its own: a file of effects that tools add lines to, and a channel
// that replies are published to. It doubles what it is told twice, so that a doubled effect or reply is seen.
//
// usage: node outside.mjs DIR. It listens on 127.0.0.1; the port is in DIR/port.
//   POST /effects        adds the body as a line to DIR/effects
//   PUT /messages/ID     adds ID and the body as a line to DIR/outbox; answers with a receipt
//   GET /messages/ID     the receipt, or 404
// Files in DIR change that, at any time:
//   hold-effect          POST: add the line, then do not answer
//   hold-before          PUT: add nothing and do not answer;   hold-after: add the line and do not answer
//   refuse               PUT: 503, and add nothing
//   no-lookup            GET: 501;                              lying-lookup: 404, whatever is there
// DIR/seen gets a line for each request, once it has done what it does.
import fs from "node:fs";
import http from "node:http";

const dir = process.argv[2];
const is = (name) => fs.existsSync(`${dir}/${name}`);
const add = (name, line) => fs.appendFileSync(`${dir}/${name}`, `${line}\n`);
const outbox = () => (is("outbox") ? fs.readFileSync(`${dir}/outbox`, "utf8").split("\n") : []);

const server = http.createServer(async (request, response) => {
  let body = "";
  for await (const chunk of request) body += chunk;
  const id = request.url.split("/").at(-1);
  const answer = (status, text) => {
    response.writeHead(status);
    response.end(text);
  };
  const seen = (held) => (add("seen", `${request.method} ${request.url}${held ? " held" : ""}`), held);
  const at = outbox().findIndex((line) => line.startsWith(`${id} `));
  switch (request.method) {
    case "POST":
      add("effects", body);
      if (!seen(is("hold-effect"))) answer(200, "done");
      return;
    case "PUT":
      if (is("refuse")) return seen(false), answer(503, "");
      if (is("hold-before")) return void seen(true);
      add("outbox", `${id} ${body.replaceAll("\n", " ")}`);
      if (!seen(is("hold-after"))) answer(200, `receipt-${id}-${outbox().length - 2}`);
      return;
    case "GET":
      seen(false);
      if (is("no-lookup")) return answer(501, "");
      return at < 0 || is("lying-lookup") ? answer(404, "") : answer(200, `receipt-${id}-${at}`);
  }
});
server.listen(0, "127.0.0.1", () => {
  fs.writeFileSync(`${dir}/port.new`, String(server.address().port));
  fs.renameSync(`${dir}/port.new`, `${dir}/port`);
});
