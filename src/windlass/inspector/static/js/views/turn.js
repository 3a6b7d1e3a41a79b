// One turn: the score. Time and words of everything that happened stand in the same row.
import { at, get, Tail } from "../api.js";
import { bar, by, h, mark, s, say, tag, tone } from "../dom.js";
import { count, money, offset, oneLine, plural, rounded, short, span } from "../format.js";
import { VirtualList } from "../virtual.js";
import { pausedIn } from "./breakpoints.js";
import { contextOf, culprit } from "./context.js";
import { Find } from "./find.js";
import * as panel from "./panel.js";

const PAGE = 24;
const MANY = 1500;
let session, turn, rows, list, picked, root, tail, timer, skew, parts, scales, page, finder;

export async function show(view, [id, number, wanted], context) {
  root = view; page = context; picked = null;
  if (!id) {
    const found = await get("/api/sessions?limit=1");
    context.setStore(found.store);
    if (!context.isCurrent()) return;
    if (!found.sessions.length) { view.append(h("section.empty", {}, h("h1", {}, "No turn yet"), h("p", {}, "Sessions appear here as soon as an agent with this store runs."))); return; }
    location.replace(`#/turn/${encodeURIComponent(found.sessions[0].session)}`);
    return;
  }
  const data = await get(at(id, "turns", Number(number) || 0));
  if (!context.isCurrent()) return;
  if (!data.turn) { turn = null; view.append(h("section.empty", {}, h("h1", {}, "No turn yet"), h("p", {}, `Session ${id} was opened, but no turn has begun.`))); follow(id, data.records); return; }
  if (!document.getElementById("store").textContent) get("/api/sessions?limit=1").then((found) => context.setStore(found.store), () => {});
  session = data; turn = data.turn; skew = data.now - Date.now() / 1000;
  build();
  const first = wanted && rows.find((row) => row.item && (row.id === wanted || String(row.item.n) === wanted));
  pick(first || rows.find((row) => row.first) || rows[0], { user: false });
  if (first) list.show(rows.indexOf(first), { center: true });
  prefixes();
  if (isLast()) follow(id, data.records);
  verify(id);
  timer = setInterval(tick, 1000);
}
export function leave() { finder?.close(); finder = null; tail?.close(); tail = null; list?.close(); list = null; clearInterval(timer); panel.leave(); document.body.classList.remove("sheet"); }
const clockNow = () => Date.now() / 1000 + skew;
const isLast = () => session.turns.at(-1).n === turn.n;
const state = () => (turn.state !== "running" ? turn.state : session.live && isLast() ? "live" : "interrupted");

// ---- live: rows are added and changed in place; what is read does not move
function follow(id, records) { tail = new Tail(`/api/events?session=${encodeURIComponent(id)}`, onEvent, String(records)); }
function onEvent(type, data) {
  if (type === "lost") { say(data.message); return; }
  if (type !== "rows") return;
  if (!turn) { page.isCurrent() && location.reload(); return; }
  const mine = data.changed.find((one) => one.n === turn.n), more = data.turns.some((one) => one.n > turn.n);
  const bottom = innerHeight + scrollY > document.documentElement.scrollHeight - 80;
  session = { ...session, ...data };
  if (mine) {
    const known = new Map(turn.rows.map((row) => [idOf(row), row]));
    for (const row of mine.rows) known.set(idOf(row), row);
    turn = { ...turn, ...mine, skipped: turn.skipped, rows: [...known.values()].sort((a, b) => a.n - b.n || (a.call ?? "").localeCompare(b.call ?? "", "en", { numeric: true })) };
  }
  if (mine && mine.state !== "running") prefixes();
  const fresh = mine ? mine.rows.length : 0;
  refresh(mine?.rows.map(idOf) ?? []);
  if (more) say("A new turn has begun: see the numbers above.");
  if (fresh && bottom) scrollTo(0, document.documentElement.scrollHeight);
  else if (fresh && state() === "live") parts.news.textContent = `${plural(fresh, "row")} changed below`;
}
const idOf = (row) => `${row.n}${row.call ? `:${row.call}` : ""}`;
function refresh(changed) {
  const open = picked ? picked.id : null;
  rows = arrange();
  head();
  scales = measure();
  list.set(rows);
  const also = rows.filter((row) => row.kind === "end" || isOpen(row)).map((row) => row.id);
  list.refresh([...new Set([...changed, ...also])]);
  overview();
  if (open) { const row = rows.find((one) => one.id === open); if (row) pick(row, { user: false, same: !changed.includes(open) }); }
}
function tick() {
  if (!list || state() !== "live") return;
  scales = measure();
  head();
  list.refresh(rows.filter(isOpen).map((row) => row.id));
}
const isOpen = (row) => row.item && ((row.kind === "tool" && row.item.called && !row.item.status) || (row.kind === "wait" && row.item.open));
// Calls that could not use the prefix of the call before, named at their rows.
async function prefixes() {
  const mine = turn.n;
  if (turn.rows.length > MANY) return;
  const found = await contextOf({ session: session.session, turn: mine }).catch(() => null);
  if (!found || !page.isCurrent() || !list || turn.n !== mine) return;
  turn.broken = new Map(found.calls.filter((call) => call.broken).map((call) => [call.n, call.broken]));
  list.refresh(rows.filter((row) => row.item && turn.broken.has(row.item.n)).map((row) => row.id));
}
async function verify(id) {
  const found = await get(at(id, "verify")).catch((error) => ({ ok: false, text: error.message }));
  if (!page.isCurrent() || !parts) return;
  parts.chain.replaceChildren(mark(found.ok ? "allow" : "error"), found.ok ? "chain intact " : "damaged ", h("code", {}, short(found.text, found.ok ? 12 : 90)));
}

