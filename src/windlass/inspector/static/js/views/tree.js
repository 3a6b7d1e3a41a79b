// A delegation as one score: the session that gave tasks and those that worked on them, nested, on one axis of time.
import { at, get } from "../api.js";
import { h, mark } from "../dom.js";
import { count, money, offset, plural, rounded, short, span, STATES } from "../format.js";
import { behind } from "../tabs.js";

const FOLD = 0.05, STEPS = 200;
let open = new Set(), draw = () => {};

export async function show(view, [id], context) {
  open = new Set();
  if (!id) { location.replace("#/sessions"); return; }
  const data = await get(at(id, "tree"));
  if (!context.isCurrent()) return;
  if (!document.getElementById("store").textContent) get("/api/sessions?limit=1").then((found) => context.setStore(found.store), () => {});
  const agents = data.agents.filter((one) => !one.missing), root = data.agents[0], x = axis(agents, data.now), pct = (n) => `${(n * 100).toFixed(3)}%`;
  const cost = agents.reduce((all, one) => all + (one.cost.spent.cost ?? 0) + (one.cost.side.cost ?? 0), 0), tokens = agents.reduce((all, one) => all + one.cost.spent.tokens + one.cost.side.tokens, 0);
  view.append(
    h("section.head.turnhead", {}, h("div.crumb", {}, h("a", { href: "#/sessions" }, "Sessions"), h("span", { "aria-hidden": "true" }, "/"), h("a", { href: `#/turn/${encodeURIComponent(root.session)}` }, h("code", {}, root.session)), h("span", {}, "with its sub-agents")),
      h("h1.q", {}, h("span", {}, short(root.task || "No text", 260))),
      h("div.outcome", {}, `${plural(data.agents.length, "agent")}, ${count(tokens)} tokens, ${money(cost)}, ${span(x.work)} of work on one axis`)),
    ...[h("p.dim.famhint", {}, "Open an agent to see its steps here, or its name to go to its turn."), data.agents.length < 2 ? h("section.empty", {}, h("h2", {}, "This agent worked alone"), h("p", {}, "If it gives tasks to other agents, as tools or in the background, they stand below it here, on the same axis of time."), h("pre.raw", {}, 'lead = Agent(model, tools=[helper.as_tool()])')) : null,
    h("section.family", { "aria-label": "Agents on one axis of time" },
      h("div.fam", { "aria-hidden": "true" }, h("div.famname", { vars: { depth: 0 } }, h("small", {}, "agent")), h("div.famlane", {}, x.folds.map(([a, b]) => h("span.tickname.fold", { vars: { x: pct(x((a + b) / 2)) } }, span(b - a))), ticks(x).map(([t, where]) => h("span.tickname", { vars: { x: pct(where) } }, offset(t))))),
      data.agents.map((one) => h("div.branch", { data: { id: one.session } }, lane(one, x, pct, data)))),
    h("p.legend", {}, h("span", {}, h("i.k-model", {}), "model"), h("span", {}, h("i.k-tool", {}), "tool"), h("span", {}, h("i.fbkey", { class: "fb k-agent" }), "a sub-agent works"), h("span", {}, h("i.k-waitkey", { class: "f-ask" }), "a person"), h("span.dim", {}, "Hatched: nobody worked.")),
    behind("The delegation", ["Agent", "Session", "Depth", "State", "Began", "Ended", "Model", "Tools", "Hooks", "Tokens", "Cost"], agents.map((one) => [one.agent, one.session, one.depth, STATES[one.state] ?? one.state, offset(one.began - x.from), offset(one.last - x.from), span(one.cost.model), span(one.cost.tools), span(one.cost.hooks), one.cost.spent.tokens, money(one.cost.spent.cost)]))].filter(Boolean));
  draw = (session) => {
    const one = data.agents.find((agent) => agent.session === session), branch = view.querySelector(`.branch[data-id="${CSS.escape(session)}"]`);
    branch.replaceChildren(lane(one, x, pct, data), ...(open.has(session) ? one.bars.slice(0, STEPS).map((bar) => step(one, bar, x, pct)) : []), open.has(session) && one.bars.length > STEPS ? h("p.dim.famhint", {}, `${one.bars.length - STEPS} more are in its turn`) : "");
    branch.querySelector(".famname button")?.focus({ preventScroll: true });
  };
}
function toggle(session) { if (open.has(session)) open.delete(session); else open.add(session); draw(session); }
// One call of an agent: its words on the left, its time on the axis of all.
function step(one, bar, x, pct) {
  const name = { model: "model", rejected: "model", wait: "a person" }[bar.k] ?? bar.name;
  return h("div.fam.famstep", {}, h("div.famname", { vars: { depth: one.depth + 1 } }, h("a", { href: `#/turn/${encodeURIComponent(one.session)}/0/${encodeURIComponent(bar.call ? `${bar.n}:${bar.call}` : bar.n)}` }, name), h("span.dim", {}, short(bar.text, 90))),
    h("div.famlane", { role: "img", "aria-label": `from ${offset(bar.a - x.from)}, ${span(bar.b - bar.a)}` }, x.folds.map(([a, b]) => h("i.foldbg", { vars: { x: pct(x(a)), w: pct(x(b) - x(a)) } })), h(`i.fb.k-${bar.k}`, { class: ["denied", "error", "interrupted"].includes(bar.status) ? `st-${bar.status}` : "", vars: { x: pct(x(bar.a)), w: pct(x(bar.b) - x(bar.a)) } }), h("span.took", x(bar.b) < 0.9 ? { vars: { x: pct(x(bar.b)) } } : { class: "before", vars: { x: pct(1 - x(bar.a)) } }, span(bar.b - bar.a))));
}

