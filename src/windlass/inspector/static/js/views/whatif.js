// Recorded sessions asked again with a hook off, on or new. Replies and results come from the log: no model, no tool is called.
import { flow, get } from "../api.js";
import { bar, h, mark, say, tone, verdict } from "../dom.js";
import { count, oneLine, plural, short, span } from "../format.js";
import { VirtualList } from "../virtual.js";
import { track } from "./diff.js";

const EXAMPLE = `allow = ["find_*"]
ask = ["refund(amount=>200)"]
deny = ["send_mail(to=*@other.example)"]
`;
const SINCE = [["", "any time"], ["86400", "the last day"], ["604800", "the last 7 days"], ["2592000", "the last 30 days"]];
const SAID = { "Ask>Deny": "a person is no longer asked; it is refused", "Ask>Allow": "a person is no longer asked; it happens", "Allow>Ask": "a person is asked first", "Allow>Deny": "what happened is refused", "Deny>Allow": "what was refused happens", "Deny>Ask": "a person is asked instead of a refusal", "Allow>Halt": "the turn ends there" };
// What was chosen and found stays while other views are open.
const memory = { agent: null, off: new Set(), on: new Set(), rules: "", search: "", since: "", result: null, sessions: new Map(), show: "all" };
let offer, root, parts, page, running = null, list = null, open = new Set(), only = "";

export async function show(view, [session = ""], context) {
  root = view; page = context; only = session;
  offer = await get("/api/whatif");
  if (!context.isCurrent()) return;
  context.setStore(offer.store);
  memory.agent ??= Boolean(offer.agent);
  build();
  if (memory.result) results();
}
export function leave() { list?.close(); list = null; }

