// Breakpoints of a process that runs agents: where turns pause, what they show then, and what a person lets them do.
import { get, post, Tail } from "../api.js";
import { h, mark, say, tag, tone, verdict } from "../dom.js";
import { ago, plural, short, span, valueOf } from "../format.js";

// The lifecycle as one line; the depth is the nesting.
const DEPTH = { SessionStarting: 0, TurnStarting: 0, Resuming: 0, TurnEnding: 0, ModelReplying: 2, ModelCalling: 2, ToolCalling: 2, Delegating: 2, ToolReturning: 2, MessageAdding: 2 };
const ORDER = ["SessionStarting", "TurnStarting", "Resuming", "StepStarting", "Compacting", "ModelCalling", "ModelReplying", "ToolCalling", "Delegating", "ToolReturning", "MessageAdding", "StepEnding", "Continuing", "Stopping", "SubagentStopping", "Erring", "TurnEnding"];
const WHAT = { ToolCalling: "arguments", ModelCalling: "system text", SessionStarting: "system text", TurnStarting: "user message", ModelReplying: "reply", ToolReturning: "result", MessageAdding: "message", Delegating: "task", Compacting: "instructions", TurnEnding: "final text" };
const SAY = { Allow: "Allow", Deny: "The model reads this", Halt: "Why the turn ends here", Answer: "This is used instead", Ask: "The question for a person", Regenerate: "What the model should do better", Veto: "Why it goes on", Finish: "The turn ends with this" };
let info = null, root, parts, current = null, mode = "", tail = null, timer, drafts = {};

// ---- the watch: in every view, so that a pause is seen wherever one looks
export function watch() {
  if (tail) return;
  tail = new Tail("/api/breakpoints/events", (type, data) => {
    if (type !== "pauses") return;
    const before = new Set(info?.paused.map((one) => one.pause) ?? []), fresh = data.paused.filter((one) => !before.has(one.pause));
    info = { ...info, ...data, set: sending ? info.set : data.set };
    dispatchEvent(new CustomEvent("paused", { detail: data.paused.length }));
    if (fresh.length) say(`Paused at ${fresh[0].event}${fresh[0].tool ? ` of ${fresh[0].tool}` : ""}, ${fresh[0].session}`);
    if (parts) update();
  });
}

// Where a session is paused now, if it is.
export const pausedIn = (session) => info?.paused.find((one) => one.session === session) ?? null;

export async function show(view, _, context) {
  root = view; mode = ""; current = null;
  const found = tail ? await get("/api/breakpoints") : null;
  if (!context.isCurrent()) return;
  if (!found) { root.append(h("section.empty", {}, h("h1", {}, "Breakpoints need a live agent"), h("p", {}, "Start the agent with the inspector in the same process:"), h("pre.raw", {}, "windlass run --inspect --break ToolCalling …\nwindlass chat --inspect …\nwindlass serve --inspect …"))); return; }
  info = { ...found };
  parts = { list: h("aside.bp-list", { "aria-label": "Where to pause" }), main: h("div.bp-main", {}) };
  root.append(h("section.head", {}, h("h1", {}, "Breakpoints"), h("p.lede", {}, "Pause a live turn on its way, look at what passes, change it, decide, go on. Paused time does not count for limits and time-outs.")), h("div.bp", {}, parts.list, parts.main));
  points();
  update();
  timer = setInterval(() => { for (const el of root.querySelectorAll("[data-since]")) el.textContent = `waits ${span(Date.now() / 1000 - Number(el.dataset.since))}`; }, 1000);
}
export function leave() { parts = null; clearInterval(timer); }

