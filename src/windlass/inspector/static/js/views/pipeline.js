// What governs an agent: its hooks along the lifecycle, with what they said and took, for a turn, a session or all of them.
import { get } from "../api.js";
import { h, mark, tag } from "../dom.js";
import { count, money, plural, span } from "../format.js";
import { behind, tabs } from "../tabs.js";
import { changes } from "./changes.js";
import { context, contextOf } from "./context.js";
import { cost } from "./cost.js";
import { coverage, seen } from "./coverage.js";
import { effects } from "./effects.js";
import { streams } from "./streams.js";

// The lifecycle with its depth: the rail bends where the depth changes. The effects are where the outside is reached.
const RAIL = [["wrap(Turn)", 0], ["SessionStarting", 0], ["TurnStarting", 1], ["wrap(Step)", 2], ["StepStarting", 2], ["Compacting", 3], ["ModelCalling", 3], ["wrap(ModelCall)", 4, "the model is asked"], ["token stream", 5], ["ModelReplying", 3], ["ToolCalling", 3], ["Delegating", 3], ["wrap(ToolCall)", 4, "the tool runs"], ["ToolReturning", 3], ["MessageAdding", 3], ["StepEnding", 2], ["Continuing", 2], ["Stopping", 2], ["SubagentStopping", 2], ["TurnEnding", 1], ["Erring", 0], ["Resuming", 0]];
const SAYS = { SessionStarting: "a session is opened", TurnStarting: "a message opens a turn", StepStarting: "before each step", Compacting: "when a compaction is due", ModelCalling: "the last look at all that leaves", "token stream": "words on their way out", ModelReplying: "a whole reply, before anybody reads it", ToolCalling: "every call, before it runs", Delegating: "a task for another agent", ToolReturning: "a result, before the model reads it", MessageAdding: "the door to the transcript", Continuing: "votes on another step", Stopping: "a stop may be vetoed", TurnEnding: "the answer, before it is given", Erring: "an error", Resuming: "before a turn goes on", "wrap(Turn)": "around the whole turn", "wrap(Step)": "around each step" };
const TABS = [["hooks", "Hooks"], ["coverage", "Coverage"], ["cost", "Cost"], ["context", "Context"], ["streams", "Streams"], ["effects", "Effects"], ["changes", "Changes"]];
// What some tabs ask for besides.
const MORE = { effects: () => get("/api/effects"), context: () => contextOf(address) };
export const SAID = [["deny", "deny", "refused"], ["error", "error", "failed"], ["ask", "ask", "asked"], ["changed", "changed", "changed"], ["inject", "inject", "added"], ["allow", "allow", "allowed"], ["shadow", "shadow", "recorded only"]];
let root, page, data, tab, address, timer, asked;

export const place = (name, scope = {}) => `#/pipeline/${name}${scope.session ? `/session/${encodeURIComponent(scope.session)}${scope.turn ? `/${scope.turn}` : ""}` : scope.agent ? `/agent/${encodeURIComponent(scope.agent)}` : ""}`;

export async function show(view, [name = "hooks", kind = "", id = "", turn = ""], context) {
  root = view; page = context;
  tab = TABS.some(([one]) => one === name) ? name : "hooks";
  address = kind === "session" ? { session: id, turn: Number(turn) || 0 } : { agent: kind === "agent" ? id : "" };
  if (!document.getElementById("store").textContent) get("/api/sessions?limit=1").then((found) => context.setStore(found.store), () => {});
  await load(context);
}
export function leave() { clearTimeout(timer); data = null; }

async function load(context) {
  const query = new URLSearchParams();
  if (address.session) { query.set("session", address.session); if (address.turn) query.set("turn", address.turn); } else if (address.agent) query.set("agent", address.agent);
  const [found, more] = await Promise.all([get(`/api/pipeline?${query}`), MORE[tab]?.() ?? null]);
  if (!context.isCurrent()) return;
  data = { ...found, more };
  const focus = document.activeElement?.id;
  draw();
  if (focus?.startsWith("tab-")) document.getElementById(focus)?.focus();
  if (found.missing || more?.missing) timer = setTimeout(() => load(context).catch(() => {}), 300);
}