// ---- the frame
function build() {
  parts = { crumb: h("div.crumb", {}), title: h("h1.q", {}), outcome: h("div.outcome", {}), over: h("div", {}), chain: h("span.chain", { title: "The hash chain of this session, followed to its head" }), axis: h("div.axis", { "aria-hidden": "true" }), news: h("button.news.quiet", { type: "button", on: { click: () => { parts.news.textContent = ""; list.show(rows.length - 1); } } }), panel: h("aside.panel", { "aria-label": "Details", tabIndex: -1 }) };
  const box = h("div.rows", { role: "listbox", id: "rows", "aria-label": "What happened", tabIndex: 0 });
  const grip = h("div.grip", { role: "separator", tabIndex: 0, "aria-orientation": "vertical", "aria-label": "Width of the time lane", "aria-valuemin": 15, "aria-valuemax": 70, "aria-valuenow": width() });
  parts.score = h("section.score", { "aria-label": "Timeline and transcript" }, parts.axis, box, grip);
  finder = new Find({ search: findRows, go: (row) => pick(row, { user: true, sheet: false }), box, leave: () => list?.box.focus({ preventScroll: true }) });
  root.append(h("section.head.turnhead", {}, parts.crumb, parts.title, parts.outcome), parts.over, turn.skipped ? h("p.dim.note-line", {}, `The first ${plural(turn.skipped, "row")} of this turn are not shown: the raw records have them.`) : "", h("div.split", {}, parts.score, parts.panel), parts.news, finder.el);
  drag(grip);
  rows = arrange();
  scales = measure();
  list = new VirtualList(box, { key: (row) => row.id, estimate: (row) => ({ user: 66, end: 29, model: row.item?.text ? 66 : 48, tool: 48, inject: 48 })[row.kind] ?? 48, render: draw });
  list.onDraw = (first, last) => { axis(rows[first]); brush(rows[first], rows[last]); finder?.paint(); active(); };
  head();
  overview();
  list.set(rows);
}
function head() {
  const st = state();
  parts.crumb.replaceChildren(
    h("a", { href: "#/sessions" }, "Sessions"), h("span", { "aria-hidden": "true" }, "/"), h("code", {}, session.session), session.agent ? h("span", {}, session.agent) : "",
    session.parent ? h("a", { href: `#/turn/${encodeURIComponent(session.parent)}` }, `child of ${session.parent}`) : "", session.origin ? h("span", {}, `forked from ${session.origin}`) : "",
    session.turns.length > 1 ? h("nav.turns", { "aria-label": "Turns" }, "turn ", turnsToShow().map((one) => (one ? h("a", { href: `#/turn/${encodeURIComponent(session.session)}/${one.n}`, "aria-current": one.n === turn.n ? "true" : null }, one.n) : h("span", {}, "…")))) : "",
    session.children.length ? h("nav.turns", { "aria-label": "Sub-agents" }, "sub-agents ", session.children.slice(0, 8).map((id) => h("a", { href: `#/turn/${encodeURIComponent(id)}` }, turn.rows.find((row) => row.child === id)?.agent || (id.startsWith(session.session) ? id.slice(session.session.length) : id))), session.children_of > 8 ? ` and ${plural(session.children_of - 8, "other")}` : "") : "",
    h("a", { href: `#/diff/${encodeURIComponent(session.session)}` }, "compare"), h("a", { href: `#/whatif/${encodeURIComponent(session.session)}` }, "what if"),
    h("button.quiet.findkey", { type: "button", on: { click: () => find() } }, "find ", h("kbd", { "aria-hidden": "true" }, "/")),
    session.children.length || session.parent ? h("a", { href: `#/tree/${encodeURIComponent(session.session)}` }, "all on one axis") : "", h("a", { href: `#/pipeline/hooks/session/${encodeURIComponent(session.session)}/${turn.n}` }, "hooks of this turn"), parts.chain);
  parts.title.textContent = "";
  parts.title.append(h("span", {}, short(turn.text || "No text", 260)));
  const models = turn.rows.filter((row) => ["model", "attempt", "side"].includes(row.k)), sum = (name) => models.reduce((total, row) => total + (row[name] ?? 0), 0);
  const priced = models.some((row) => row.cost != null), charged = turn.rows.reduce((total, row) => total + (row.charged?.cost ?? 0), 0), end = st === "live" ? clockNow() : turn.last;
  const time = { model: union(turn.rows.filter((row) => row.k === "model" || row.k === "attempt"), end), tools: union(turn.rows.filter((row) => row.called), end), people: turn.rows.filter((row) => row.k === "wait").reduce((total, row) => total + (row.open ? (st === "waiting" ? clockNow() : row.t) : row.t) - row.t0, 0), hooks: turn.hooks ?? turn.rows.reduce((total, row) => total + (row.took ?? 0) + [...(row.says ?? []), ...(row.changes ?? [])].reduce((all, one) => all + (one.took ?? 0), 0), 0) };
  const bare = [...new Set(turn.rows.filter((row) => row.called && session.tools?.[row.name]?.bare).map((row) => row.name))];
  parts.outcome.replaceChildren(
    h("span.oc", { class: `o-${st}` }, mark(st), h("b", {}, { live: pausedIn(session.session) ? "is paused" : "is running", waiting: "waits for a person", interrupted: "was interrupted", done: "completed" }[st] ?? st), h("span", {}, because(st))),
    models.length ? h("span.spend", {}, priced ? h("b", {}, money(sum("cost") + charged)) : null, ` ${count(sum("in"))} in, ${count(sum("out"))} out`, sum("cached") && sum("in") ? `, ${Math.round((sum("cached") / sum("in")) * 100)} % cached` : "") : "",
    bare.length ? h("a.v-error.bareline", { href: `#/pipeline/coverage/session/${encodeURIComponent(session.session)}` }, mark("error"), bare.length > 2 ? `no gate looks at ${bare.length} unsafe tools` : `no gate looks at ${bare.join(" or ")}`) : "",
    h("span.where", {}, time.model + time.tools + time.hooks > 0 ? bar([{ name: "model", value: time.model, kind: "k-model", text: span(time.model) }, { name: "tools", value: time.tools, kind: "k-tool", text: span(time.tools) }, { name: "hooks", value: time.hooks, kind: "k-hook", text: span(time.hooks) }], `model ${span(time.model)}, tools ${span(time.tools)}, hooks ${span(time.hooks)}`) : "",
      time.model ? h("span", {}, "model ", h("b", {}, span(time.model))) : "", time.tools ? h("span", {}, "tools ", h("b", {}, span(time.tools))) : "", time.hooks ? h("span", { title: turn.hooks == null ? "Hooks that answered or changed something; silent ones were not measured" : "All hooks, silent ones too" }, "hooks ", h("b", {}, span(time.hooks))) : "", time.people ? h("span.w", {}, "people ", h("b", {}, span(time.people))) : ""));
}
function turnsToShow() {
  const all = session.turns, here = all.findIndex((one) => one.n === turn.n);
  return all.length < 14 ? all : [...all.slice(0, 1), here > 4 ? null : [], ...all.slice(Math.max(1, here - 3), Math.min(all.length - 1, here + 4)), here < all.length - 5 ? null : [], all.at(-1)].flat();
}
function because(st) {
  if (st === "live") {
    const pause = pausedIn(session.session), row = turn.rows.findLast((one) => one.called && !one.status), open = turn.rows.findLast((one) => one.k === "tool" && !one.called && !one.status);
    if (pause) return h("a", { href: "#/breakpoints" }, `at ${pause.event}${pause.tool ? ` of ${pause.tool}` : ""}`);
    return row ? `${row.name} was called ${span(clockNow() - row.t0)} ago` : open ? `hooks decide about ${open.name}` : "the model was asked";
  }
  if (st === "interrupted") return "its process ended; it can be resumed";
  return st === "done" ? `because ${turn.detail}` : short(turn.detail, 200);
}
function union(items, end) {
  let until = 0, sum = 0;
  for (const one of [...items].sort((a, b) => a.t0 - b.t0)) { const stop = one.called && !one.status ? end : one.t; sum += Math.max(0, stop - Math.max(one.t0, until)); until = Math.max(until, stop); }
  return sum;
}

