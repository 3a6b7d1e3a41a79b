// What governance costs: time and tokens of hooks beside those of the agent, in all, over time, by session or turn.
import { bar, h, s } from "../dom.js";
import { clock, count, money, moment, plural, short, span } from "../format.js";
import { behind } from "../tabs.js";

const percent = (part, whole) => (part === 0 ? "0 %" : whole > 0 ? `${part / whole < 0.001 && part > 0 ? "< 0.1" : ((part / whole) * 100).toFixed(part / whole < 0.1 ? 1 : 0)} %` : "–");
const work = (one) => one.hooks + one.model + one.tools;

export function cost(data) {
  const { total, rows, of, time, side } = data.cost, one = data.scope.session;
  if (!work(total) && !total.spent.calls) return h("section.empty", {}, h("h2", {}, "Nothing was spent"), h("p", {}, "As soon as a turn has asked a model or run a tool, its time and tokens stand here, with those of the hooks beside them."));
  const tokens = total.spent.tokens + total.side.tokens;
  return [
    h("div.facts", {},
      fact("Hooks' share of the work", percent(total.hooks, work(total)), `${span(total.hooks)} of ${span(work(total))}${total.measured ? "" : "; silent hooks are not in it"}`),
      fact("Hooks' share of the tokens", percent(total.side.tokens, tokens), total.side.calls ? `${count(total.side.tokens)} of ${count(tokens)}, in ${plural(total.side.calls, "side call")}` : "no hook asked a model"),
      fact("Hooks' share of the money", total.side.calls && total.side.cost == null ? "–" : percent(total.side.cost ?? 0, (total.spent.cost ?? 0) + (total.side.cost ?? 0)), total.side.calls ? total.side.cost == null ? `no price is known for ${plural(total.side.calls, "side call")}` : `${money(total.side.cost)} beside ${money(total.spent.cost)}` : `${money(total.spent.cost)}, all of it the agent's`),
      fact("People", span(total.people), "of waiting for answers, which costs no process")),
    h("div.workbar", {}, bar([{ kind: "k-model", name: "model", value: total.model, text: span(total.model) }, { kind: "k-tool", name: "tools", value: total.tools, text: span(total.tools) }, { kind: "k-hook", name: "hooks", value: total.hooks, text: span(total.hooks) }], `Model ${span(total.model)}, tools ${span(total.tools)}, hooks ${span(total.hooks)}`, "14px"),
      h("p.legend", {}, h("span", {}, h("i.k-model", {}), `model ${span(total.model)}`), h("span", {}, h("i.k-tool", {}), `tools ${span(total.tools)}`), h("span", {}, h("i.k-hook", {}), `hooks ${span(total.hooks)}`))),
    total.measured ? null : h("p.teach", {}, h("b", {}, "A part of the time only."), " These turns did not measure silent hooks. ", h("code", {}, "Agent(measure_hooks=True)"), " does, and so do ", h("code", {}, "windlass run"), " and ", h("code", {}, "serve"), "."),
    overTime(time, data.now),
    side.length ? h("section.card", {}, h("h2", {}, "Hooks that asked models"), h("table.plain-table", {}, h("thead", {}, h("tr", {}, ["hook", "at", "calls", "tokens", "cost"].map((name, at) => h(at > 1 ? "th.num" : "th", { scope: "col" }, name)))), h("tbody", {}, side.map((hook) => h("tr", {}, h("th", { scope: "row" }, h("code", {}, hook.name)), h("td", {}, hook.event || "–"), h("td.num", {}, count(hook.calls)), h("td.num", {}, count(hook.tokens)), h("td.num", {}, money(hook.cost))))))) : null,
    h("section.card", {}, h("h2", {}, one ? "Turn by turn" : "Sessions, the most governed first"), list(rows, one), of > rows.length ? h("p.dim", {}, `${of - rows.length} more are not shown`) : null),
  ];
}
function fact(name, value, note) { return h("div.fact", {}, h("h2", {}, name), h("b", {}, value), h("p.dim", {}, note)); }

