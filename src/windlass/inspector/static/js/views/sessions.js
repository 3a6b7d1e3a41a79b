// All sessions: those that run or wait first, then the latest. The list comes at once, what is in the logs follows.
import { get, Tail } from "../api.js";
import { h, s, mark, say } from "../dom.js";
import { ago, clock, count, money, plural, rounded, short, span, STATES } from "../format.js";
import { VirtualList } from "../virtual.js";
import { place } from "./diff.js";

const FILTERS = [
  ["all", "All", () => true], ["live", "Live", (one) => one.state === "live"], ["waiting", "Waiting", (one) => one.state === "waiting"],
  ["failed", "Failed or stopped", (one) => ["failed", "stopped", "cancelled", "interrupted"].includes(one.state)],
  ["deny", "Refused something", (one) => one.digest?.verdicts?.deny], ["changed", "Changed something", (one) => one.digest?.verdicts?.changed],
];
const memory = { filter: "all", search: "" };
let all = new Map(), tall = 1e-9, list, tail, parts, root, now, skew, timer, asked, page, queue, ordered = [];

const isLive = (one) => one.live;
function stateOf(info, digest) {
  if (info.live) return "live";
  if (info.status === "suspended" || info.waiting) return "waiting";
  if (digest?.state && digest.state !== "running") return digest.state;
  return info.status === "running" ? "interrupted" : digest?.state === "running" ? "interrupted" : "done";
}
function take(info) {
  const digest = all.get(info.session)?.digest, one = { ...info, digest: digest ?? null, fresh: digest?.records === info.records };
  one.state = stateOf(one, one.digest);
  all.set(info.session, one);
}

export async function show(view, _, context) {
  root = view; page = context; asked = new Set(); queue = Promise.resolve();
  const data = await get(`/api/sessions${memory.search ? `?search=${encodeURIComponent(memory.search)}` : ""}`);
  if (!context.isCurrent()) return;
  context.setStore(data.store);
  skew = data.now - Date.now() / 1000; now = data.now;
  all = new Map();
  for (const info of data.sessions) take(info);
  build(data);
  fill();
  // From the latest that is listed on: what changes until the stream begins must not be missed.
  tail = new Tail("/api/events", onEvent, Math.max(0, ...data.sessions.map((one) => one.updated)).toFixed(6));
  timer = setInterval(() => { now = Date.now() / 1000 + skew; for (const el of root.querySelectorAll("[data-at]")) el.textContent = ago(Number(el.dataset.at), now); }, 5000);
  const digests = [...all.keys()];
  for (let i = 0; i < Math.min(digests.length, 1500); i += 40) await fold(digests.slice(i, i + 40), context);
}
export function leave() { tail?.close(); tail = null; list?.close(); clearInterval(timer); }

function fold(names, context = page) {
  const wanted = names.filter((name) => !asked.has(name) && all.has(name));
  for (const name of wanted) asked.add(name);
  queue = queue.then(async () => {
    if (!wanted.length || !context.isCurrent()) return;
    const found = await get(`/api/digests?${wanted.map((name) => `id=${encodeURIComponent(name)}`).join("&")}`);
    if (!context.isCurrent()) return;
    for (const [name, digest] of Object.entries(found)) { const one = all.get(name); if (one) { one.digest = digest; one.state = stateOf(one, digest); } }
    fill(wanted);
  }).catch(() => {});
  return queue;
}
let wanted = new Set();
function want(name) {
  if (!wanted.size) setTimeout(() => { const names = [...wanted]; wanted = new Set(); fold(names.slice(0, 60)); }, 0);
  wanted.add(name);
}
function onEvent(type, data) {
  if (type !== "sessions" || !data.sessions.length) return;
  now = Date.now() / 1000 + skew;
  const names = data.sessions.filter((one) => !memory.search || all.has(one.session)).map((one) => { take(one); asked.delete(one.session); return one.session; });
  fill(names);
  fold(names);
}

