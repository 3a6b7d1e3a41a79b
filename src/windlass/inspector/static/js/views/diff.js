// Two sessions side by side: what is the same once, then what each of them did.
import { get } from "../api.js";
import { h, mark, tone, verdict } from "../dom.js";
import { money, plural, short, span, STATES } from "../format.js";

const NEAR = 6;
let root, data, whole = false, rows = [];

export const place = (left, right = "") => `#/diff/${encodeURIComponent(left)}${right ? `/${encodeURIComponent(right)}` : ""}`;

export async function show(view, [left = "", right = ""], context) {
  root = view; whole = false; data = null; rows = [];
  if (!left || !right) { await choose(left, right, context); return; }
  const found = await get(`/api/diff?left=${encodeURIComponent(left)}&right=${encodeURIComponent(right)}`);
  if (!context.isCurrent()) return;
  data = found;
  draw();
}

async function choose(left, right, context) {
  const found = await get("/api/sessions?limit=400");
  if (!context.isCurrent()) return;
  context.setStore(found.store);
  const field = (name, value, label) => h("label.pick", {}, h("span", {}, label), h("input", { name, value, list: "known", spellcheck: false, autocomplete: "off", placeholder: "id of a session" }));
  const form = h("form.picks", { on: { submit: (event) => { event.preventDefault(); const [a, b] = ["left", "right"].map((name) => form.elements.namedItem(name).value.trim()); if (a && b) location.hash = place(a, b); else form.elements.namedItem(a ? "right" : "left").focus(); } } },
    field("left", left, "This session"), field("right", right, "with this one"), h("button.btn.primary2", { type: "submit" }, "Compare"),
    h("datalist", { id: "known" }, found.sessions.map((one) => h("option", { value: one.session }, short(one.title || one.agent, 80)))));
  const others = found.sessions.filter((one) => one.session !== left && one.records);
  root.append(h("section.head", {}, h("h1", {}, "Compare two sessions"), h("p.lede", {}, "The same task done twice, before and after a change: where do they part, and what did each do then? Times, ids and costs make no difference.")), form,
    left && others.length ? h("section.table.choices", { "aria-label": "Compare with" }, h("h2", {}, "Compare ", h("code", {}, left), " with"), others.slice(0, 30).map((one) => h("a.choice", { href: place(left, one.session) }, h("span.name", {}, short(one.title || "no message", 110)), h("span.sub", {}, h("code", {}, one.session), h("span", {}, one.agent))))) : h("p.dim", {}, "In the list of sessions, ", h("kbd", {}, "c"), " marks a session, and ", h("kbd", {}, "c"), " on another one compares them."));
  form.elements.namedItem(left ? "right" : "left").focus();
}