// ---- rows
const EXCEPTIONS = ["error", "veto", "compact", "wait", "resumed", "rewind", "cancel"];
function isException(row) {
  const item = row.item;
  return Boolean(item) && (EXCEPTIONS.includes(item.k) || item.rejected || item.changes || item.opaque?.length || (item.says ?? []).some((one) => tone(one.v) !== "allow") || ["error", "denied", "interrupted", "cancelled"].includes(item.status));
}
function arrange() {
  let step = -1;
  const steps = new Set(turn.rows.map((row) => row.step)).size, many = steps > PAGE + 6;
  const out = turn.rows.map((item) => {
    const row = { id: idOf(item), kind: item.k, item, step: item.step, opens: item.step !== step, page: many ? Math.max(0, Math.floor((item.step - 1) / PAGE)) : 0 };
    step = item.step;
    return row;
  });
  if (turn.state !== "running" || !session.live) out.push({ id: "end", kind: "end", item: null, step, page: out.at(-1)?.page ?? 0 });
  const first = (state() === "failed" ? out.findLast((row) => row.kind === "error") : null) ?? out.find((row) => row.item?.answered) ?? out.find((row) => row.kind === "tool" && row.item.says?.some((one) => tone(one.v) !== "allow")) ?? out.find((row) => row.item?.rejected) ?? out.find((row) => row.kind === "model");
  if (first) first.first = true;
  return out;
}