function choose(name) {
  if (name === tab) return;
  tab = name;
  history.replaceState(null, "", place(name, address));
  data.more = null;
  draw();
  if (MORE[tab]) load(page).catch(() => {});
}

function draw() {
  const body = h("div", { role: "tabpanel", id: "tab-panel", "aria-labelledby": `tab-${tab}`, tabIndex: -1 });
  root.replaceChildren(head(), tabs(TABS, tab, "What governs this agent", choose), body);
  const none = !data.sessions && tab !== "effects";
  body.append(...[none ? nothing() : { hooks, coverage, cost, context, streams, effects, changes }[tab](data)].flat().filter(Boolean));
}

function head() {
  const scope = data.scope, placed = data.points.map((point) => point.hooks.filter((one) => !["person", "not in it"].includes(one.verb)).length).filter(Boolean);
  const holders = data.points.flatMap((point) => point.holds);
  const words = !data.known ? [data.sessions ? "The store does not describe this agent: what is shown is what its hooks said." : ""] : [`${plural(placed.reduce((a, b) => a + b, 0), "hook")} at ${plural(placed.length, "point")}. `, !data.detailed ? "An older version of Windlass stored this agent: what its hooks look at is not known." : holders.length ? h("span", {}, h("b", {}, holders.join(", ")), holders.length > 1 ? " hold the stream: " : " holds the stream: ", "nobody reads a word of a reply before it has spoken.") : "Nobody holds the stream: words flow as they come."];
  return h("section.head.pipehead", {}, h("h1", {}, "Pipeline"),
    scope.session ? h("nav.crumb", { "aria-label": "What is shown" }, h("a", { href: place(tab, { agent: scope.agent }) }, scope.agent || "all sessions"), h("span", { "aria-hidden": "true" }, "/"), h("a", { href: `#/turn/${encodeURIComponent(scope.session)}${scope.turn ? `/${scope.turn}` : ""}` }, h("code", {}, scope.session)), turns())
      : h("div.chips", { role: "group", "aria-label": "Agent" }, data.agents.slice(0, 12).map((one) => h("a.chip", { href: place(tab, { agent: one }), "aria-current": one === scope.agent ? "true" : null }, one || "no name"))),
    h("p.lede", {}, words, data.missing ? h("span.dim", {}, ` ${plural(data.missing, "session")} still to be read.`) : ""));
}
function turns() {
  const all = data.turn_numbers, now = data.scope.turn;
  if (all.length < 2) return "";
  const near = all.length <= 12 ? all : [...new Set([...all.slice(0, 3), ...all.filter((n) => Math.abs(n - now) < 3), ...all.slice(-3)])];
  return h("span.turns", {}, h("a", { href: place(tab, { session: data.scope.session }), "aria-current": now ? null : "true" }, "all turns"), near.map((n) => h("a", { href: place(tab, { session: data.scope.session, turn: n }), "aria-current": n === now ? "true" : null }, n)));
}
function nothing() {
  return h("section.empty", {}, h("h2", {}, "No agent has run yet"), h("p", {}, "The pipeline of an agent is kept in its store, once, when a session is opened. Run one, and it is here:"), h("pre.raw", {}, 'agent = Agent(model, store="sqlite:///agent.db", measure_hooks=True)'));
}

