// Numbers and times as people read them.
export const money = (usd) => (usd == null ? "–" : usd >= 1 ? `$${usd.toFixed(2)}` : usd >= 0.1 ? `$${usd.toFixed(3)}` : usd === 0 ? "$0" : `$${usd.toFixed(4)}`);
export const count = (n) => (n >= 1e6 ? `${(n / 1e6).toFixed(2)}M` : n >= 1e5 ? `${Math.round(n / 1000)}k` : n >= 1e4 ? `${(n / 1000).toFixed(1)}k` : n.toLocaleString("en"));
export const plural = (n, one, many = `${one}s`) => `${n.toLocaleString("en")} ${n === 1 ? one : many}`;

export function span(seconds) {
  if (seconds == null || Number.isNaN(seconds)) return "–";
  if (seconds <= 0) return "0 s";
  if (seconds < 0.001) return `${(seconds * 1e6).toFixed(0)} µs`;
  if (seconds < 0.01) return `${(seconds * 1e3).toFixed(1)} ms`;
  if (seconds < 1) return `${(seconds * 1e3).toFixed(0)} ms`;
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} m ${String(Math.floor(seconds % 60)).padStart(2, "0")} s`;
  if (seconds < 48 * 3600) return `${Math.floor(seconds / 3600)} h ${String(Math.floor((seconds % 3600) / 60)).padStart(2, "0")} m`;
  return `${Math.floor(seconds / 86400)} days`;
}

export function ago(time, now) {
  if (!time) return "–";
  const seconds = Math.max(0, now - time);
  return seconds < 1 ? "now" : seconds < 60 ? `${Math.floor(seconds)} s ago` : seconds < 3600 ? `${Math.floor(seconds / 60)} m ago` : seconds < 48 * 3600 ? `${Math.floor(seconds / 3600)} h ago` : `${Math.floor(seconds / 86400)} days ago`;
}

const two = (n) => String(n).padStart(2, "0");
export function clock(time) { const at = new Date(time * 1000); return `${two(at.getHours())}:${two(at.getMinutes())}`; }
export function moment(time) { const at = new Date(time * 1000); return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`; }
export const offset = (t) => (t < 0.0005 ? "0" : t < 1 ? `${Math.round(t * 1000)} ms` : t < 60 ? `${+t.toFixed(1)} s` : t < 3600 ? `${Math.floor(t / 60)}:${two(Math.floor(t % 60))}` : `${Math.floor(t / 3600)}:${two(Math.floor((t % 3600) / 60))} h`);
// Round numbers from one to another, at most `most` of them or one more, whatever a log claims about its times.
export function rounded(from, to, most, units) {
  let unit = units.find((one) => (to - from) / one <= most) ?? units.at(-1);
  while ((to - from) / unit > most) unit *= 10;
  const first = Math.ceil(from / unit - 1e-9), last = Math.floor(to / unit + 1e-9);
  return { unit, at: Array.from({ length: Math.max(0, Math.min(most + 1, last - first + 1)) }, (_, n) => (first + n) * unit) };
}
export const short = (text, n = 80) => (text.length > n ? `${text.slice(0, n - 1).trimEnd()}…` : text);
export const parsed = (json) => { try { const value = JSON.parse(json); return value && typeof value === "object" ? value : { value }; } catch { return null; } };
// A value from its JSON; a text that was cut is shown as it is.
export const valueOf = (json) => { try { return JSON.parse(json); } catch { return json; } };
export function oneLine(json) {
  const value = parsed(json);
  return value === null ? json : Object.values(value).map((one) => (typeof one === "string" ? one : JSON.stringify(one))).join(", ");
}

export const STATES = { live: "live", running: "running", interrupted: "interrupted", waiting: "waiting for a person", done: "completed", stopped: "stopped", failed: "failed", cancelled: "cancelled" };