// ---- time: waiting is folded, so that work stays readable; with many steps each page has its own scale
function measure() {
  const pages = new Map();
  for (const row of rows) if (row.item) pages.set(row.page, [...(pages.get(row.page) ?? []), row.item]);
  return new Map([...pages].map(([number, items]) => [number, scale(items)]));
}
function scale(items) {
  const live = state() === "live" || state() === "waiting", first = items.reduce((least, one) => Math.min(least, one.t0 ?? one.t), Infinity), lastTime = items.reduce((most, one) => Math.max(most, live && (one.open || (one.called && !one.status)) ? clockNow() : one.t), first + 0.001);
  const waits = items.filter((one) => (one.k === "wait" || one.k === "resumed") && one.t0).map((one) => [one.t0, one.open && live ? clockNow() : one.t]).filter(([a, b]) => b - a > 2 && b - a > (lastTime - first) * 0.08).sort((a, b) => a[0] - b[0]);
  const merged = [];
  for (const one of waits) { const before = merged.at(-1); if (before && one[0] <= before[1]) before[1] = Math.max(before[1], one[1]); else merged.push([...one]); }
  const fold = Math.min(0.085, 0.5 / Math.max(merged.length, 1)), idle = merged.reduce((sum, [a, b]) => sum + b - a, 0), active = Math.max(lastTime - first - idle, 1e-6), room = 1 - fold * merged.length;
  const x = (time) => {
    let place = 0, from = first;
    for (const [a, b] of merged) {
      if (time <= a) break;
      place += ((a - from) / active) * room; from = b;
      if (time < b) return place + ((time - a) / (b - a)) * fold;
      place += fold;
    }
    return Math.min(1, Math.max(0, place + ((time - from) / active) * room));
  };
  return Object.assign(x, { waits: merged, first, last: lastTime, active });
}
const pct = (value) => `${(value * 100).toFixed(2)}%`;
let axisOf = null;
function axis(row) {
  const x = scales.get(row?.page ?? 0);
  if (!x || (axisOf === x && parts.axis.firstChild)) return;
  axisOf = x;
  const { unit } = rounded(0, x.active, 4, [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600, 7200]);
  const lane = h("div.lane", {}), start = turn.began;
  let last = -1, from = x.first;
  for (const [a, b] of [...x.waits, [x.last, x.last]]) {
    for (const t of rounded(from - start, a - start, 5, [unit]).at) {
      const place = x(start + t);
      if (place - last < 0.15 || place > 0.95 || x.waits.some(([c, d]) => Math.abs((x(c) + x(d)) / 2 - place) < 0.15)) continue;
      last = place;
      lane.append(h("span", { class: place < 0.02 ? "left" : "", vars: { x: pct(place) } }, offset(t)));
    }
    from = b;
  }
  for (const [a, b] of x.waits) { const end = x(b) > 0.9; lane.append(h("span.fold", { class: end ? "end" : "", vars: { x: pct(end ? x(b) : (x(a) + x(b)) / 2) } }, span(b - a))); }
  const key = (name, kind) => h("span.key", {}, h("i", { class: kind }), name);
  parts.axis.replaceChildren(h("span.g", {}, "step"), lane, h("span.tx", {}, h("span", {}, "transcript"), key("model", "km"), key("tool", "kt"), key("person", "kp"), key("hook", "kh")));
}
function laneOf(row) {
  const item = row.item, x = scales.get(row.page), lane = h("div.lane", { "aria-hidden": "true" });
  for (const [a, b] of x.waits) lane.append(h("i.foldbg", { vars: { x: pct(x(a)), w: pct(x(b) - x(a)) } }));
  const put = (kind, a, b) => lane.append(h("i.b", { class: kind, vars: { x: pct(Math.min(x(a), 0.994)), w: pct(Math.max(x(b) - x(a), 0)) } }));
  const until = isOpen(row) && ["live", "waiting"].includes(state()) ? clockNow() : item.t;
  if (row.kind === "model" || row.kind === "attempt") {
    put(item.rejected || row.kind === "attempt" ? "model rej" : "model", item.t0, item.t);
    if (item.stream) flow(lane, item, x);
  }
  else if (row.kind === "wait") put("wait", item.t0, until);
  else if (row.kind === "inject") put("inj", item.t - (item.took ?? 0), item.t);
  else if (row.kind === "tool") {
    const wait = item.asked && turn.rows.find((one) => one.k === "wait" && one.asks.some((ask) => ask.id === item.call));
    if (wait) put("wait thin", wait.t0, wait.open && state() === "waiting" ? clockNow() : wait.t);
    if (item.called || item.status) put(`tool st-${item.status || (state() === "live" ? "running" : "open")}`, item.called ? item.t0 : item.t, until);
    else put("tool st-open", item.t0, item.t0);
  } else if (row.kind === "error") lane.append(h("i.pin.error", { vars: { x: pct(x(item.t)) } }));
  else if (["veto", "cancel", "rewind"].includes(row.kind)) lane.append(h("i.pin.deny", { vars: { x: pct(x(item.t)) } }));
  else if (row.kind === "compact") lane.append(h("i.pin.changed", { vars: { x: pct(x(item.t)) } }));
  const where = row.kind === "model" ? item.t : row.kind === "tool" ? (item.asked ? item.asked.t ?? item.t0 : item.t0) : item.t;
  let n = 0;
  for (const one of item.changes ?? []) lane.append(h("i.tk.t-changed", { vars: { x: `calc(${pct(x(/Calling$/.test(one.event) ? item.t0 : where))} + ${n++ * 3}px)` } }));
  for (const one of item.says ?? []) lane.append(h("i.tk", { class: `t-${one.shadow ? "silent" : tone(one.v)}`, vars: { x: `calc(${pct(x(one.event === "ModelReplying" ? item.t : where))} + ${n++ * 3}px)` } }));
  return lane;
}
// Inside the bar of a model call: words that came and were held back, and words that went out.
function flow(lane, { stream: one, t0, t }, x) {
  const put = (kind, a, b) => { if (a != null && b != null) lane.append(h("i.fl", { class: kind, vars: { x: pct(x(Math.min(t0 + a, t))), w: pct(Math.max(x(Math.min(t0 + b, t)) - x(Math.min(t0 + a, t)), 0)) } })); };
  put("held", one.first_chunk, one.first_sent ?? one.last_chunk);
  put(one.retracted ? "out void" : "out", one.first_sent, one.last_sent);
}
function draw(row, index) {
  const first = row.opens && row.step > 0;
  if (row.kind === "end") return endRow(row, index);
  return option(row, index, `r-${row.kind}${row.opens ? " first" : ""}`, h("span.g", {}, first ? row.step : ""), laneOf(row), h("div.tx", {}, words(row)));
}
function option(row, index, kind, ...kids) {
  return h("div.r", { role: "option", id: `row-${index}`, "aria-selected": String(picked?.id === row.id), "aria-setsize": rows.length, "aria-posinset": index + 1, class: kind, on: { click: () => { list.box.focus({ preventScroll: true }); pick(row); } } }, kids);
}
function endRow(row, index) {
  const st = state();
  return option(row, index, `r-end o-${st}`, h("span.g", {}, mark(st)), h("div.lane", {}), h("div.tx", {}, h("b", {}, { done: "Completed", stopped: "Stopped", failed: "Failed", cancelled: "Cancelled", waiting: "Suspended", interrupted: "Interrupted" }[st] ?? st), h("span.dim", {}, ` ${because(st)}`)));
}
const who = (kind, icon, name, note) => h("div.who", { class: kind ? `v-${kind}` : "" }, icon ? mark(icon) : null, name, note ? h("span.dim", {}, note) : null);
function words(row) {
  const i = row.item;
  switch (row.kind) {
    case "user": return [who("", "", "user", i.withheld ? "withheld by a hook" : ""), h("p.say", {}, i.text || "no text"), chips(i)];
    case "message": return [who("", "", i.by || i.role, `added a message${i.held ? ", for after this step" : ""}`), h("p.note", {}, i.text), chips(i)];
    case "inject": return [who("changed", "inject", i.by, i.missing ? `injected something that is ${i.missing === "pruned" ? "pruned" : "not in the log"}` : i.durable ? "injected, stays in the transcript" : "injected, this turn only"), h("p.note", {}, i.text), chips(i)];
    case "model": return [h("div.who", {}, "model", h("span.dim", {}, [span(i.t - i.t0), `${count(i.in)} in${i.cached && i.in ? ` (${Math.round((i.cached / i.in) * 100)} % cached)` : ""}`, `${count(i.out)} out`, i.cost != null ? money(i.cost) : "", i.paid ? "" : "no model was called"].filter(Boolean).join(", ")), i.round > 1 ? tag(`round ${i.round}`) : null, i.attempt > 1 ? tag(`attempt ${i.attempt}`) : null),
      i.text ? h("p.say", { class: i.rejected ? "struck" : "" }, i.text) : null, i.opaque.map((one) => h("p.unmed", {}, mark("error"), `the vendor ran ${one.data?.type ?? one.vendor}: not mediated, no gate saw it`)), chips(i)];
    case "attempt": return [who("error", "error", "model", `attempt ${i.attempt} was discarded`), h("p.res", {}, i.error ? `${i.error}: ${i.text}` : i.text)];
    case "tool": return [h("div.call", {}, h("code", {}, h("b", {}, i.name), h("span.args", {}, ` ${short(oneLine(i.final ?? i.json), 110)}`)), i.child ? tag(`agent ${i.agent}`) : null, i.undo ? tag("undone", "warn") : null, i.attempts > 1 ? tag(`attempt ${i.attempts}`) : null), result(i), chips(i)];
    case "delegate": return [who("", "", i.by, `gave agent ${i.agent} a task${i.background ? ", in the background" : ""}`), h("p.note", {}, i.task)];
    case "wait": return [who("ask", "ask", i.open ? "waits for a person" : "waited for a person", `${span((i.open && state() === "waiting" ? clockNow() : i.t) - i.t0)}, no process needed`), i.asks.map((ask) => h("p.say", {}, ask.question)), i.answers.length ? h("p.res", {}, i.answers.map((one) => `${one.by}: ${one.v.toLowerCase()}${one.why ? `, ${one.why}` : ""}`).join("; ")) : null, chips(i)];
    case "veto": return [who("deny", "deny", i.by, `vetoed the stop (${i.reason.replaceAll("_", " ")})`), h("p.note", {}, i.text)];
    case "rewind": return [who("deny", "deny", i.by, i.text)];
    case "compact": return [who("changed", "changed", i.by, `compacted messages ${i.range[0]} to ${i.range[1] - 1}${i.reason ? `, ${i.reason}` : ""}`), h("p.res", {}, `${count(i.before)} tokens before, ${count(i.after)} after; the log keeps all of them`), chips(i)];
    case "error": return [who("error", "error", i.hook ? i.by : i.error, i.hook ? `failed at ${i.event}: ${i.action}` : `${i.action}, by ${i.by}`), h("p.res.st-error", {}, i.hook ? `${i.error}: ${i.text}` : i.text)];
    case "side": return [who("", "", "side call", [i.by, i.cost != null ? money(i.cost) : ""].filter(Boolean).join(", ")), h("p.note", {}, i.text)];
    case "resumed": return [who(i.drift ? "ask" : "error", i.drift ? "ask" : "error", i.drift ? "resumed with other hooks or tools" : "the process ended", i.drift ? "" : "another one continued from the log"), i.text ? h("p.note", {}, i.text) : null];
    case "cancel": return [who("deny", "cancelled", "a cancel was requested", ""), i.text ? h("p.note", {}, i.text) : null];
    default: return [who("", "", i.by || "note", i.what ?? row.kind), i.text ? h("p.note", {}, i.text) : null, chips(i)];
  }
}
function result(i) {
  if (i.status === "not made") return h("p.res.dim", {}, "not made: the reply was rejected");
  if (i.result) return h("p.res", { class: `st-${i.status}` }, i.result);
  if (i.status) return h("p.res.dim", {}, i.status === "ok" ? "no text" : i.status);
  return h("p.res.dim", {}, i.called ? (state() === "live" ? "running" : "started, no result in the log") : i.asked && !i.answered ? "waits for an answer" : "not called yet");
}
function chips(i) {
  const out = (i.changes ?? []).map((one) => by("changed", one.hook));
  for (const one of i.says ?? []) if (one.shadow || one.v !== "Allow") out.push(by(tone(one.v), `${one.hook}: ${one.v}${one.shadow ? ", recorded only" : ""}`, one.shadow));
  const objected = (i.says ?? []).map((one) => one.hook);
  if (i.rejected?.by.some((one) => !objected.includes(one))) out.push(by("deny", `${i.rejected.by.join(", ")}: rejected`));
  if (i.passed) out.push(by("ask", `${i.passed.by.join(", ")}: let it pass`));
  for (const one of i.answered ?? []) out.push(by(tone(one.v), `${one.by}: ${one.v}`));
  for (const one of i.discarded ?? []) out.push(by("error", `attempt ${one.attempt} discarded`));
  const broken = turn.broken?.get(i.n);
  if (broken && !i.call) out.push(by("error", `cache broken by ${culprit(broken)}`));
  return out.length ? h("div.chipsrow", {}, out) : null;
}