// ---- the rail
function hooks() {
  const points = new Map(data.points.map((point) => [point.point, point]));
  const rail = h("ol.rail", { "aria-label": "Lifecycle, in the order in which it runs" });
  let quiet = [], before = 0;
  const bend = (d) => { const vars = { d, m: Math.min(d, before), j: Math.abs(d - before) }; before = d; return vars; };
  const flush = () => { if (quiet.length) rail.append(h("li.quietpt", { vars: bend(Math.min(...quiet.map(([, d]) => d))) }, h("span.node.o", {}), h("span.names", {}, quiet.map(([name]) => h("span", {}, name))))); quiet = []; };
  for (const [name, depth, effect] of RAIL) {
    const point = points.get(name) ?? { hooks: [], holds: [] };
    if (!point.hooks.length && !effect) { if (!name.startsWith("wrap(") && name !== "token stream") quiet.push([name, depth]); continue; }
    flush();
    rail.append(h("li.pt", { vars: bend(depth), class: `${effect ? "effect" : ""}${point.holds.length ? " holds" : ""}` }, h("span.node", {}),
      h("div.pthead", {}, h("b", {}, effect ?? name), h("span.dim", {}, effect ? (point.hooks.length ? "" : "nobody wraps it") : SAYS[name] ?? ""), point.holds.length ? h("span.hold", {}, mark("hold"), "holds the stream") : null),
      point.hooks.length ? h("div.hooks", {}, point.hooks.map((one, at) => hook(one, at === 0 || point.hooks[at - 1].verb !== one.verb))) : null));
  }
  flush();
  const known = data.points.flatMap((point) => point.hooks.filter((one) => one.figures).map((one) => [point.point, one]));
  return h("div.split.pipe", {},
    h("section", { "aria-label": "Hooks" }, h("div.hook.hh", { "aria-hidden": "true" }, h("span", {}, "verb"), h("span", {}, "hook"), h("span", {}, `said ${data.scope.turn ? "in this turn" : data.scope.session ? "in this session" : `in ${plural(data.sessions, "session")}`}`), h("span.time", {}, ["10 µs", "10 ms", "10 s"].map((text, at) => h("i.sc", { vars: { x: `${at * 50}%` } }, text)))), rail,
      unmeasured(known),
      behind("Hooks", ["Hook", "Point", "Verb", "Asked", "Refused", "Failed", "Asked a person", "Changed", "Added", "Allowed", "Recorded only", "In all", "p50", "p95", "Slowest", "Side calls"], known.map(([point, one]) => { const f = one.figures, t = f.times ?? {}; return [one.name, point, one.verb, f.asked ?? "not known", ...SAID.map(([kind]) => f.said[kind] ?? 0), t.seconds != null ? span(t.seconds) : null, t.p50 != null ? quick(t.p50) : null, t.p95 != null ? quick(t.p95) : null, t.max != null ? span(t.max) : null, f.side ? `${f.side.calls}, ${count(f.side.tokens)} tokens${f.side.cost != null ? `, ${money(f.side.cost)}` : ""}` : null]; }))),
    h("aside.card", { "aria-label": "What it comes to" },
      h("section", {}, h("h2", {}, "Who looks at which tool"), seen(data), h("p.more", {}, h("a", { href: place("coverage", address) }, "Every tool and gate"))),
      h("section", {}, h("h3", {}, "No hook can see"), h("ul.unm", {}, ["what a vendor runs by itself: it arrives as parts that say so, when it is done", "what the code of a tool or hook does inside", "side calls of hooks, but for guards on ModelCalling and wraps with side_calls"].map((text) => h("li", {}, mark("error"), h("span", {}, text))))),
      data.known ? h("section", {}, h("h3", {}, "What ends a turn"), h("p.names", {}, data.criteria.join(", ") || "nothing but the model")) : null,
      data.observers.length ? h("section", {}, h("h3", {}, "Who is told"), h("ul.told", {}, told())) : null,
      h("p.dig", {}, "pipeline ", h("code", {}, data.digest || "not known"), data.history.length > 1 ? [", ", h("a", { href: place("changes", address) }, plural(data.history.length - 1, "change"))] : null)));
}
function told() {
  const by = new Map();
  for (const one of data.observers) by.set(one.name, [...(by.get(one.name) ?? []), one.fact]);
  return [...by].slice(0, 30).map(([name, facts]) => h("li", {}, h("code", {}, name), h("span.dim", {}, facts.length > 4 ? `${facts.length} kinds of facts` : facts.join(", "))));
}
function unmeasured(known) {
  const some = known.some(([, one]) => one.figures.measured);
  if (known.length && some) return null;
  return h("p.teach", {}, h("b", {}, "Times of answers only."), " Hooks that stay silent write nothing, and these sessions did not measure them. Make the agent with ", h("code", {}, "measure_hooks=True"), ", or run it with ", h("code", {}, "windlass run"), " or ", h("code", {}, "serve"), ", which switch it on.");
}

