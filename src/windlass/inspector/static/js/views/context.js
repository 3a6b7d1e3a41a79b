// What filled the context of each model call, what the vendor's cache could use of it, and what broke its prefix.
import { get } from "../api.js";
import { bar, h, mark, tag } from "../dom.js";
import { count, plural } from "../format.js";
import { behind } from "../tabs.js";
import { CLASSES, grouped } from "./request.js";

export const contextOf = (place) => get(`/api/context?${new URLSearchParams(Object.entries(place).filter(([, value]) => value))}`);
const place = (session, call) => `#/turn/${encodeURIComponent(session)}/${call.turn}/${call.n}`;
const share = (call) => (call.input ? Math.min(1, call.cached / call.input) : 0);
const sizes = (call) => { const groups = grouped(call.origins); return Object.keys(CLASSES).filter((name) => groups[name]).map((name) => ({ name: CLASSES[name], value: groups[name].reduce((all, [, size]) => all + size, 0), kind: `c-${name}` })); };
export const culprit = (broken) => broken.by || "an unknown cause";
export function legend(calls) {
  const names = new Set(calls.flatMap((call) => sizes(call).map((part) => part.kind)));
  return h("p.legend", {}, Object.entries(CLASSES).filter(([name]) => names.has(`c-${name}`)).map(([name, text]) => h("span", {}, h("i.sw", { class: `c-${name}` }), text)), h("span", {}, h("i.k-cache", {}), "served from the vendor's cache"), calls.some((call) => call.broken) ? h("span.v-error", {}, mark("error"), "the prefix was broken") : null);
}

// Beside a turn: a column per call.
export function columns(session, calls) {
  const most = Math.max(1, ...calls.map((call) => call.tokens));
  return [h("div.ctxcols", { role: "img", "aria-label": `Tokens of ${plural(calls.length, "model call")} by origin; the table of all calls has the same` }, calls.map((call) => h("span.ctxcol", { title: `step ${call.step}: ${count(call.tokens)} tokens, ${Math.round(share(call) * 100)} % from the cache` },
    h("span.ctxbar", { vars: { h: `${(call.tokens / most) * 100}%` } }, sizes(call).reverse().map((part) => h("i", { class: part.kind, vars: { g: part.value } }))), h("i.ctxhit", { vars: { w: `${share(call) * 100}%` } }), call.broken ? mark("error") : null))), legend(calls)];
}

// All calls, one below the other.
export function context(data) {
  const found = data.more;
  if (!found) return h("p.dim", {}, "…");
  const { calls, session, problem } = found;
  if (problem) return h("section.empty", {}, h("h2", {}, "The requests cannot be rebuilt"), h("p", {}, problem));
  if (!calls.length) return h("section.empty", {}, h("h2", {}, "No model was called"), h("p", {}, "Each call of a model stands here as a line: what filled its context, by origin, how much of it the vendor's cache served, and which hook broke the prefix if it was not the one of the call before."));
  const most = Math.max(1, ...calls.map((call) => call.tokens)), last = calls.at(-1), broken = calls.filter((call) => call.broken);
  const fed = calls.reduce((all, call) => all + call.input, 0), hit = calls.reduce((all, call) => all + Math.min(call.cached, call.input), 0);
  const many = new Set(calls.map((call) => call.turn)).size > 1;
  return [
    h("p.lede.first", {}, data.scope.session ? "" : [h("a", { href: `#/pipeline/context/session/${encodeURIComponent(session)}` }, session), ", the latest session of this agent. "], `${plural(calls.length, "model call")}, the last with ${count(last.tokens)} tokens. `, fed && hit ? `The vendor's cache served ${Math.round((hit / fed) * 100)} % of all input. ` : "No vendor reports a cache. ", broken.length ? h("span.v-error", {}, mark("error"), `${plural(broken.length, "call")} could not use the prefix of the call before.`) : "Every call began with the prefix of the call before.", found.skipped ? h("span.dim", {}, ` ${plural(found.skipped, "call")} before these are not shown.`) : ""),
    h("section.card.ctx", { "aria-label": "Model calls" }, h("div.cx.cxh", { "aria-hidden": "true" }, h("span", {}, "call"), h("span", {}, "context by origin"), h("span.num", {}, "tokens"), h("span.num", {}, "cached"), h("span", {}, "prefix"), h("span", {}, "what broke it")),
      calls.map((call) => h("div.cx", { class: call.broken ? "is-broken" : "" },
        h("a.which", { href: place(session, call) }, many ? `turn ${call.turn}, step ${call.step}` : `step ${call.step}`, call.round > 1 ? tag(`round ${call.round}`) : null, call.attempt > 1 ? tag(`attempt ${call.attempt}`) : null),
        h("div.cxlane", { vars: { w: `${Math.max(1.5, (call.tokens / most) * 100)}%` } }, bar(sizes(call), sizes(call).map((part) => `${part.name} ${part.value}`).join(", "), "12px"), h("div.cxhit", {}, h("i", { vars: { w: `${share(call) * 100}%` } }))),
        h("span.num", {}, count(call.tokens), call.vendor ? null : h("span.dim", { title: "estimated: the vendor's count is not known" }, " ~")), h("span.num", {}, call.cached ? `${Math.round(share(call) * 100)} %` : h("span.dim", {}, "–")), h("code.dim", {}, call.hash.slice(0, 8)),
        h("span.cxwhy", {}, call.broken ? h("span.v-error", {}, mark("error"), h("b", {}, culprit(call.broken)), h("span", {}, call.broken.detail)) : null)))),
    legend(calls),
    behind("Calls", ["Turn", "Step", "Round", "Attempt", "Model", "Tokens", "Same as before", "From cache", "Prefix", "Broken by", "How", ...Object.values(CLASSES)], calls.map((call) => { const groups = grouped(call.origins); return [call.turn, call.step, call.round, call.attempt, call.model, count(call.tokens), count(call.stable), count(call.cached), call.hash, call.broken ? culprit(call.broken) : "–", call.broken?.detail, ...Object.keys(CLASSES).map((name) => (groups[name] ? count(groups[name].reduce((all, [, size]) => all + size, 0)) : "0"))]; })),
  ];
}