function lane(one, x, pct, data) {
  const end = ["running"].includes(one.state) ? Math.min(data.now, one.last + 60) : one.last;
  return h("div.fam", { class: one.session === data.asked && data.asked !== data.root ? "here" : "", data: { depth: one.depth } },
    h("div.famname", { vars: { depth: one.depth } },
      h("div.line", {}, one.missing || !one.bars.length ? h("span.twist", {}) : h("button.twist", { type: "button", "aria-expanded": String(open.has(one.session)), "aria-label": `Steps of ${one.agent || one.session}`, on: { click: () => toggle(one.session) } }, open.has(one.session) ? "▾" : "▸"), one.missing ? mark("silent") : mark(one.state || "done", STATES[one.state] ?? one.state), h("a", { href: `#/turn/${encodeURIComponent(one.session)}` }, one.agent || one.session), one.background ? h("span.tag", {}, "background") : null),
      h("small", { title: one.task }, one.missing ? "its log is not in this store" : short(one.task, 90)),
      one.missing ? null : h("small", {}, [`${count(one.cost.spent.tokens)} tokens`, one.cost.spent.cost != null ? money(one.cost.spent.cost) : "", one.by ? `by ${one.by}` : ""].filter(Boolean).join(", "))),
    h("div.famlane", { role: "img", "aria-label": one.missing ? "no log" : `worked from ${offset(one.began - x.from)} to ${offset(end - x.from)}: ${plural(one.bars.filter((bar) => bar.k === "model").length, "model call")}, ${plural(one.bars.filter((bar) => bar.k === "tool").length, "tool call")}` },
      x.folds.map(([a, b]) => h("i.foldbg", { vars: { x: pct(x(a)), w: pct(x(b) - x(a)) } })),
      one.missing ? null : h("i.whole", { vars: { x: pct(x(one.began)), w: pct(x(end) - x(one.began)) } }),
      one.bars.map((bar) => h(`i.fb.k-${bar.k}`, { title: `${bar.name}, ${span(bar.b - bar.a)}`, vars: { x: pct(x(bar.a)), w: pct(x(bar.b) - x(bar.a)) } })),
      one.marks.map((one) => h(`i.fm.t-${one.tone}`, { vars: { x: pct(x(one.t)) } }))));
}

// Time in which nobody worked is folded to a fixed width, so that work keeps its scale.
function axis(agents, now) {
  const bars = agents.flatMap((one) => [...one.bars.filter((bar) => bar.k !== "wait" && bar.k !== "agent").map((bar) => [bar.a, bar.open ? Math.min(now, bar.b + 60) : bar.b]), [one.began, one.began], [one.last, one.last]]).sort((a, b) => a[0] - b[0]);
  const from = bars[0]?.[0] ?? 0, busy = [];
  for (const [a, b] of bars) { const last = busy.at(-1); if (last && a <= last[1]) last[1] = Math.max(last[1], b); else busy.push([a, b]); }
  const work = busy.reduce((all, [a, b]) => all + b - a, 0), folds = [];
  for (let i = 1; i < busy.length; i += 1) { const a = busy[i - 1][1], b = busy[i][0]; if (b - a > Math.max(work * 0.15, 2)) folds.push([a, b]); }
  const to = busy.at(-1)?.[1] ?? from, folded = folds.reduce((all, [a, b]) => all + b - a, 0), real = Math.max(to - from - folded, 1e-6), scale = (1 - Math.min(0.5, folds.length * FOLD)) / real, each = folds.length ? Math.min(0.5, folds.length * FOLD) / folds.length : 0;
  const x = (t) => { let at = Math.max(0, Math.min(t, to) - from), out = 0; for (const [a, b] of folds) { if (t >= b) { at -= b - a; out += each; } else if (t > a) { at -= t - a; out += ((t - a) / (b - a)) * each; } } return Math.min(1, Math.max(0, out + at * scale)); };
  return Object.assign(x, { from, to, folds, work });
}
function ticks(x) {
  const first = x.folds[0]?.[0] ?? x.to, length = first - x.from;
  return rounded(0, length, 5, [0.1, 0.5, 1, 2, 5, 10, 30, 60, 300, 600, 1800, 3600, 7200]).at.map((t) => [t, x(x.from + t)]).filter(([, where]) => where < 0.94);
}
export function key(event) {
  const all = [...document.querySelectorAll(".famname button.twist")], at = all.findIndex((el) => el.closest(".branch").contains(document.activeElement));
  const here = all[at]?.closest(".branch").dataset.id, to = { j: at + 1, ArrowDown: at + 1, k: at - 1, ArrowUp: at - 1, Home: 0, End: all.length - 1 }[event.key];
  if (here && ((event.key === "ArrowRight" && !open.has(here)) || (event.key === "ArrowLeft" && open.has(here)))) { event.preventDefault(); toggle(here); return; }
  if (to === undefined || !all.length) return;
  event.preventDefault();
  all[Math.max(0, Math.min(all.length - 1, to))].focus();
}