const LO = 1e-5, HI = 10, x = (v) => `${((Math.log10(Math.max(LO, Math.min(HI, v))) - Math.log10(LO)) / (Math.log10(HI) - Math.log10(LO))) * 100}%`;
const quick = (v) => (v < 2e-6 ? "≤ 1 µs" : span(v));
function hook(one, first) {
  const f = one.figures, said = f?.said ?? {}, spoke = Object.values(said).reduce((a, b) => a + b, 0), n = f ? Math.max(f.asked ?? 0, spoke) : 0, t = f?.times;
  const kinds = SAID.filter(([kind]) => said[kind]);
  const away = one.verb === "not in it" || one.verb === "person";
  return h("div.hook", { class: `b-${one.band}${one.verb.startsWith("shadow") ? " is-shadow" : ""}${away ? " is-away" : ""}` },
    h("span.verb", {}, first ? one.verb : h("span.vh", {}, one.verb)),
    h("span.nm", {}, h("b", {}, one.name), one.band !== "normal" ? tag(one.band, one.band === "guard" ? "g" : "") : null, one.verb === "shadow gate" ? tag("shadow") : one.verb === "costly gate" ? tag("costly") : null, one.priority ? tag(`priority ${one.priority}`) : null,
      h("span.dim", {}, one.verb === "not in it" ? "of another version of this agent" : one.verb === "person" ? "answered questions of gates" : [one.capability ? `brought by ${one.capability}` : "", ...one.on, one.fails ? `if it fails: ${one.fails}` : ""].filter(Boolean).join("; "))),
    h("span.counts", {}, n ? [h("span.cbar", { role: "img", "aria-label": `${f.asked != null ? `asked ${plural(f.asked, "time")}, ` : ""}answered ${plural(spoke, "time")}` }, kinds.map(([kind]) => h(`i.f-${kind}`, { vars: { g: said[kind] } })), n > spoke ? h("i.f-quiet", { vars: { g: n - spoke } }) : null),
      h("span.cn", {}, kinds.map(([kind, icon, word]) => h("span", { class: `v-${{ inject: "changed", shadow: "silent" }[kind] ?? kind}`, title: word }, mark(icon, word), count(said[kind]))), h("span.dim", {}, f.asked != null ? `of ${count(n)}` : one.verb === "person" ? "" : "silent calls not counted"))] : h("span.dim", {}, f ? "silent" : one.verb === "transform" ? "on streams" : one.verb === "strategy" ? "not due" : "never asked")),
    h("span.time", {}, t ? [h("i.rng", { vars: { x: x(t.p50), y: x(t.p95) } }), h("i.p95", { class: f.measured ? "" : "rough", vars: { x: x(t.p95) } }), h("span.pv", { title: f.measured ? "95 of 100 calls were faster" : "of the calls that answered" }, quick(t.p95))] : null,
      f?.side ? h("span.spentby", { title: "tokens of its side calls" }, `${count(f.side.tokens)} tok${f.side.cost != null ? `, ${money(f.side.cost)}` : ""}`) : f?.timeouts ? h("span.spentby.v-error", {}, mark("error"), plural(f.timeouts, "time-out")) : null));
}

export function key(event) {
  const at = TABS.findIndex(([id]) => id === tab), to = { "[": at - 1, "]": at + 1 }[event.key];
  if (to !== undefined && data) { choose(TABS[(to + TABS.length) % TABS.length][0]); document.getElementById(`tab-${tab}`)?.focus(); }
}
