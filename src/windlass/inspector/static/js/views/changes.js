// How a pipeline changed: at which turn another one came in, and what is different in it, field by field.
import { h, mark } from "../dom.js";
import { moment, plural, short } from "../format.js";

const MARKS = { new: ["inject", "changed"], gone: ["deny", "deny"], changed: ["changed", "changed"] };
const HOW = { new: "with a new session", "opened again": "when the session was opened again", resumed: "while the turn waited", forked: "with a fork" };

export function changes(data) {
  const found = data.changes, first = data.history[0];
  if (!first) return h("section.empty", {}, h("h2", {}, "No pipeline is known"), h("p", {}, "A session says at its start which pipeline it runs on. This one does not: an older version, or another program, wrote it."));
  if (!found.length) return h("section.empty", {}, mark("allow"), h("h2", {}, "Nothing has changed"), h("p", {}, data.scope.session ? "All of this session ran on one pipeline, " : `All ${plural(data.sessions, "session")} ran on one pipeline, `, h("code", {}, first.digest), "."), h("p.dim", {}, "If hooks, tools or the system text change between two turns, or while a turn waits, the difference stands here."));
  return [
    h("p.lede.first", {}, `The pipeline changed ${plural(found.length, "time")}. Names, order, matchers and fail modes count; the code of a hook does not.`),
    h("ol.drift", {}, h("li", {}, h("span.node", {}), h("div.nh", {}, h("b", {}, "first"), h("code", {}, first.digest), h("span.dim", {}, moment(first.at)), where(first))),
      found.map((one) => h("li", {}, h("span.node", {}), h("div.nh", {}, h("b", {}, HOW[one.how] ?? one.how), h("code", {}, one.digest), h("span.dim", {}, moment(one.at)), where(one)),
        !one.known ? h("p.dim", {}, "The store lacks the description of one of them, so what changed is not known.") : one.changes.length ? h("ul.diffs", {}, one.changes.map(change)) : h("p.dim", {}, "Their descriptions are the same but for what an older version did not store.")))),
  ];
}
function where(one) { return h("a", { href: `#/turn/${encodeURIComponent(one.session)}/${one.turn}` }, `${one.session}, turn ${one.turn}`); }
function change(one) {
  const [icon, tone] = MARKS[one.how];
  return h("li", {}, h("span", { class: `v-${tone}` }, mark(icon, one.how)), h("div", {}, h("span.dim", {}, `${one.what} `), h("b", {}, one.name), one.how === "changed" ? null : ` is ${one.how}`,
    one.fields.length ? h("dl.args2", {}, one.fields.map((field) => [h("dt", {}, field.name), h("dd", {}, field.before == null ? h("span.dim", {}, "nothing") : h("del", {}, short(field.before, 300)), " ", field.after == null ? h("span.dim", {}, "nothing") : h("ins", {}, short(field.after, 300)))])) : null));
}