function build(data) {
  const body = h("div.body", { role: "rowgroup" });
  parts = { figures: h("dl.figures", {}), day: h("div.daybox", {}), chips: h("div.chips", { role: "group", "aria-label": "Show" }), body, note: h("p.dim.note-line", {}) };
  const field = h("input", { type: "search", placeholder: "Search ids, messages, calls, results, decisions", value: memory.search, "aria-label": "Search sessions", on: { input: later } });
  root.append(
    h("section.head", {}, h("h1", {}, "Sessions"), parts.figures), parts.day,
    h("div.tools", {}, h("div.search", {}, field, h("kbd", { "aria-hidden": "true" }, "/")), parts.chips),
    data.more ? h("p.dim.note-line", {}, `The latest ${count(data.sessions.length)} sessions are listed. Search finds the others.`) : "",
    data.incomplete ? h("p.dim.note-line", {}, "The store is large: not all logs were searched. Add words, or search in the terminal.") : "",
    h("div.table.sessions", { role: "table", "aria-label": "Sessions", "aria-rowcount": all.size + 1 },
      h("div", { role: "rowgroup" }, h("div.tr.th", { role: "row" }, ["State", "Session", "Verdicts", "Tokens per model call", "Cost", "Took", "When"].map((text, i) => h("span", { role: "columnheader", class: i > 3 ? "num" : "" }, i ? text : h("span.vh", {}, text))))), body));
  list = new VirtualList(body, { key: (one) => one.session, estimate: () => 43, render: row });
}
let wait = 0;
function later(event) {
  memory.search = event.target.value.trim();
  clearTimeout(wait);
  wait = setTimeout(async () => {
    const mine = memory.search, data = await get(`/api/sessions?search=${encodeURIComponent(mine)}`);
    if (mine !== memory.search || !page.isCurrent()) return;
    const known = all;
    all = new Map();
    for (const info of data.sessions) { take(info); all.get(info.session).digest = known.get(info.session)?.digest ?? null; all.get(info.session).state = stateOf(info, all.get(info.session).digest); }
    asked = new Set([...all.values()].filter((one) => one.digest).map((one) => one.session));
    fill();
    fold([...all.keys()].slice(0, 60));
  }, 180);
}

function fill(changed = null) {
  const test = FILTERS.find(([id]) => id === memory.filter)[2];
  const kids = new Map();
  for (const one of all.values()) if (one.parent && all.has(one.parent)) kids.set(one.parent, [...(kids.get(one.parent) ?? []), one]);
  const top = [...all.values()].filter((one) => !(one.parent && all.has(one.parent)));
  const rank = (one) => ({ live: 0, waiting: 1 })[one.state] ?? 2;
  const shown = top.filter(test).sort((a, b) => rank(a) - rank(b) || b.updated - a.updated || (a.session < b.session ? -1 : 1));
  ordered = [];
  const put = (one, depth) => { one.depth = depth; ordered.push(one); for (const kid of kids.get(one.session) ?? []) put(kid, depth + 1); };
  shown.forEach((one) => put(one, 0));
  figures(top);
  parts.chips.replaceChildren(...FILTERS.map(([id, name, of]) => h("button.chip", { type: "button", "aria-pressed": String(memory.filter === id), on: { click: () => { memory.filter = id; fill(); } } }, name, h("span.c", {}, top.filter(of).length))));
  const active = document.activeElement?.closest?.(".tr")?.dataset.id;
  parts.body.querySelector(".empty")?.remove();
  const most = Math.max(1e-9, ...[...all.values()].map((one) => one.digest?.cost ?? 0)), rescaled = most !== tall;
  tall = most;
  list.set(ordered);
  if (rescaled) list.redraw(); else if (changed) list.refresh(changed);
  if (active) rowOf(active)?.focus({ preventScroll: true });
  if (!ordered.length) parts.body.append(empty());
  day(top);
}
function empty() {
  if (all.size) return h("div.empty", {}, h("p", {}, "No session is like this."), h("p.dim", {}, "Choose All to see every session."));
  if (memory.search) return h("div.empty", {}, h("p", {}, "No session matches."), h("p.dim", {}, "Search looks at ids, agents and first messages, then at all text in the logs: tool names, arguments, results, names of hooks."));
  return h("div.empty", {}, h("h2", {}, "No sessions yet"), h("p", {}, "Give an agent a store and run it: its sessions appear here while they run."), h("pre.raw", {}, 'agent = Agent(model, store="sqlite:///agent.db")\n\n$ windlass ui agent.db'));
}
function share(measured) {
  const hooks = measured.reduce((sum, one) => sum + one.digest.hooks, 0), work = measured.reduce((sum, one) => sum + one.digest.took, 0);
  return hooks ? `${((hooks / (hooks + work)) * 100).toFixed(1)} %` : "0 %";
}
function figures(top) {
  const n = (...states) => top.filter((one) => states.includes(one.state)).length, costs = top.map((one) => one.digest?.cost).filter((one) => one != null);
  const figure = (name, value, kind = "") => h("div", { class: value === 0 ? "none" : kind }, h("dt", {}, name), h("dd", {}, value));
  const measured = [...all.values()].filter((one) => one.digest?.hooks != null);
  const questions = top.reduce((sum, one) => sum + one.waiting, 0);
  parts.figures.replaceChildren(
    figure("live now", n("live"), "live"), figure(questions === 1 ? "open question" : "open questions", questions, "ask"), figure("failed, stopped", n("failed", "stopped", "cancelled", "interrupted"), "deny"),
    figure("sessions", top.length), figure("spent", costs.length ? money(costs.reduce((a, b) => a + b, 0)) : "–", costs.length ? "spent" : "none"), measured.length ? figure("time in hooks", share(measured)) : "");
}