// ---- what is tried
function build() {
  parts = { switches: h("div", {}), go: h("div.wi-go", { role: "group", "aria-label": "Replay" }), out: h("div", {}) };
  const choose = (agent, name) => h("button.chip", { type: "button", "aria-pressed": String(memory.agent === agent), on: { click: () => { memory.agent = agent; memory.off.clear(); memory.on.clear(); root.replaceChildren(); build(); if (memory.result) results(); } } }, name);
  const rules = h("textarea", { id: "rules-text", spellcheck: false, placeholder: EXAMPLE, value: memory.rules, disabled: memory.agent, "aria-label": "Rules of a policy file", on: { input: () => { memory.rules = rules.value; controls(); } } });
  const search = h("input", { type: "search", value: memory.search, placeholder: "all sessions", "aria-label": "Sessions: a text in their id, agent or first message", on: { input: () => { memory.search = search.value.trim(); controls(); } } });
  const since = h("select", { "aria-label": "Used", on: { change: () => { memory.since = since.value; controls(); } } }, SINCE.map(([value, name]) => h("option", { value, selected: value === memory.since }, name)));
  root.append(
    h("section.head", {}, h("h1", {}, "What if"), h("p.lede", {}, "What would other hooks have decided? Recorded sessions are asked again; replies and results come from the log up to the first difference. No model and no tool is called, and nothing is written.")),
    h("form.wi-form", { on: { submit: (event) => { event.preventDefault(); run(); } } },
      h("section", { "aria-label": "Hooks" }, h("div.chips", { role: "group", "aria-label": "Whose hooks" }, offer.agent ? choose(true, `Hooks of ${offer.agent.name}`) : null, choose(false, "Recorded gates and rules")), parts.switches,
        offer.agent ? null : h("p.dim.hint", {}, "To try all hooks of your code, also new ones, start with ", h("code", {}, "windlass ui --agent MODULE:AGENT"), ".")),
      h("section", { "aria-label": "Rules and sessions" },
        memory.agent ? h("p.dim", {}, "All gates of this agent are asked, also those that are newer than the recordings. Reload after a restart to try a change of its code.") : [h("h2", {}, "Rules"), rules, h("p.dim.hint", {}, "As in a policy file. They take the place of the gate ", h("code", {}, offer.rules), " and of those that you switch off; all other verdicts stand.")],
        h("div.wi-where", {}, only ? h("p", {}, "Only session ", h("code", {}, only), ". ", h("a", { href: "#/whatif" }, "All sessions")) : [h("label", {}, "Sessions", search), h("label", {}, "Used", since)]))),
    parts.go, parts.out);
  switches();
  controls();
  if (!memory.result) parts.out.append(teach());
}
function switches() {
  const hooks = memory.agent ? offer.agent.hooks : offer.recorded;
  if (!hooks.length) { parts.switches.replaceChildren(h("p.dim", {}, memory.agent ? "This agent has no gate and no rewrite of tool calls that could be switched." : "The agents that wrote these sessions had no gate on tool calls. Write rules to try some.")); return; }
  const row = (hook) => {
    const set = hook.shadow ? memory.on : memory.off, changed = set.has(hook.name), counts = hook.shadow ? changed : !changed;
    const box = h("input", { type: "checkbox", checked: counts, on: { change: () => { if (set.has(hook.name)) set.delete(hook.name); else set.add(hook.name); const top = parts.switches.firstChild.scrollTop; switches(); parts.switches.firstChild.scrollTop = top; parts.switches.querySelectorAll("input")[hooks.indexOf(hook)].focus(); controls(); } } });
    return h("label.switch", { class: changed ? "turned" : "" }, box, h("span", {}, h("code", {}, hook.name), " ", h("span.dim", {}, `${hook.kind} on ${hook.event}${hook.tool ? `, ${hook.tool}` : ""}`)), h("span.st", {}, hook.shadow ? (changed ? "switched on" : "recorded only") : changed ? "switched off" : "on"));
  };
  parts.switches.replaceChildren(h("div.switches", { role: "group", "aria-label": "Hooks that are asked" }, hooks.map(row)));
}
function command() {
  const words = ["windlass replay", only];
  if (memory.agent) return memory.off.size || memory.on.size ? "" : [...words, "--agent MODULE:AGENT"].filter(Boolean).join(" ");
  return memory.rules.trim() ? [...words, "--rules policy.toml", ...[...memory.off].map((name) => `--replaces ${name}`)].filter(Boolean).join(" ") : "";
}
const mayRun = () => memory.agent || memory.rules.trim() || memory.off.size;
function controls() {
  const now = running?.last;
  parts.go.replaceChildren(...[
    running ? h("button.btn", { type: "button", on: { click: stop } }, "Cancel", h("kbd", { "aria-hidden": "true" }, "Esc")) : h("button.btn.primary2", { type: "button", disabled: !mayRun(), on: { click: run } }, "Replay", h("kbd", { "aria-hidden": "true" }, "g")),
    running ? h("div.wi-bar", { role: "progressbar", "aria-label": "Sessions replayed", "aria-valuemin": 0, "aria-valuemax": now?.total ?? 1, "aria-valuenow": now?.done ?? 0 }, h("i", { vars: { w: `${now ? (now.done / now.total) * 100 : 0}%` } })) : null,
    h("span.dim", { role: "status" }, status()),
    command() && !running ? h("code.cmd", {}, command()) : null,
  ].filter(Boolean));
}
function status() {
  const now = running?.last ?? memory.result;
  if (running && !now) return "reading the store";
  if (!now) return mayRun() ? "" : "Switch a gate off, or write rules.";
  if (now.failure) return `Failed: ${now.failure}`;
  const rate = now.seconds > 0.5 ? `, ${count(Math.round(now.done / now.seconds))} a second` : "";
  if (!now.over) return `${count(now.done)} of ${plural(now.total, "session")}${rate}`;
  return now.stopped ? `Cancelled after ${count(now.done)} of ${plural(now.total, "session")}` : `${plural(now.done, "session")} in ${span(now.seconds)}`;
}
function teach() {
  return h("div.empty", {}, h("h2", {}, "Ask last month before you change a rule"), h("p", {}, "Switch a gate off, switch a shadow gate on, or write new rules; then see which recorded calls would have been decided otherwise, and by whom."),
    h("p.dim", {}, "Each session is a track: one cell per verdict, coloured at the first difference. What follows is hatched: the model would have said something else then, so nothing can be compared."));
}