// ---- many steps: tokens per step, with what was refused and where it was compacted
function overview() {
  const models = turn.rows.filter((row) => row.k === "model"), steps = new Set(models.map((row) => row.step)).size;
  if (steps <= PAGE + 6) { parts.over.replaceChildren(); parts.brush = null; return; }
  const width = 1216, height = 84, first = models[0].step, last = models.at(-1).step, thick = width / (last - first + 1), most = models.reduce((all, row) => Math.max(all, row.in), 1);
  const x = (step) => (step - first) * thick, box = (step, y, tall, wide = thick - Math.min(1.2, thick * 0.2)) => `M${x(step).toFixed(2)} ${y.toFixed(1)}h${wide.toFixed(2)}v${tall.toFixed(1)}h-${wide.toFixed(2)}z`;
  const d = { new: "", hit: "", bad: "", err: "", cmp: "" };
  for (const row of models) { const tall = (row.in / most) * (height - 16), hit = ((row.cached ?? 0) / most) * (height - 16); d.new += box(row.step, height - tall, tall); if (hit) d.hit += box(row.step, height - hit, hit); }
  for (const row of turn.rows) {
    if (row.status === "denied" || row.rejected || row.k === "veto") d.bad += box(row.step, 0, 8, Math.max(thick, 1.5));
    else if (row.k === "error" || ["error", "interrupted"].includes(row.status)) d.err += box(row.step, 2, 6, Math.max(thick, 1.5));
    else if (row.k === "compact") d.cmp += `M${x(row.step + 1).toFixed(1)} 0v${height}`;
  }
  const svg = s("svg", { viewBox: `0 0 ${width} ${height}`, class: "over", preserveAspectRatio: "none", "aria-hidden": "true" });
  parts.brush = s("rect", { class: "brush", y: 0, height });
  svg.append(parts.brush, ...["new", "hit", "bad", "err", "cmp"].map((kind) => s("path", { d: d[kind], class: kind })));
  const slider = h("div.overbox", { tabIndex: 0, role: "slider", "aria-label": "First step shown", "aria-valuemin": first, "aria-valuemax": last, "aria-valuenow": first }, svg);
  const jump = (step) => list.show(rows.findIndex((row) => row.step >= Math.max(first, Math.min(last, Math.round(step)))), { center: true });
  slider.addEventListener("click", (event) => jump(first + ((event.clientX - slider.getBoundingClientRect().left) / slider.clientWidth) * (last - first)));
  slider.addEventListener("keydown", (event) => { const by = { ArrowRight: 10, ArrowLeft: -10, PageDown: 100, PageUp: -100 }[event.key]; if (by) { event.preventDefault(); event.stopPropagation(); jump(Number(slider.getAttribute("aria-valuenow")) + by); } });
  Object.assign(parts, { slider, x, thick });
  const compacted = turn.rows.filter((row) => row.k === "compact").length;
  parts.over.replaceChildren(h("figure.overfig", {}, slider, h("figcaption", {}, h("span.lg.hit", {}, "served from cache"), h("span.lg.new", {}, "new to the model"), compacted ? h("span.lg.cmp", {}, `compacted ${plural(compacted, "time")}`) : "", h("span.lg.bad", {}, "refused"), h("span.lg.err", {}, "error"), h("span.sp", {}), h("span", {}, `tokens of ${plural(steps, "step")}, at most ${count(most)}`))));
}
function brush(first, last) {
  if (!parts.brush || !first) return;
  const a = Math.max(first.step, 1), b = Math.max(last?.step ?? a, a);
  parts.brush.setAttribute("x", parts.x(a));
  parts.brush.setAttribute("width", Math.max((b - a + 1) * parts.thick, 4));
  parts.slider.setAttribute("aria-valuenow", a);
  parts.slider.setAttribute("aria-valuetext", `steps ${a} to ${b}`);
}

