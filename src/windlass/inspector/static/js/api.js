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
export const at = (...parts) => `/api/sessions/${parts.map((part) => encodeURIComponent(part)).join("/")}`;

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
    const decoder = new TextDecoder();
    let rest = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const blocks = (rest + decoder.decode(value, { stream: true })).split("\n\n");
      rest = blocks.pop();
      for (const block of blocks) this.take(block);
    }
  }
  take(block) {
    const field = (name) => block.split("\n").find((line) => line.startsWith(`${name}: `))?.slice(name.length + 2);
    const data = field("data");
    if (!data) return;
    this.last = field("id") ?? this.last;
    this.onEvent(field("event"), JSON.parse(data));
  }
}

function link(up, why = "") {
  const el = document.getElementById("link");
  el.textContent = up ? "" : why;
  el.classList.toggle("down", !up);
}