// ---- the replay
async function run() {
  if (running || !mayRun()) return;
  const mine = running = { stop: new AbortController(), last: null };
  memory.result = null; memory.sessions = new Map(); open = new Set();
  controls();
  parts.out.replaceChildren();
  const question = { agent: memory.agent, off: [...memory.off], on: memory.agent ? [...memory.on] : [], rules: memory.agent ? "" : memory.rules, sessions: only ? [only] : [], search: only ? "" : memory.search, since: memory.since && !only ? Math.max(0, Date.now() / 1000 - Number(memory.since)) : 0 };
  try {
    await flow("/api/whatif/run", question, (type, data) => {
      mine.last = memory.result = { ...data, sessions: undefined };
      for (const one of data.sessions) memory.sessions.set(one.session, one);
      if (root.isConnected && document.body.dataset.view === "whatif") { controls(); results(); }
    }, mine.stop.signal);
  } catch (error) {
    if (mine.stop.signal.aborted) { if (memory.result) memory.result = { ...memory.result, over: true, stopped: memory.result.done < memory.result.total }; }
    else say(error.message);
  }
  running = null;
  if (document.body.dataset.view === "whatif") { controls(); if (memory.result) { results(); say(headline()); } else parts.out.replaceChildren(teach()); }
}
function stop() { running?.stop.abort(); }
function headline() {
  const s = memory.result.summary, n = s.different + s.unjudged + s.failed;
  return n ? `${n} of ${plural(s.sessions, "session")} not as recorded` : `${plural(s.sessions, "session")}: all decided as recorded`;
}

