// The request of a model call: its tokens by origin, what the vendor's cache could use, and its text with who put it there.
import { at, get } from "../api.js";
import { by, bar, h, mark } from "../dom.js";
import { count, plural } from "../format.js";
import { sentences } from "./blame.js";
import { slices } from "./slices.js";

export const CLASSES = { system: "system", tools: "tools", summary: "summary", history: "history", injected: "injected by hooks", feedback: "feedback to the model" };
export function classOf(origin) {
  if (origin === "system") return "system";
  if (/^tool \S+$/.test(origin)) return "tools";
  if (["user", "assistant", "tool"].includes(origin) || origin.startsWith("result of")) return "history";
  if (origin === "regenerate" || origin === "rejected" || origin === "veto") return "feedback";
  if (/^(summar|trim|clear_results|compact)/.test(origin)) return "summary";
  return "injected";
}
// The sizes of origins in their classes.
export function grouped(origins) {
  const groups = {};
  for (const [origin, size] of origins) (groups[classOf(origin)] ??= []).push([origin, size]);
  return groups;
}
export function requestView(session, item) {
  const box = h("div", {}, h("p.dim", {}, "Rebuilding the request from the log …"));
  get(at(session, "requests", item.n)).then((data) => box.replaceChildren(...draw(data, item), whole(session, item)), (error) => box.replaceChildren(h("p.unmed", {}, mark("error"), error.message)));
  return box;
}
// Everything that was sent, with the schemas of tools: fetched when it is opened.
function whole(session, item) {
  const box = h("details.behind", {}, h("summary", {}, "The whole request as JSON"));
  box.addEventListener("toggle", () => { if (box.open && box.children.length < 2) box.append(...slices(at(session, "requests", item.n, "json"), "The whole request as JSON")); });
  return box;
}
function draw(data, item) {
  const groups = grouped(data.origins), shown = Object.keys(CLASSES).filter((name) => groups[name]), sum = (name) => groups[name].reduce((total, [, size]) => total + size, 0), most = Math.max(1, ...data.origins.map(([, size]) => size));
  const cached = item.in ? Math.min(1, (item.cached ?? 0) / item.in) : 0, { prefix, broken } = data;
  const label = shown.map((name) => `${CLASSES[name]} ${sum(name)}`).join(", ");
  return [
    h("p.sum", {}, h("b", {}, `${count(data.tokens)} tokens`), h("span", {}, data.vendor ? "counted by the vendor" : "estimated", data.model ? `, ${data.model}` : "")),
    h("div.origin", {}, bar(shown.map((name) => ({ name: CLASSES[name], value: sum(name), kind: `c-${name}` })), label, "18px"),
      h("div.cachelane", {}, h("i", { vars: { w: `${cached * 100}%` } }), h("span", {}, cached ? `${Math.round(cached * 100)} % from the vendor's cache` : "nothing from the vendor's cache"))),
    broken ? h("p.unmed", {}, mark("error"), `the prefix was broken by ${broken.by || "an unknown cause"}: ${broken.detail}`) : h("p.dim.cl", {}, data.first ? "The first call: it has no prefix yet." : `${count(prefix.stable)} of ${count(prefix.tokens)} tokens at the start are those of the call before (prefix ${prefix.hash.slice(0, 12)}).`),
    data.inexact.map((note) => h("p.dim", {}, `Not exact: ${note}.`)),
    data.rewritten.map((one) => h("p.sum", {}, by("changed", one.hook), h("span", {}, `changed ${one.fields.join(", ")}`))),
    h("table.orig", {}, h("caption.vh", {}, "Tokens by origin"), h("thead.vh", {}, h("tr", {}, h("th", { scope: "col" }, "Kind"), h("th", { scope: "col" }, "Origin"), h("th", { scope: "col" }, "Tokens"), h("th", { scope: "col" }, "Share"))), h("tbody", {}, shown.map((name) => groups[name].map(([origin, size], i) => h("tr", {}, h("td", {}, i ? "" : h("span.sw", { class: `c-${name}` }), i ? "" : CLASSES[name]), h("td", {}, h("code", {}, origin.replace(/^tool /, ""))), h("td.num", {}, count(size)), h("td", {}, h("i.mini", { class: `c-${name}`, vars: { w: `${(size / most) * 100}%` } }))))))),
    h("section.ps", {}, h("h3", {}, "What was sent, and who put it there"),
      data.gone ? h("p.sum", {}, by("changed", `${plural(data.gone, "message")} of the call before ${data.gone === 1 ? "is" : "are"} gone or changed`)) : null,
      h("div.req", {}, data.system.map((one) => segment(one, "system", false)), data.tools.length ? segment({ origin: "tools", text: data.tools.join(", ") }, "tools", false) : null,
        data.skipped ? h("p.dim", {}, `${plural(data.skipped, "message")} before these ${data.skipped === 1 ? "is" : "are"} not shown`) : null,
        data.messages.map((message) => message.parts.map((part) => segment(part, part.origin === "system" ? "system" : classOf(part.origin), message.new && !data.first))))),
  ].flat().filter(Boolean);
}
function segment(part, kind, fresh) {
  return h("div.seg", { class: `c-${kind}` }, h("div.o", {}, h("code", {}, part.origin), kind === "injected" ? h("span.blame", {}, mark("inject"), "put here by this hook") : null, fresh ? h("span.fresh", {}, "new in this call") : null), part.source?.length ? sentences(part) : h("div.x", {}, part.text));
}
