// What the page asks of its server. The token comes in the part of the address after #, which is never sent.
let token = "";

export function takeToken() {
  const given = /^#token=([\w-]+)(.*)$/.exec(location.hash);
  if (given) {
    token = given[1];
    try { sessionStorage.setItem("windlass-token", token); } catch { /* a private window keeps it until it is closed */ }
    history.replaceState(null, "", location.pathname + (given[2] || "#/sessions"));
  } else {
    try { token = sessionStorage.getItem("windlass-token") ?? ""; } catch { /* as above */ }
  }
  return token !== "";
}

export class Refused extends Error {
  constructor(status, message) { super(message); this.status = status; }
}

async function ask(path, options = {}) {
  const response = await fetch(path, { ...options, headers: { authorization: `Bearer ${token}`, ...options.headers }, cache: "no-store" });
  if (!response.ok) {
    const body = await response.json().catch(() => null);
    throw new Refused(response.status, body?.error?.message ?? `the server answered ${response.status}`);
  }
  return response;
}

export const get = async (path, signal) => (await ask(path, { signal })).json();
export const post = async (path, body) => (await ask(path, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) })).json();
// Browsers resolve the parts "." and ".." of a path, also if they are encoded: an id like this is marked.
const part = (text) => `${/^(=|\.{1,2}$)/.test(text) ? "=" : ""}${encodeURIComponent(text)}`;
export const at = (...parts) => `/api/sessions/${parts.map(part).join("/")}`;

// The events in a response, until it ends.
async function* events(reader) {
  const decoder = new TextDecoder();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const blocks = (rest + decoder.decode(value, { stream: true })).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      const field = (name) => block.split("\n").find((line) => line.startsWith(`${name}: `))?.slice(name.length + 2);
      const data = field("data");
      if (data) yield { type: field("event"), id: field("id"), data: JSON.parse(data) };
    }
  }
}
// Work that the server does while it says how far it is. To abort the signal ends it.
export async function flow(path, body, onEvent, signal) {
  const response = await ask(path, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body), signal });
  for await (const { type, data } of events(response.body.getReader())) onEvent(type, data);
}

// A stream of events that continues after the last one it got, also after the connection was lost.
export class Tail {
  constructor(path, onEvent, last = "") {
    this.path = path; this.onEvent = onEvent; this.last = last; this.stop = new AbortController();
    this.run();
  }
  close() { this.stop.abort(); link(true); }
  async run() {
    for (let tries = 0; !this.stop.signal.aborted; tries += 1) {
      try {
        const response = await ask(this.path, { signal: this.stop.signal, headers: this.last ? { "last-event-id": this.last } : {} });
        link(true);
        tries = 0;
        await this.read(response.body.getReader());
      } catch (error) {
        if (this.stop.signal.aborted) return;
        if (error instanceof Refused && error.status < 500) { link(false, error.message); return; }
      }
      if (this.stop.signal.aborted) return;
      link(false, "connection lost");
      await new Promise((done) => setTimeout(done, Math.min(5000, 250 * 2 ** tries)));
    }
  }
  async read(reader) {
    for await (const { type, id, data } of events(reader)) {
      this.last = id ?? this.last;
      this.onEvent(type, data);
    }
  }
}

function link(up, why = "") {
  const el = document.getElementById("link");
  el.textContent = up ? "" : why;
  el.classList.toggle("down", !up);
}