// ---- what came of it
function toneOf(one) {
  if (one.status === "failed") return "error";
  if (one.status === "unjudged" && !one.differences.length) return "unjudged";
  const first = one.differences[0];
  return first.kind === "verdict" || first.kind === "outcome" ? tone(first.now) === "silent" && first.now === "Allow" ? "allow" : tone(first.now) : "changed";
}
const KINDS = [["all", "Not as recorded", () => true], ["different", "Decided otherwise", (one) => one.status === "different" || one.differences.length], ["unjudged", "Not judged", (one) => one.unjudged.length], ["failed", "Could not be read", (one) => one.status === "failed"]];
function results() {
  const result = memory.result, s = result.summary, found = [...memory.sessions.values()];
  const y = scrollY;
  const shown = found.filter(KINDS.find(([id]) => id === memory.show)[2]);
  if (!parts.table) {
    parts.cards = h("div.wi-top", {});
    parts.filter = h("div.tools", {});
    parts.body = h("div.body", { role: "presentation" });
    parts.table = h("div.table.wi", { role: "table", "aria-label": "Sessions that are not as recorded" }, h("div", { role: "rowgroup" }, h("div.tr.th", { role: "row" }, ["Session", "Up to the first difference", "Was", "Would be", "By", "Call"].map((name) => h("span", { role: "columnheader" }, name)))), parts.body);
  }
  if (!parts.table.isConnected) {
    list?.close();
    parts.out.replaceChildren(parts.cards, parts.filter, parts.table);
    list = new VirtualList(parts.body, { key: (one) => one.session, estimate: () => 46, render: row });
  }
  parts.cards.replaceChildren(...cards(s, found));
  parts.filter.replaceChildren(h("div.chips", { role: "group", "aria-label": "Show" }, KINDS.filter(([id, , test]) => id === "all" || found.some(test)).map(([id, name, test]) => h("button.chip", { type: "button", "aria-pressed": String(memory.show === id), on: { click: () => { memory.show = id; results(); } } }, name, h("span.c", {}, found.filter(test).length)))), found.length < s.different + s.unjudged + s.failed ? h("span.dim", {}, `the first ${found.length} are listed`) : "");
  parts.table.hidden = !shown.length;
  list.set(shown);
  if (scrollY !== y) scrollTo(0, y);
}
function cards(s, found) {
  const changed = s.different + s.unjudged + s.failed, flows = new Map(), hooks = new Map();
  for (const one of found) for (const it of one.differences) {
    const way = it.kind === "arguments" ? "arguments" : `${it.was}>${it.now}`;
    flows.set(way, (flows.get(way) ?? 0) + 1);
    const by = it.now_by[0] ?? it.was_by[0] ?? (it.kind === "arguments" ? "a rewrite" : "nobody"), kinds = hooks.get(by) ?? {}, kind = it.kind === "arguments" ? "changed" : tone(it.now);
    kinds[kind] = (kinds[kind] ?? 0) + 1;
    hooks.set(by, kinds);
  }
  const most = Math.max(1, ...flows.values()), sum = (kinds) => Object.values(kinds).reduce((a, b) => a + b, 0), top = Math.max(1, ...[...hooks.values()].map(sum));
  const same = s.sessions - changed, later = found.reduce((n, one) => n + one.later, 0), cells = Math.min(s.sessions, 240);
  const squares = [...found.map(toneOf).slice(0, cells), ...Array(Math.max(0, cells - found.length)).fill("")];
  const way = ([name, n]) => {
    const [was, now] = name.split(">");
    return h("li", {}, now ? [verdict(was), h("span.arrow", { vars: { g: Math.round((n / most) * 9) + 1 } }), verdict(now)] : [h("span", {}, "arguments"), h("span.arrow", { vars: { g: Math.round((n / most) * 9) + 1 } }), h("span.by.v-changed", {}, mark("changed"), "others")], h("b", {}, n), h("span.dim", {}, SAID[name] ?? (now ? "" : "the call has other arguments")));
  };
  const out = [
    h("section.wi-sum", { "aria-label": "Sessions" }, h("div.big", {}, h("b", {}, changed), h("span", {}, `of ${plural(s.sessions, "session")} ${changed === 1 ? "differs" : "differ"}`)),
      h("div.squares", { role: "img", "aria-label": `${same} as recorded, ${s.different} decided otherwise, ${s.unjudged} not judged, ${s.failed} not readable` }, squares.map((kind) => h("i", { class: kind ? `d-${kind}` : "" }))), s.sessions > cells ? h("p.dim", {}, `and ${count(s.sessions - cells)} more`) : null,
      h("p.dim", {}, `${count(s.verdicts)} verdicts were given again. `, later ? `${plural(later, "verdict")} after a first difference cannot be compared. ` : "", s.reworded ? `${s.reworded} only have other words. ` : "", s.blocked ? `${s.blocked} would stop what happened. ` : "", s.allowed ? `${s.allowed} would let happen what did not.` : "")),
    h("section.wi-flow", { "aria-label": "Changes" }, h("h2", {}, "Verdicts that change"), flows.size ? h("ul.flows", {}, [...flows].sort((a, b) => b[1] - a[1]).slice(0, 8).map(way)) : h("p.dim", {}, changed ? "None." : "None: every verdict is as recorded."),
      hooks.size ? [h("h3", {}, "By hook"), h("div.hookbars", {}, [...hooks].sort((a, b) => sum(b[1]) - sum(a[1])).slice(0, 8).map(([name, kinds]) => [h("code", {}, name), h("div", { vars: {} }, sized(bar(Object.entries(kinds).map(([kind, value]) => ({ name: kind, value, kind: `d-${kind}` })), `${sum(kinds)} verdicts change because of ${name}`), sum(kinds) / top)), h("b", {}, sum(kinds))]))] : null),
    h("section.wi-lack", { "aria-label": "Not judged" }, h("h2", {}, "Not judged"), s.lacks.length ? [h("p.dim", {}, "The log lacks what these hooks want. It never counts as an allow."), h("ul.lacks", {}, s.lacks.slice(0, 8).map(([text, n]) => h("li", {}, h("b", {}, n), text)))] : h("p.dim", {}, "Every verdict could be given from the log."),
      s.not_evaluated.length ? [h("h3", {}, "Not evaluated"), h("ul.lacks", {}, s.not_evaluated.slice(0, 6).map((text) => h("li", {}, h("span", {}, "·"), text)))] : null),
  ];
  return out;
}
function sized(el, share) { el.style.width = `${Math.max(4, share * 100)}%`; return el; }