// ---- the divider between time and words
const width = () => { try { return Number(localStorage.getItem("lane")) || 37; } catch { return 37; } };
function drag(grip) {
  const set = (value) => {
    const to = Math.max(15, Math.min(70, Math.round(value)));
    parts.score.style.setProperty("--lane", `${to}%`);
    grip.setAttribute("aria-valuenow", to);
    try { localStorage.setItem("lane", to); } catch { /* a private window */ }
  };
  set(width());
  grip.addEventListener("pointerdown", (event) => { grip.setPointerCapture(event.pointerId); event.preventDefault(); });
  grip.addEventListener("pointermove", (event) => { if (!grip.hasPointerCapture(event.pointerId)) return; const box = parts.score.getBoundingClientRect(); set(((event.clientX - box.left - 36) / box.width) * 100); });
  grip.addEventListener("pointerup", () => { list.heights.clear(); list.stale = true; list.draw(); });
  grip.addEventListener("dblclick", () => set(37));
  grip.addEventListener("keydown", (event) => { const by = { ArrowLeft: -3, ArrowRight: 3 }[event.key]; if (by) { event.preventDefault(); event.stopPropagation(); set(width() + by); list.heights.clear(); list.stale = true; list.draw(); } });
}

// ---- finding and choosing a row
async function findRows(text) {
  const found = await get(`${at(session.session, "turns", turn.n, "find")}?text=${encodeURIComponent(text)}`);
  const ids = new Set(found.rows.map(idOf));
  return rows.filter((row) => ids.has(row.id));
}
export function find() { if (list) finder.open(); }
function pick(row, { user = true, same = false, sheet: open = true } = {}) {
  const before = picked;
  picked = row ?? null;
  if (before && before.id !== picked?.id) list.refresh([before.id]);
  if (!picked) { panel.show(parts.panel, null, { session, turn, close }); return; }
  const index = rows.indexOf(picked);
  if (user) list.show(index);
  list.refresh([picked.id]);
  active();
  if (user && open) document.body.classList.add("sheet");
  if (user) history.replaceState(null, "", `#/turn/${encodeURIComponent(session.session)}/${turn.n}${picked.item ? `/${encodeURIComponent(picked.id)}` : ""}`);
  if (!same) panel.show(parts.panel, picked, { session, turn, close });
}
// The chosen row is named while it is drawn.
function active() {
  const node = picked && list?.node(picked);
  if (node) list.box.setAttribute("aria-activedescendant", node.id); else list?.box.removeAttribute("aria-activedescendant");
}
function close() { document.body.classList.remove("sheet"); list.box.focus({ preventScroll: true }); }
export function key(event) {
  if (!list) return;
  const index = rows.indexOf(picked), step = picked?.step ?? 0;
  const to = {
    j: () => index + 1, ArrowDown: () => index + 1, k: () => index - 1, ArrowUp: () => index - 1, Home: () => 0, End: () => rows.length - 1,
    "]": () => rows.findIndex((row, i) => i > index && row.step > step && row.item), "[": () => { const before = rows.findLast((row) => row.step < step && row.item); return before ? rows.findIndex((row) => row.step === before.step) : -1; },
    x: () => rows.findIndex((row, i) => i > index && isException(row)),
  }[event.key];
  if (to) {
    const found = to();
    event.preventDefault();
    if (found < 0 && event.key === "x") { say("No further exception in this turn"); return; }
    if (found >= 0 || "jk".includes(event.key)) pick(rows[Math.max(0, Math.min(rows.length - 1, found))]);
    list.box.focus({ preventScroll: true });
    return;
  }
  if (event.key === "Enter" && document.activeElement === list.box) { document.body.classList.add("sheet"); parts.panel.focus(); }
  else if (event.key === "d") panel.tab("decisions");
  else if (event.key === "r") panel.tab("request");
  else if (event.key === "w") panel.tab("record");
  else if (event.key === "Escape") close();
}