// Every session as a bar in time, packed into lanes; those that wait or run reach to now.
function day(top) {
  const timed = top.filter((one) => one.started);
  if (timed.length < 2) { parts.day.hidden = true; return; }
  parts.day.hidden = false;
  const first = Math.min(...timed.map((one) => one.started)), open = timed.some((one) => ["live", "waiting"].includes(one.state));
  const end = open ? now : Math.max(...timed.map((one) => one.updated)), length = Math.max(end - first, 60);
  const units = [60, 300, 900, 1800, 3600, 3 * 3600, 6 * 3600, 86400, 7 * 86400, 30 * 86400, 365 * 86400], { unit } = rounded(first, end, 9, units);
  const from = Math.floor(first / unit) * unit, to = end + length * 0.02, width = 1216, lanes = [];
  const x = (time) => ((time - from) / (to - from)) * width;
  const paths = {};
  for (const one of [...timed].sort((a, b) => a.started - b.started)) {
    const left = x(one.started), wide = Math.max(6, x(["live", "waiting"].includes(one.state) ? now : one.updated) - left);
    let lane = lanes.findIndex((at) => at + 3 < left);
    if (lane < 0) lane = Math.min(lanes.length, 5);
    lanes[lane] = Math.max(lanes[lane] ?? 0, left + wide);
    (paths[one.state] ??= []).push(`M${left.toFixed(1)} ${4 + lane * 9}h${wide.toFixed(1)}v6h-${wide.toFixed(1)}z`);
  }
  const height = Math.max(lanes.length, 2) * 9 + 14;
  const svg = s("svg", { viewBox: `0 0 ${width} ${height}`, class: "day", role: "img", "aria-label": "Sessions over time; the table below lists the same", preserveAspectRatio: "none" });
  const labels = h("div.day-labels", { "aria-hidden": "true" });
  for (const t of rounded(from, to, 11, [unit]).at) {
    svg.append(s("line", { x1: x(t), x2: x(t), y1: 0, y2: height - 8, class: "tick" }));
    const at = new Date(t * 1000);
    if (x(t) < width - 40) labels.append(h("span", { vars: { x: `${(x(t) / width) * 100}%` } }, unit >= 86400 ? `${at.getDate()}.${at.getMonth() + 1}.` : clock(t)));
  }
  for (const [state, marks] of Object.entries(paths)) svg.append(s("path", { d: marks.join(""), class: `sb sb-${state}` }));
  svg.style.height = `${height}px`;
  parts.day.replaceChildren(svg, labels);
}