function list(rows, one) {
  const most = Math.max(...rows.map(work), 1e-9);
  return h("div.scroll", { tabIndex: 0, role: "region", "aria-label": "Costs" }, h("table.plain-table.costs", {}, h("thead", {}, h("tr", {}, [one ? "turn" : "session", "time: model, tools, hooks", "hooks", "share", "tokens", "side tokens", "cost", "side cost"].map((name, at) => h(at > 1 ? "th.num" : "th", { scope: "col" }, name)))),
    h("tbody", {}, rows.map((row) => h("tr", {},
      h("th", { scope: "row" }, one ? h("a", { href: `#/turn/${encodeURIComponent(row.session)}/${row.turn}` }, `turn ${row.turn}`) : h("a", { href: `#/pipeline/cost/session/${encodeURIComponent(row.session)}` }, h("code", {}, row.session)), row.title ? h("small", {}, short(row.title, 60)) : null),
      h("td.wide", {}, h("div", { vars: { w: `${Math.max(4, (work(row) / most) * 100)}%` }, class: "ofmost" }, bar([{ kind: "k-model", name: "model", value: row.model, text: span(row.model) }, { kind: "k-tool", name: "tools", value: row.tools, text: span(row.tools) }, { kind: "k-hook", name: "hooks", value: row.hooks, text: span(row.hooks) }], `model ${span(row.model)}, tools ${span(row.tools)}, hooks ${span(row.hooks)}`))),
      h("td.num", {}, span(row.hooks), row.measured ? "" : h("span.dim", { title: "silent hooks are not in it" }, " +")), h("td.num", {}, percent(row.hooks, work(row))), h("td.num", {}, count(row.spent.tokens)), h("td.num", {}, row.side.tokens ? count(row.side.tokens) : h("span.dim", {}, "0")), h("td.num", {}, money(row.spent.cost)), h("td.num", {}, row.side.calls ? money(row.side.cost) : h("span.dim", {}, "–")))))));
}

// Each bar is a stretch of time: what hooks took on top of what the agent took.
function overTime(bins) {
  if (bins.length < 2) return null;
  const width = 1200, height = 92, from = bins[0].at, to = bins.at(-1).at + bins.at(-1).size, most = Math.max(...bins.map((one) => one.hooks + one.agent), 1e-9);
  const svg = s("svg", { viewBox: `0 0 ${width} ${height}`, class: "overtime", preserveAspectRatio: "none", "aria-hidden": "true" });
  let agent = "", hooks = "";
  for (const one of bins) {
    const x = ((one.at - from) / (to - from)) * width, wide = Math.max((one.size / (to - from)) * width - 2, 2), a = (one.agent / most) * height, b = (one.hooks / most) * height;
    agent += `M${x.toFixed(1)} ${height}v-${a.toFixed(1)}h${wide.toFixed(1)}V${height}z`;
    if (one.hooks) hooks += `M${x.toFixed(1)} ${(height - a).toFixed(1)}v-${Math.max(b, 1).toFixed(1)}h${wide.toFixed(1)}v${Math.max(b, 1).toFixed(1)}z`;
  }
  svg.append(s("path", { d: agent, class: "ot-agent" }), s("path", { d: hooks, class: "ot-hooks" }));
  const day = to - from > 86400;
  return h("figure.card.timefig", {}, h("h2", {}, "Over time"), svg, h("div.fromto", { "aria-hidden": "true" }, h("span", {}, day ? moment(from).slice(0, 16) : clock(from)), h("span", {}, `at most ${span(most)} of work`), h("span", {}, day ? moment(to).slice(0, 16) : clock(to))),
    h("p.legend", {}, h("span", {}, h("i.ot-agent", {}), "models and tools"), h("span", {}, h("i.k-hook", {}), "hooks")),
    behind("Work over time", ["From", "Turns or sessions", "Models and tools", "Hooks", "Tokens", "Side tokens"], bins.map((one) => [moment(one.at), one.n, span(one.agent), span(one.hooks), count(one.tokens), count(one.side)])));
}