// ---- where
const isSet = (event) => info.set.find((one) => one.event === event);
function points() {
  const row = (name) => {
    const point = info.points.find((one) => one.event === name);
    if (!point) return null;
    const set = isSet(name), hit = info.paused.some((one) => one.event === name);
    const toggle = () => change(name, set ? null : "");
    return h("li.bp-row", { class: `in${DEPTH[name] ?? 1}${set ? " set" : ""}${hit ? " hit" : ""}`, data: { event: name } },
      h("button.bp-dot", { type: "button", "aria-pressed": String(Boolean(set)), "aria-label": `Pause at ${name}`, on: { click: toggle } }, h("i", {})),
      h("code", { on: { click: toggle } }, name),
      point.tool && set ? h("input", { value: set.tool, placeholder: name === "Delegating" ? "any agent" : "any tool", "aria-label": `Only for this ${name === "Delegating" ? "agent" : "tool"} at ${name}`, spellcheck: false, on: { change: (event) => change(name, event.target.value.trim()) } }) : h("span", {}));
  };
  const focused = document.activeElement?.closest?.(".bp-row")?.dataset.event, field = document.activeElement?.tagName === "INPUT";
  parts.list.replaceChildren(h("h2", {}, "Where to pause"), h("ol", {}, ORDER.map(row)), h("p.dim.hint", { class: "bp-hint" }, info.set.length ? h("button.quiet", { type: "button", on: { click: () => send([]) } }, "Remove all") : ""));
  if (focused) parts.list.querySelector(`[data-event="${focused}"] ${field ? "input" : "button"}`)?.focus();
}
function change(name, tool) {
  const others = info.set.filter((one) => one.event !== name);
  send(tool === null ? others : [...others, { event: name, tool }]);
}
// Changes are sent one after the other, and count at once here: the next one is made from them.
let sent = Promise.resolve(), sending = 0;
function send(breakpoints) {
  info = { ...info, set: breakpoints };
  sending += 1;
  if (parts) points();
  sent = sent.then(() => post("/api/breakpoints/set", { breakpoints })).then((found) => { sending -= 1; take(found); }, (error) => { sending -= 1; say(error.message); return get("/api/breakpoints").then(take); }).catch(() => {});
  return sent;
}
function take(found) {
  info = { ...info, ...found, set: sending ? info.set : found.set };
  if (parts) { points(); update(); }
}