function draw() {
  const { left, right } = data;
  root.replaceChildren(
    h("section.head", {}, h("h1", {}, "Diff"), h("p.lede", {}, summary()),
      h("a.btn", { href: place(right.session, left.session) }, "Swap"), h("a.btn", { href: place(left.session) }, "Another one")),
    h("div.pair", {}, side(left), side(right)),
    h("section.diff", { "aria-label": "Rows" }, common(), data.same ? h("p.alike", {}, mark("allow"), "The same happened in both.") : parting(), ));
  rows = [...root.querySelectorAll("[data-row]")];
}
function summary() {
  if (data.same) return `The same happened in both: ${plural(data.equal, "row")}.`;
  const at = data.left.rows[0] ?? data.right.rows[0], place = `turn ${at.turn}${at.step ? `, step ${at.step}` : ""}`;
  return data.equal ? `The same for ${plural(data.equal, "row")}. They part in ${place}.` : `Nothing is the same: they part in ${place}.`;
}
function side(one) {
  const d = one.digest, state = d.state === "running" ? "interrupted" : d.state || "done";
  return h("section.oneside", { "aria-label": `Session ${one.session}` },
    h("h2", {}, mark(state, STATES[state]), h("a", { href: `#/turn/${encodeURIComponent(one.session)}` }, one.session)),
    h("p.sub", {}, one.agent, h("span", {}, plural(d.steps, "step")), h("span", {}, money(d.cost)), h("span", {}, span(d.took))),
    h("p.title", {}, short(one.title, 160)), track(one.track));
}
export function track(cells, most = 72) {
  const shown = cells.slice(0, most), first = cells.findIndex((cell) => !cell.same);
  const label = cells.length ? `${plural(first < 0 ? cells.length : first, "verdict")} the same${first < 0 ? "" : `, then ${plural(cells.length - first, "other verdict")}`}` : "no verdicts";
  return h("div.track", { role: "img", "aria-label": label }, shown.map((cell, n) => h("i", { class: cell.same ? "eq" : n === first || cell.na === false ? `d-${tone(cell.v)}` : "na", title: cell.v })), cells.length > most ? h("span.dim", {}, `+${cells.length - most}`) : null, cells.length ? null : h("span.dim", {}, "no verdicts"));
}
function common() {
  const all = data.common, shown = whole ? all : all.slice(-NEAR), left = data.equal - shown.length;
  const more = !whole && all.length > NEAR ? h("button.quiet.expand", { type: "button", on: { click: () => { whole = true; draw(); root.querySelector("[data-row]")?.focus(); } } }, `${plural(left, "equal row")} above: show ${left <= all.length - NEAR ? "them" : `the last ${all.length}`}`) : left ? h("p.expand.dim", {}, `${plural(left, "equal row")} above`) : null;
  let last = "";
  return h("div.same", {}, more, shown.map((row) => { const here = where(row), el = h("div.d-row", { tabIndex: -1, data: { row: "" } }, h("span.g", {}, here === last ? "" : here), text(row)); last = here; return el; }));
}
const where = (row) => (row.step ? `${row.turn}.${row.step}` : `${row.turn}`);
function parting() {
  const [a, b] = [data.left.rows[0], data.right.rows[0]];
  return [h("div.part", { role: "separator", "aria-label": "First difference" }, h("span", {}, "first difference")),
    h("div.cols", {}, column(data.left, b), column(data.right, a))];
}
function column(one, other) {
  let last = "";
  return h("div.col", { role: "group", "aria-label": `What ${one.session} did from here on` }, h("h3", {}, one.session),
    one.rows.length ? one.rows.map((row, n) => { const here = where(row), el = h("div.d-row", { tabIndex: -1, data: { row: "" }, class: n ? "" : "first" }, h("span.g", {}, here === last ? "" : here), n ? text(row) : text(row, other)); last = here; return el; }) : h("p.dim.ends", {}, "ends here"),
    one.more ? h("p.dim.ends", {}, `${plural(one.more, "row")} more: `, h("a", { href: `#/turn/${encodeURIComponent(one.session)}` }, "open the session")) : null);
}
function text(row, other = null) {
  const words = row.v ? row.text.replace(/^(\w+: )?(\w+)/, (all, name = "") => name) : row.text;
  const kind = { user: "user", model: "model", calls: "calls", result: "result" }[row.kind] ?? row.kind;
  const body = other && other.kind === row.kind && !row.v ? marked(row.text, other.text) : short(words.replace(/^(\w+: )?: ?/, "$1"), 400);
  return h("div.d-tx", {}, h("span.k", {}, kind), row.v ? verdict(row.v) : null, h("span.w", {}, body));
}
// What differs from the other text: the same start and the same end are left unmarked.
function marked(text, other) {
  const a = text.split(/([^\w@.-]+)/), b = other.split(/([^\w@.-]+)/);
  let start = 0, end = 0;
  while (start < a.length && start < b.length && a[start] === b[start]) start += 1;
  while (end < a.length - start && end < b.length - start && a[a.length - 1 - end] === b[b.length - 1 - end]) end += 1;
  const middle = a.slice(start, a.length - end).join("");
  if (!a.slice(0, start).join("").trim() && !a.slice(a.length - end).join("").trim()) return text;
  return [a.slice(0, start).join(""), middle ? h("mark", {}, middle) : "", a.slice(a.length - end).join("")];
}
export function key(event) {
  if (event.key === "s" && data) { location.hash = place(data.right.session, data.left.session); return; }
  const at = rows.indexOf(document.activeElement), to = { j: at + 1, ArrowDown: at + 1, k: at - 1, ArrowUp: at - 1, Home: 0, End: rows.length - 1 }[event.key];
  if (to === undefined || !rows.length) return;
  event.preventDefault();
  rows[Math.max(0, Math.min(rows.length - 1, to))].focus();
}
