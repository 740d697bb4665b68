//! A scripted model and a letter box on 127.0.0.1: chat completions, refused where a strict provider refuses them.
//!
//! The answer is chosen by what the request says, not by how many there were, so that a driver that was killed and
//! asks again is told the same. What is posted to the letter box is an effect: it is only counted, never refused.

use crate::strict::{Provider, Use};
use serde_json::{Value, json};
use std::collections::HashSet;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// One answer of the model.
#[derive(Clone, Default)]
pub struct Answer {
    text: &'static str,
    calls: Vec<(&'static str, &'static str, String)>,
    finish: Option<&'static str>,
    cut: bool,
}

impl Answer {
    pub fn text(text: &'static str) -> Self {
        Self { text, ..Self::default() }
    }

    /// Calls: id, tool, arguments as they are sent.
    pub fn calls(calls: &[(&'static str, &'static str, Value)]) -> Self {
        let calls = calls.iter().map(|(id, tool, args)| (*id, *tool, args.to_string())).collect();
        Self { calls, ..Self::default() }
    }

    /// One call whose arguments are sent as they are.
    pub fn raw_call(id: &'static str, tool: &'static str, arguments: &str) -> Self {
        Self { calls: vec![(id, tool, arguments.to_owned())], ..Self::default() }
    }

    /// With another finish reason.
    pub fn finishing(mut self, reason: &'static str) -> Self {
        self.finish = Some(reason);
        self
    }

    /// The connection breaks off in the middle of it, the first time.
    pub fn cut_once(mut self) -> Self {
        self.cut = true;
        self
    }

    fn finish(&self) -> &'static str {
        self.finish.unwrap_or(if self.calls.is_empty() { "stop" } else { "tool_calls" })
    }

    fn calls_json(&self) -> Vec<Value> {
        let call = |(index, (id, name, arguments)): (usize, &(&str, &str, String))| json!({"index": index, "id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
        self.calls.iter().enumerate().map(call).collect()
    }

    fn whole(&self) -> String {
        let content = if self.text.is_empty() { Value::Null } else { json!(self.text) };
        let mut message = json!({"role": "assistant", "content": content, "refusal": null});
        if !self.calls.is_empty() {
            message["tool_calls"] = json!(self.calls_json());
        }
        let choice = json!({"index": 0, "message": message, "finish_reason": self.finish()});
        json!({"id": "chat", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice],
               "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}})
        .to_string()
    }

    /// As events: the calls one after the other, their arguments in halves.
    fn stream(&self) -> String {
        let chunk = |delta: Value, finish: Value| {
            let choice = json!({"index": 0, "delta": delta, "finish_reason": finish});
            let chunk = json!({"id": "chat", "object": "chat.completion.chunk", "created": 1, "model": "m",
                               "choices": [choice]});
            format!("data: {chunk}\n\n")
        };
        let mut events = chunk(json!({"role": "assistant", "content": ""}), Value::Null);
        for word in self.text.split_inclusive(' ') {
            events += &chunk(json!({"content": word}), Value::Null);
        }
        for mut call in self.calls_json() {
            let arguments = call["function"]["arguments"].as_str().unwrap().to_owned();
            let (first, second) = arguments.split_at(arguments.len() / 2);
            call["function"]["arguments"] = json!(first);
            events += &chunk(json!({"tool_calls": [&call]}), Value::Null);
            let rest = json!({"index": call["index"], "function": {"arguments": second}});
            events += &chunk(json!({"tool_calls": [rest]}), Value::Null);
        }
        events + &chunk(json!({}), json!(self.finish())) + "data: [DONE]\n\n"
    }
}

/// One request for an answer.
#[derive(Clone, Debug)]
pub struct Asked {
    pub messages: Vec<Value>,
    /// Why it was answered with 400.
    pub refused: Option<String>,
}

/// Something that was posted to the letter box.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Posted {
    /// `/send` or `/reply`.
    pub place: String,
    /// Its idempotency key.
    pub key: String,
    pub text: String,
}

#[derive(Default)]
struct Seen {
    asked: Vec<Asked>,
    posted: Vec<Posted>,
    /// Answers that were broken off, by their number.
    cut: HashSet<usize>,
}

/// It runs until it is dropped.
pub struct Server {
    address: SocketAddr,
    seen: Arc<Mutex<Seen>>,
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// `answers[n]` is what is said where the model spoke n times behind the last user message.
    pub fn start(answers: Vec<Answer>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (seen, over) = (Arc::new(Mutex::new(Seen::default())), Arc::new(AtomicBool::new(false)));
        let desk = Desk { answers, seen: Arc::clone(&seen) };
        let stop = Arc::clone(&over);
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming() {
                if stop.load(Ordering::SeqCst) {
                    return;
                }
                // A client that is killed in the middle is no error of the server.
                let _gone = stream.and_then(|stream| desk.serve(stream));
            }
        });
        Self { address, seen, over, thread: Some(thread) }
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub fn asked(&self) -> Vec<Asked> {
        self.seen.lock().unwrap().asked.clone()
    }

    pub fn posted(&self, place: &str) -> Vec<Posted> {
        let seen = self.seen.lock().unwrap();
        seen.posted.iter().filter(|posted| posted.place == place).cloned().collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.over.store(true, Ordering::SeqCst);
        let _woken = TcpStream::connect(self.address);
        if let Some(thread) = self.thread.take() {
            let _ended = thread.join();
        }
    }
}