// ---- what waits
function update() {
  const waits = info.paused, still = waits.find((one) => one.pause === current?.pause);
  const moved = (still?.pause ?? waits[0]?.pause) !== current?.pause;
  if (moved) { current = still ?? waits[0] ?? null; mode = ""; drafts = {}; }
  points();
  const box = parts.main.querySelector(".pausebox");
  if (moved || !box) draw();
  else { parts.waits?.replaceWith(parts.waits = waiting()); parts.past?.replaceWith(parts.past = past()); }
}
function waiting() {
  return h("div.waitlist", { role: "group", "aria-label": "Paused turns", hidden: info.paused.length < 2 }, info.paused.map((one) => h("button.chip", { type: "button", "aria-pressed": String(one.pause === current?.pause), on: { click: () => { current = one; mode = ""; drafts = {}; draw(); } } }, mark("ask"), ` ${one.event}${one.tool ? ` ${one.tool}` : ""} · ${short(one.session, 24)}`)));
}
function draw() {
  parts.waits = waiting();
  parts.past = past();
  parts.main.replaceChildren(...[parts.waits, current ? pausebox(current) : idle(), parts.past].filter(Boolean));
}
function idle() {
  return h("div.empty", {}, info.set.length ? [h("h2", {}, "Nothing waits"), h("p", {}, `The next turn pauses at ${info.set.map((one) => one.event + (one.tool ? ` of ${one.tool}` : "")).join(", ")}.`)] : [h("h2", {}, "No breakpoint is set"), h("p", {}, "Choose a point of the lifecycle on this page: the next turn that comes there waits for you.")],
    h("p.dim", {}, `A gate of the agent that refuses still refuses: a person here can be stricter, not laxer. If no page is open for ${span(info.unwatched)}, a paused turn goes on as if it had not paused, and the log says so.`));
}
const key2 = (text) => h("kbd", { "aria-hidden": "true" }, text);
const button = (name, kind, run, key) => h("button.btn", { type: "button", class: kind, on: { click: run } }, name, key ? key2(key) : null);
function pausebox(one) {
  const names = Object.keys(one.arguments ?? {}), editable = one.edit && mode === "edit";
  return h("section.pausebox", { "aria-label": "Paused turn", tabIndex: -1 },
    h("header", {}, mark("ask"), h("h2", {}, one.event), one.tool ? h("code", {}, h("b", {}, one.tool)) : null, h("a", { href: `#/turn/${encodeURIComponent(one.session)}` }, one.session), h("span.dim", {}, `${one.agent}, step ${one.step}`), h("span.sp", {}), h("b.v-ask", { data: { since: one.began } }, `waits ${span(Date.now() / 1000 - one.began)}`)),
    one.arguments || one.text !== null ? h("div.callbox", {}, h("div.callhead", {}, h("b", {}, WHAT[one.event] ?? "payload"), h("span.sp", {}), one.whole ? null : h("span.v-error", {}, "cut: too long to change here")),
      h("form.fields", { on: { submit: (event) => event.preventDefault() } }, one.arguments ? (names.length ? names.map((name) => field(name, one.arguments[name], editable)) : h("p.dim", {}, "no arguments")) : field("text", one.text, editable))) : h("div.callbox", {}, h("div.callhead", {}, "This point has nothing to change.")),
    one.more.length ? h("dl.around", {}, one.more.map((it) => [h("dt", {}, it.name), h("dd", { tabIndex: it.text.length > 500 ? 0 : null }, it.text)])) : null,
    mode === "inject" ? h("label.why", {}, "The model reads this beside it", h("textarea", { id: "bp-inject", rows: 3, value: drafts.inject ?? "", on: { input: (event) => { drafts.inject = event.target.value; } } })) : null,
    mode.startsWith("say:") ? h("label.why", {}, SAY[mode.slice(4)] ?? "Why", h("input", { id: "bp-words", value: "", on: { keydown: (event) => { if (event.key === "Enter") { event.preventDefault(); go({ verdict: mode.slice(4), reason: event.target.value }); } } } })) : null,
    h("div.acts", {}, actions(one)));
}
function field(name, json, editable) {
  const value = valueOf(json), text = typeof value === "string", shown = text ? value : json;
  if (!editable) return h("div.f", {}, h("span", {}, name), h("output", {}, text ? value || h("span.dim", {}, "empty") : json));
  const props = { name, value: drafts[name] ?? shown, spellcheck: false, data: { text: text ? "1" : "", was: shown }, on: { input: (event) => { drafts[name] = event.target.value; event.target.parentNode.classList.toggle("chg", event.target.value !== shown); }, keydown: (event) => { if (event.key === "Enter" && (event.target.tagName === "INPUT" || event.ctrlKey || event.metaKey)) { event.preventDefault(); go(edited()); } } } };
  return h("label.f", { class: drafts[name] !== undefined && drafts[name] !== shown ? "chg" : "" }, h("span", {}, name), name === "text" && current.edit === "text" || shown.length > 60 || shown.includes("\n") ? h("textarea", { ...props, rows: 5 }) : h("input", props));
}
function actions(one) {
  const enter = (next) => () => { mode = next; draw(); root.querySelector(".pausebox .fields input, .pausebox .fields textarea, #bp-words, #bp-inject")?.focus(); };
  const back = button("Back", "", () => { mode = ""; drafts = {}; draw(); }, "Esc");
  if (mode.startsWith("say:")) return [button(mode.slice(4), tone(mode.slice(4)) === "deny" ? "danger" : "primary", () => go({ verdict: mode.slice(4), reason: document.getElementById("bp-words").value })), back];
  if (mode === "edit") return [button("Go on with these changes", "primary2", () => go(edited())), back];
  if (mode === "inject") return [button("Add this and go on", "primary2", () => go({ inject: drafts.inject ?? "" })), back];
  return [button("Go on", "primary2", () => go({}), "c"), one.edit ? button("Change it", "", enter("edit"), "e") : null, one.inject ? button("Add text", "", enter("inject"), "i") : null, h("span.sp", {}),
    one.verdicts.filter((it) => it.name !== "Allow").map((it, n) => h("button.btn", { type: "button", on: { click: it.text ? enter(`say:${it.name}`) : () => go({ verdict: it.name }) } }, verdict(it.name), n === refusal(one) ? key2("n") : null)), one.verdicts.some((it) => it.name === "Allow") ? h("button.btn", { type: "button", on: { click: () => go({ verdict: "Allow" }) } }, verdict("Allow")) : null];
}
// The mildest refusal: what `n` means here.
function refusal(one) {
  const names = one.verdicts.filter((it) => it.name !== "Allow").map((it) => it.name);
  for (const name of ["Deny", "Regenerate", "Veto", "FORBID", "Fail", "Halt"]) if (names.includes(name)) return names.indexOf(name);
  return -1;
}
function edited() {
  const values = {};
  for (const el of root.querySelectorAll(".pausebox .fields [name]")) {
    try { values[el.name] = el.dataset.text ? el.value : JSON.parse(el.value); } catch { say(`${el.name} is not valid JSON`); el.focus(); return null; }
  }
  return current.edit === "arguments" ? { arguments: values } : { text: values.text };
}
async function go(reply) {
  if (!current || !reply) return;
  const was = current;
  try {
    info = { ...info, ...(await post("/api/breakpoints/answer", { pause: was.pause, ...reply })) };
    say(reply.verdict ? `${reply.verdict}, in your name` : reply.inject ? "Added, and the turn goes on" : reply.arguments || reply.text !== undefined ? "Changed, and the turn goes on" : "The turn goes on");
    dispatchEvent(new CustomEvent("paused", { detail: info.paused.length }));
    mode = ""; drafts = {};
    if (parts) { current = info.paused[0] ?? null; points(); draw(); root.querySelector(".pausebox")?.focus({ preventScroll: true }); }
  } catch (error) { say(error.message); }
}
function past() {
  if (!info.history.length) return null;
  const now = Date.now() / 1000;
  const words = (one) => [one.did === "went on" ? "went on" : null, one.edited ? "changed it" : null, one.injected ? "added text" : null].filter(Boolean).join(", ");
  return h("section.past", { "aria-label": "Pauses that are over" }, h("h2", {}, plural(info.history.length, "pause")), h("ul", {}, info.history.slice(0, 20).map((one) => h("li", {}, h("span", {}, one.event, one.tool ? h("span.dim", {}, ` ${one.tool}`) : ""), h("span", {}, one.did !== "went on" ? verdict(one.did) : mark(one.edited || one.injected ? "changed" : "silent"), ` ${words(one)}`, h("span.dim", {}, `${one.by ? ` by ${one.by}` : ` ${one.how}`}, after ${span(one.paused)} in ${one.session}`)), h("span.dim", {}, ago(one.at, now))))));
}
export function key(event) {
  if (!current || !parts) return;
  const at = info.paused.findIndex((one) => one.pause === current.pause), click = (text) => [...root.querySelectorAll(".pausebox .acts .btn")].find((el) => el.querySelector("kbd")?.textContent === text)?.click();
  if (event.key === "c" || event.key === "e" || event.key === "i" || event.key === "n") { if (!mode) { event.preventDefault(); click(event.key); } }
  else if (event.key === "Escape" && mode) { mode = ""; drafts = {}; draw(); }
  else if ("jk".includes(event.key) && info.paused.length > 1) { event.preventDefault(); const next = info.paused[at + (event.key === "j" ? 1 : -1)]; if (next) { current = next; mode = ""; drafts = {}; draw(); } }
}