function spark(digest, live) {
  const values = digest.spark, width = 132, height = 20, step = Math.min(7, width / Math.max(values.length, 1)), thick = Math.max(0.5, step - (step > 2 ? 1.5 : 0));
  const most = Math.max(...values, 1), scale = height / Math.max(most, 600);
  const d = values.map((n, i) => { const tall = Math.max(1, n * scale); return `M${(i * step).toFixed(1)} ${(height - tall).toFixed(1)}h${thick.toFixed(1)}v${tall.toFixed(1)}h-${thick.toFixed(1)}z`; }).join("");
  const el = s("svg", { viewBox: `0 0 ${width} ${height}`, class: "spark", role: "img", "aria-label": `${plural(values.length, "model call")}, at most ${count(most)} tokens in` }, s("path", { d }));
  if (live) el.append(s("rect", { x: values.length * step, width: thick, y: height - 8, height: 8, class: "pulse" }));
  return el;
}
const WORDS = { deny: "refused", ask: "asked", changed: "changed", error: "errors" };
function row(one, index) {
  const digest = one.digest, verdicts = digest?.verdicts ?? {};
  const why = digest?.damaged ?? digest?.why ?? "";
  if (!digest) want(one.session);
  const title = one.title || (one.status === "erased" ? "erased" : "no message yet");
  return h("div.tr", { role: "row", "aria-rowindex": index + 2, data: { id: one.session }, vars: { depth: Math.min(one.depth ?? 0, 6) }, class: `s-${one.state}${one.parent ? " kid" : ""}${one.session === marked ? " marked" : ""}` },
    h("span.c-state", { role: "cell" }, mark(one.state, STATES[one.state] ?? one.state)),
    h("span.c-what", { role: "cell" }, h("a.name", { href: `#/turn/${encodeURIComponent(one.session)}` }, short(title, 160)),
      h("span.sub", {}, h("code", {}, one.session), one.agent ? h("span", {}, one.agent) : null, digest?.turns > 1 ? h("span", {}, plural(digest.turns, "turn")) : null, digest?.steps ? h("span", {}, plural(digest.steps, "step")) : null, why ? h("span.why", { class: `w-${digest?.damaged ? "failed" : one.state}` }, short(one.state === "waiting" ? `asks: ${why}` : why, 110)) : null)),
    h("span.c-v", { role: "cell" }, Object.keys(WORDS).filter((kind) => verdicts[kind]).map((kind) => h("span.vc", { class: `v-${kind}`, title: WORDS[kind] }, mark(kind, WORDS[kind]), verdicts[kind]))),
    h("span.c-spark", { role: "cell" }, digest?.spark?.length ? spark(digest, isLive(one)) : ""),
    h("span.c-cost.num", { role: "cell" }, digest ? money(digest.cost) : "", digest?.cost ? h("i.mini", { vars: { w: `${Math.max(1.5, Math.sqrt(digest.cost / tall) * 100)}%` } }) : null),
    h("span.c-took.num", { role: "cell" }, digest?.took != null ? span(digest.took) : ""),
    h("span.c-when.num", { role: "cell" }, isLive(one) ? h("b.on", {}, "now") : h("span", { data: { at: one.updated } }, ago(one.updated, now))));
}

let marked = "";
function compare(id) {
  if (marked && marked !== id) { const first = marked; marked = ""; location.hash = place(first, id); return; }
  const before = marked;
  marked = before === id ? "" : id;
  list.refresh([before, id].filter(Boolean));
  rowOf(id)?.focus({ preventScroll: true });
  say(marked ? `${id} is marked: press c on another session to compare them` : `${id} is not marked any more`);
}
const rowOf = (id) => list.nodes.get(id)?.querySelector("a.name");
export function key(event) {
  const id = document.activeElement?.closest?.(".tr")?.dataset.id;
  if (event.key === "c" && id) { compare(id); return; }
  const at = ordered.findIndex((one) => one.session === id);
  const to = { j: at + 1, ArrowDown: at + 1, k: at - 1, ArrowUp: at - 1, Home: 0, End: ordered.length - 1 }[event.key];
  if (to === undefined || !ordered.length) return;
  event.preventDefault();
  const index = Math.max(0, Math.min(ordered.length - 1, to));
  list.show(index);
  rowOf(ordered[index].session)?.focus({ preventScroll: true });
}