struct Desk {
    answers: Vec<Answer>,
    seen: Arc<Mutex<Seen>>,
}

impl Desk {
    fn serve(&self, stream: TcpStream) -> std::io::Result<()> {
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        let mut reader = BufReader::new(stream.try_clone()?);
        let mut first = String::new();
        reader.read_line(&mut first)?;
        let place = first.split(' ').nth(1).unwrap_or_default().to_owned();
        let (mut bytes, mut key) = (0, String::new());
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line)? == 0 {
                return Ok(());
            }
            let Some((name, value)) = line.trim_end().split_once(':') else { break };
            match name.to_ascii_lowercase().as_str() {
                "content-length" => bytes = value.trim().parse().unwrap_or(0),
                "idempotency-key" => value.trim().clone_into(&mut key),
                "expect" => (&stream).write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?,
                _ => {}
            }
        }
        let mut body = vec![0; bytes];
        reader.read_exact(&mut body)?;
        let body = String::from_utf8_lossy(&body).into_owned();
        if place == "/v1/chat/completions" {
            return self.answer(&stream, &body);
        }
        self.seen.lock().unwrap().posted.push(Posted { place, key: key.clone(), text: body });
        respond(&stream, "200 OK", "text/plain", &format!("posted under {key}"))
    }

    fn answer(&self, stream: &TcpStream, body: &str) -> std::io::Result<()> {
        let request: Value = serde_json::from_str(body).unwrap_or_default();
        let messages = request["messages"].as_array().cloned().unwrap_or_default();
        let spoken = rounds(&messages);
        let answer = self.answers.get(spoken);
        let refused = refusal(&request, &messages)
            .or_else(|| answer.is_none().then(|| format!("nothing is left to say behind {spoken} answers")));
        let cut = {
            let mut seen = self.seen.lock().unwrap();
            seen.asked.push(Asked { messages, refused: refused.clone() });
            refused.is_none() && answer.is_some_and(|answer| answer.cut) && seen.cut.insert(spoken)
        };
        match (refused, answer) {
            (None, Some(answer)) if request["stream"] == true => {
                let events = answer.stream();
                let sent = if cut { &events[..events.len() / 2] } else { &events };
                let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n";
                let mut stream = stream;
                stream.write_all(head.as_bytes())?;
                stream.write_all(sent.as_bytes())
            }
            (None, Some(answer)) if cut => {
                let whole = answer.whole();
                let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", whole.len());
                let mut stream = stream;
                stream.write_all(head.as_bytes())?;
                stream.write_all(&whole.as_bytes()[..whole.len() / 2])
            }
            (None, Some(answer)) => respond(stream, "200 OK", "application/json", &answer.whole()),
            (refused, _) => {
                let error = json!({"error": {"message": refused, "type": "invalid_request_error"}});
                respond(stream, "400 Bad Request", "application/json", &error.to_string())
            }
        }
    }
}

/// How many messages of the model stand behind the last user message.
fn rounds(messages: &[Value]) -> usize {
    messages
        .iter()
        .rev()
        .take_while(|message| message["role"] != "user")
        .filter(|m| m["role"] == "assistant")
        .count()
}

fn refusal(request: &Value, messages: &[Value]) -> Option<String> {
    if !request["model"].is_string() {
        return Some("no model".to_owned());
    }
    if messages.first().is_none_or(|message| message["role"] != "system") {
        return Some("no system prompt".to_owned());
    }
    let named = |tool: &Value| tool["function"]["name"].is_string() && tool["type"] == "function";
    if !request["tools"].as_array().is_some_and(|tools| !tools.is_empty() && tools.iter().all(named)) {
        return Some("no tools".to_owned());
    }
    Provider::OpenaiChat.refusal(messages, Use::Request)
}

fn respond(mut stream: &TcpStream, status: &str, kind: &str, body: &str) -> std::io::Result<()> {
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(body.as_bytes())
}