function row(one, index) {
  const first = one.differences[0], isOpen = open.has(one.session), cells = [];
  for (let n = 0; n < Math.max(0, one.verdicts - one.differences.length); n += 1) cells.push({ v: "", same: true });
  for (const it of one.differences) cells.push({ v: it.kind === "arguments" ? "Edit" : it.now, same: false, na: false });
  for (let n = 0; n < one.later; n += 1) cells.push({ v: "", same: false, na: true });
  const what = one.status === "failed" ? h("span.v-error", {}, short(one.error, 120)) : first ? `${first.step ? `step ${first.step}` : `turn ${first.turn}`}` : "not judged";
  const by = first ? (first.now_by[0] ?? first.was_by[0] ?? "") : one.unjudged[0]?.hook ?? "";
  return h("div", { role: "rowgroup", data: { id: one.session } },
    h("div.tr", { role: "row" },
      h("span.c-what", { role: "cell" }, h("button.name", { type: "button", "aria-expanded": String(isOpen), on: { click: () => toggle(one) } }, short(one.title || one.session, 120)), h("span.sub", {}, h("code", {}, one.session), h("span", {}, one.agent))),
      h("span.c-track", { role: "cell" }, cells.length ? track(cells, 24) : null, h("span.dim", {}, what)),
      h("span.c-a", { role: "cell" }, first ? verdict(first.kind === "arguments" ? "Allow" : first.was) : ""),
      h("span.c-b", { role: "cell" }, first ? verdict(first.kind === "arguments" ? "Edit" : first.now) : one.unjudged.length ? h("span.verdict.v-shadow", {}, mark("shadow"), "unknown") : ""),
      h("span.c-by", { role: "cell" }, by ? h("code", {}, by) : ""),
      h("span.c-call", { role: "cell" }, first?.call ? h("code", {}, h("b", {}, first.tool), ` ${short(oneLine(first.call), 60)}`) : first ? h("span.dim", {}, first.event) : "")),
    isOpen ? more(one) : null);
}
function more(one) {
  const side = (title, name, by, why, kind) => h("section", {}, h("h3", {}, title), h("p", {}, verdict(kind === "arguments" ? (title === "Recorded" ? "Allow" : "Edit") : name), " ", h("span.dim", {}, by.join(", ") || "nobody objected")), why ? h("p.say", {}, why) : null);
  const args = (it) => [h("section", {}, h("h3", {}, "Recorded arguments"), h("pre.raw", { tabIndex: 0, "aria-label": "Recorded arguments" }, `${it.was}${it.was_why ? `: ${it.was_why}` : ""}`)), h("section", {}, h("h3", {}, "Arguments now"), h("pre.raw", { tabIndex: 0, "aria-label": "Arguments now" }, `${it.now}${it.now_why ? `: ${it.now_why}` : ""}`))];
  return h("div.wi-more", { role: "row" }, h("div", { role: "cell", class: "hd" },
    one.differences.map((it, n) => [n ? h("hr", {}) : null, one.differences.length > 1 || it.tool ? h("p", {}, h("b", {}, it.tool || it.event), h("span.dim", {}, ` ${it.tool ? it.event : ""} ${it.about}`)) : null, it.kind === "arguments" ? args(it) : [side("Recorded", it.was, it.was_by, it.was_why, it.kind), side("Now", it.now, it.now_by, it.now_why, it.kind)]]),
    one.unjudged.length ? h("ul.lacks", {}, one.unjudged.map((it) => h("li", {}, mark("shadow", "not judged"), h("span", {}, h("code", {}, it.hook), ` on ${it.event}: ${it.why}`)))) : null,
    one.error ? h("p.v-error", {}, one.error) : null,
    h("p", {}, h("a", { href: `#/turn/${encodeURIComponent(one.session)}${one.differences[0]?.turn ? `/${one.differences[0].turn}` : ""}` }, "Open the recorded turn"), h("span.dim", {}, " What the model would have said next is not known: a replay stops here."))));
}
function toggle(one) {
  if (open.has(one.session)) open.delete(one.session); else open.add(one.session);
  list.refresh([one.session]);
  list.nodes.get(one.session)?.querySelector("button.name").focus({ preventScroll: true });
}
export function key(event) {
  if (event.key === "g") { run(); return; }
  if (event.key === "Escape") { stop(); return; }
  if (!list) return;
  const id = document.activeElement?.closest?.(".wi [data-id]")?.dataset.id, at = list.items.findIndex((one) => one.session === id);
  const to = { j: at + 1, ArrowDown: at + 1, k: at - 1, ArrowUp: at - 1 }[event.key];
  if (to === undefined || !list.items.length) return;
  event.preventDefault();
  const index = Math.max(0, Math.min(list.items.length - 1, to));
  list.show(index);
  list.nodes.get(list.items[index].session)?.querySelector("button.name").focus({ preventScroll: true });
}
