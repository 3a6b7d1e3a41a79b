// The details of a row: who decided, what was changed, and the records as the log has them.
import { at, get } from "../api.js";
import { columns, contextOf } from "./context.js";
import { requestView } from "./request.js";
import { slices } from "./slices.js";
import { bar, by, h, mark, tag, tone, verdict } from "../dom.js";
import { count, moment, money, offset, oneLine, parsed, plural, short, span } from "../format.js";

let chosen = "decisions", shown = null, run = 0;

export function show(el, row, context) {
  shown = { el, row, context, full: null };
  const mine = ++run;
  draw();
  if (!row?.item) return;
  const { session } = context.session, call = row.item.call ? `?call=${encodeURIComponent(row.item.call)}` : "";
  get(at(session, "rows", row.item.n) + call).then((full) => { if (mine === run && shown) { shown.full = full; draw(); } }, () => {});
}
export function leave() { shown = null; run += 1; }
export function tab(name) { chosen = name; draw(); }

const TITLES = { user: "User message", inject: "Injected context", wait: "Question", compact: "Compaction", side: "Side call", attempt: "Discarded attempt", resumed: "Resumed", cancel: "Cancel", message: "Message", note: "Note", veto: "Vetoed stop", rewind: "Rewind", delegate: "Task for an agent" };
const title = (item) => (item.k === "model" ? `Model call, step ${item.step}` : item.k === "tool" ? item.name : item.k === "error" ? item.error : TITLES[item.k] ?? item.k);

function draw() {
  if (!shown) return;
  const { el, row, context, full } = shown, item = full ?? row?.item;
  const shut = h("button.quiet.close", { type: "button", on: { click: context.close } }, "Close");
  if (!item) { el.replaceChildren(h("div.ph", {}, h("h2", {}, "The turn"), shut), h("div.pb", {}, why(context))); return; }
  const asks = item.k === "model" && item.paid || item.k === "attempt";
  const tabs = [["decisions", item.k === "tool" || item.k === "model" ? "Decisions" : "Details"], ...(asks ? [["request", "Request"]] : []), ["record", "Record"]];
  const names = tabs.map(([id]) => id), current = names.includes(chosen) ? chosen : names[0];
  const buttons = tabs.map(([id, name]) => h("button", { type: "button", role: "tab", id: `tab-${id}`, "aria-selected": String(id === current), "aria-controls": "tab-body", tabIndex: id === current ? 0 : -1, on: { click: () => tab(id) } }, name));
  const list = h("div.ptabs", { role: "tablist", "aria-label": "Details", on: { keydown: (event) => { const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key]; if (!by) return; event.stopPropagation(); event.preventDefault(); tab(names[(names.indexOf(current) + by + names.length) % names.length]); el.querySelector('[aria-selected="true"]').focus(); } } }, buttons);
  el.replaceChildren(h("div.ph", {}, h("h2", {}, title(item)), h("code.pid", {}, item.call ?? `record ${item.n}`), shut), list,
    h("div.pb", { role: "tabpanel", id: "tab-body", "aria-labelledby": `tab-${current}`, tabIndex: 0 }, current === "record" ? records(item, context) : current === "request" ? request(item, context) : item.k === "tool" ? call(item, context) : item.k === "model" ? model(item, context) : other(item, context)));
}
let asked = { id: "", el: null };
function request(item, { session }) {
  const id = `${session.session} ${item.n}`;
  if (asked.id !== id) asked = { id, el: requestView(session.session, item) };
  return asked.el;
}
const section = (name, ...kids) => h("section.ps", {}, h("h3", {}, name), kids);
const sum = (...kids) => h("p.sum", {}, kids);

// ---- the chain of decisions
function chain() {
  const items = [];
  const add = (kind, head, body, at) => items.push(h("li", { class: `n-${kind}` }, mark(kind), h("div", {}, h("div.nh", {}, head, at ? h("span.at", {}, at) : null), body ? h("div.nb", {}, body) : null)));
  return { add, list: () => h("ol.chain", {}, items) };
}
const time = (took) => (took ? span(took) : "");
function says(steps, answers) {
  for (const one of answers ?? []) steps.add(one.shadow ? "shadow" : tone(one.v), [h("b", {}, one.hook), " ", verdict(one.v, one.shadow), h("span.dim", {}, one.event)], one.why, time(one.took));
}
const RERUN = { unsafe: "would not be repeated after a crash", idempotent: "would be repeated after a crash, with the same key", pure: "would be repeated after a crash" };
function call(item, { session, turn }) {
  const { effect = "", looks = [], bare = false } = session.tools?.[item.name] ?? {};
  const steps = chain(), start = turn.began;
  steps.add("silent", [h("b", {}, "proposed"), " by the model"], null, "");
  for (const one of item.changes ?? []) if (one.event !== "ToolReturning") steps.add("changed", [h("b", {}, one.hook), " rewrote the arguments"], null, time(one.took));
  const before = (item.says ?? []).filter((one) => one.event !== "ToolReturning");
  says(steps, before);
  for (const one of silent(item, looks)) steps.add(one.verb === "shadow gate" ? "shadow" : "silent", [h("b.quiet-name", {}, one.name), h("span.dim", {}, `${one.verb} said nothing${one.planned === "maybe" ? ", if it was asked" : ""}`)], null, "");
  if (bare && item.status !== "not made") steps.add("error", h("b.v-error", {}, "no gate looks at this tool"), "It is unsafe, and nothing could refuse the call.", "");
  else if (!before.length && !looks.length) steps.add("silent", h("span.dim", {}, session.tools?.[item.name] ? "no gate looks at this tool" : "no gate answered"), null, "");
  const asked = turn.rows.find((row) => row.k === "wait" && row.asks.some((ask) => ask.id === item.call)), seen = item.answered?.at(-1)?.digest;
  for (const one of item.answered ?? []) steps.add(tone(one.v), [h("b", {}, one.by), " ", verdict(one.v), one.partial ? tag("others must approve, too") : null], one.why, asked ? `after ${span(Math.max(0, one.at - asked.t0))}` : "");
  if (item.asked && !item.answered) steps.add("ask", h("b", {}, "waits for an answer"), [item.asked.question, " ", h("a", { href: `#/approvals/${encodeURIComponent(item.asked.id)}` }, "Open it in the inbox")], "");
  if (item.called) steps.add("silent", [h("b", {}, "called"), effect ? h("span.dim", {}, effect) : null, item.attempts > 1 ? tag(`attempt ${item.attempts}`) : null], RERUN[effect], `at ${offset(item.t0 - start)}`);
  for (const one of item.discarded ?? []) steps.add("error", [h("b", {}, `attempt ${one.attempt}`), " discarded"], one.error, "");
  if (item.status && item.status !== "not made") steps.add({ ok: "allow", denied: "deny", error: "error", interrupted: "error", cancelled: "cancelled" }[item.status] ?? "silent", [h("b", {}, "returned"), " ", h("span.dim", {}, item.status)], item.error ?? null, item.status === "interrupted" ? "outcome unknown" : item.called ? span(item.t - item.t0) : "");
  for (const one of item.changes ?? []) if (one.event === "ToolReturning") steps.add("changed", [h("b", {}, one.hook), " changed the result"], null, time(one.took));
  says(steps, (item.says ?? []).filter((one) => one.event === "ToolReturning"));
  const name = item.answered?.at(-1)?.v ?? item.verdict?.v ?? (item.status === "not made" ? null : "Allow");
  return [
    sum(name ? verdict(name) : null, h("span", {}, summary(item))),
    section("Arguments", args(item)),
    section("Who decided", steps.list()),
    item.digest ? h("p.dig", {}, "digest reviewed ", h("code", {}, item.digest), seen && item.asked?.digest ? (seen === item.asked.digest ? ", the same as answered" : h("span.v-error", {}, ", other than answered")) : null) : null,
    item.child ? section("Agent", h("p", {}, h("a", { href: `#/turn/${encodeURIComponent(item.child)}` }, `Open ${item.child}`)), h("p.note", {}, item.task), item.charged ? h("p.dim", {}, `${count(item.charged.in + item.charged.out)} tokens${item.charged.cost != null ? `, ${money(item.charged.cost)}` : ""} were charged to this turn`) : null) : null,
    item.result ? section("Result", h("pre.text", {}, item.result)) : null,
    (item.changes ?? []).some((one) => one.event === "ToolReturning") ? section("Changed in the result", item.changes.filter((one) => one.event === "ToolReturning").map(changed)) : null,
  ];
}
// Who looks at calls of this tool and has nothing in the log about this one.
function silent(item, looks) {
  if (!item.called && !item.verdict) return [];
  const spoke = new Set([...(item.says ?? []), ...(item.changes ?? [])].map((one) => one.hook));
  return looks.filter((one) => !spoke.has(one.name) && (item.called || one.verb === "gate" || one.verb === "hook"));
}
function summary(item) {
  const asker = item.asked?.by?.join(", "), last = item.answered?.at(-1), refuser = (item.says ?? []).find((one) => !one.shadow && one.v === item.verdict?.v)?.hook;
  if (item.status === "not made") return "the reply was rejected, so its calls were not made";
  if (last) return last.v === "Edit" ? `asked by ${asker}; ${last.by} changed the arguments` : last.v === "Approve" ? `asked by ${asker}; ${last.by} approved exactly these bytes` : `asked by ${asker}; answered by ${last.by}`;
  if (item.asked) return `asked by ${asker}`;
  if (item.status === "denied") return refuser ? `refused by ${refuser}; the model read why` : "refused; the model read why";
  if (item.verdict && item.verdict.v !== "Allow") return refuser ? `by ${refuser}` : "by the agent's default";
  return item.changes?.length ? `allowed, after ${[...new Set(item.changes.map((one) => one.hook))].join(", ")} changed it` : "nobody objected";
}
function args(item) {
  const was = parsed(item.json), is = item.final ? parsed(item.final) : was;
  if (was === null || is === null) return [h("pre.text", {}, item.final ?? item.json)];
  const names = [...new Set([...Object.keys(was), ...Object.keys(is)])], editor = item.answered?.find((one) => one.v === "Edit")?.by;
  const who = editor ?? ([...new Set((item.changes ?? []).map((one) => one.hook))].join(", ") || "default");
  if (!names.length) return h("p.dim", {}, "none");
  return h("dl.args2", {}, names.map((name) => {
    const a = JSON.stringify(was[name]), b = JSON.stringify(is[name]);
    return [h("dt", {}, name), h("dd", { class: a === b ? "" : "chg" }, a === b ? b : [a === undefined ? h("span.dim", {}, "not given") : h("del", {}, a), " ", h("ins", {}, b ?? "removed"), h("span.blame", {}, mark("changed"), who)])];
  }));
}
function changed(change) {
  const fields = Object.entries(change.fields ?? {});
  return h("dl.args2", {}, fields.map(([name, one]) => [h("dt", {}, name), h("dd.chg", {}, one.before != null ? words(one.before, one.after) : h("ins", {}, one.after), h("span.blame", {}, mark("changed"), change.hook))]));
}
function edited({ hook, edits }) {
  return edits.length ? h("dl.args2", {}, edits.map((one) => [h("dt", {}, one.where), h("dd.chg", {}, one.before == null ? h("ins", {}, one.after) : one.after == null ? h("del", {}, one.before) : words(one.before, one.after), h("span.blame", {}, mark("changed"), hook))])) : h("p.dim", {}, `${hook} made it again, with the same texts.`);
}
export function words(before, after) {
  const a = before.split(/(\s+)/), b = after.split(/(\s+)/);
  let i = 0, j = 0;
  while (i < a.length && i < b.length && a[i] === b[i]) i += 1;
  while (j < a.length - i && j < b.length - i && a[a.length - 1 - j] === b[b.length - 1 - j]) j += 1;
  const same = a.slice(Math.max(0, i - 10), i).join("");
  return [h("span.dim", {}, i > 10 ? "… " : "", same), i < a.length - j ? h("del", {}, a.slice(i, a.length - j).join("")) : null, " ", i < b.length - j ? h("ins", {}, b.slice(i, b.length - j).join("")) : null, h("span.dim", {}, short(a.slice(a.length - j).join(""), 120))];
}

function model(item, { turn, session }) {
  const before = (item.changes ?? []).filter((one) => one.event === "ModelCalling"), after = (item.changes ?? []).filter((one) => one.event !== "ModelCalling");
  const steps = chain();
  for (const one of before) steps.add("changed", [h("b", {}, one.hook), " rewrote the request"], Object.keys(one.fields).join(", "), time(one.took));
  says(steps, (item.says ?? []).filter((one) => one.event === "ModelCalling"));
  const spoke = new Set([...(item.says ?? []), ...(item.changes ?? [])].map((one) => `${one.event} ${one.hook}`));
  const quiet = (event) => { for (const one of (session.around ?? []).filter((hook) => hook.event === event && !spoke.has(`${event} ${hook.name}`))) steps.add(one.verb === "shadow gate" ? "shadow" : "silent", [h("b.quiet-name", {}, one.name), h("span.dim", {}, `${one.verb} said nothing${one.planned === "maybe" ? ", if it was asked" : ""}`)], null, ""); };
  if (item.paid) quiet("ModelCalling");
  steps.add("silent", [h("b", {}, "called"), item.model ? h("span.dim", {}, item.model) : null], item.paid ? null : "no model was called: a cache or an answer gave this reply", span(item.t - item.t0));
  for (const one of after) steps.add("changed", [h("b", {}, one.hook), " rewrote the reply"], Object.keys(one.fields).join(", "), time(one.took));
  says(steps, (item.says ?? []).filter((one) => one.event !== "ModelCalling"));
  if (!item.rejected) quiet("ModelReplying");
  if (item.rejected) steps.add("deny", [h("b", {}, "rejected"), h("span.dim", {}, ` by ${item.rejected.by.join(", ")}`)], item.rejected.why, "");
  return [
    sum(verdict(item.rejected ? "Regenerate" : "Allow"), h("span", {}, item.rejected ? "paid for, never in the transcript" : item.passed ? `hooks objected, but their bound was reached` : "this reply counts")),
    section("Spent", h("dl.args2.words", {}, [["in", `${plural(item.in, "token")}${item.cached ? `, ${count(item.cached)} from the vendor's cache` : ""}`], ["out", plural(item.out, "token")], ["cost", item.cost == null ? "no price is known" : money(item.cost)], ["took", span(item.t - item.t0)], ["finish", item.finish]].map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]))),
    section("Who decided", steps.list()),
    item.stream ? section("Stream", stream(item)) : null,
    before.length ? section("Changed before it left", item.edits?.length ? item.edits.map(edited) : before.map(changed)) : null,
    after.length ? section("Changed after it came", after.map(changed)) : null,
    item.thinking ? section("Thinking", h("pre.text", {}, item.thinking)) : null,
    item.text ? section("Reply", h("pre.text", { class: item.rejected ? "struck" : "" }, item.text)) : null,
    item.calls.length ? section("Calls it asked for", h("ul.plain", {}, item.calls.map((id) => { const made = turn.rows.find((row) => row.call === id); return h("li", {}, made ? h("code", {}, h("b", {}, made.name), ` ${short(oneLine(made.json), 60)}`) : h("code", {}, id)); }))) : null,
    item.opaque.length ? section("Not mediated", item.opaque.map((one) => h("p.unmed", {}, mark("error"), `${one.vendor} ran ${one.data?.type ?? "something"} by itself: no gate saw it`)), h("pre.text", {}, JSON.stringify(item.opaque, null, 1))) : null,
  ];
}
// How the reply was streamed: when words came from the model, when they went out, and who held them.
function stream({ stream: one }) {
  const gap = one.first_sent != null && one.first_chunk != null ? one.first_sent - one.first_chunk : null;
  const rows = [
    ["came in", `${plural(one.chunks, "chunk")} of ${plural(one.characters, "character")}, the first after ${span(one.first_chunk)}`],
    ["went out", one.first_sent == null ? h("span.v-deny", {}, "nothing") : `${plural(one.sent, "piece")}, the first after ${span(one.first_sent)}`],
    gap > 0.0005 ? ["held back", h("span.v-ask", {}, mark("hold"), ` ${span(gap)}${one.held ? ", until the whole reply was judged" : ""}`)] : null,
    ...(one.transforms ?? []).map((link) => [link.name, link.chunks ? `held at most ${plural(link.held, "character")}, took ${span(link.seconds)}` : "saw nothing"]),
    one.retracted ? ["taken back", h("span.v-deny", {}, mark("deny"), ` ${one.retracted}`)] : null,
  ].filter(Boolean);
  return h("dl.args2.words", {}, rows.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
}
function other(item, { turn }) {
  const facts = { by: item.by, at: moment(item.t), event: item.event, took: item.took ? span(item.took) : "", reason: item.reason, category: item.category, action: item.action };
  const table = h("dl.args2", {}, Object.entries(facts).filter(([, value]) => value).map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
  const steps = chain();
  says(steps, item.says);
  for (const one of item.changes ?? []) steps.add("changed", [h("b", {}, one.hook), ` at ${one.event}`], null, time(one.took));
  const heads = {
    inject: () => sum(by("changed", "added"), item.durable ? "stays in the transcript" : "serves this turn only"),
    error: () => sum(by("error", item.action), item.text),
    veto: () => sum(verdict("Veto"), "the model had finished; the stop did not stand"),
    compact: () => [sum(by("changed", "compacted"), `${count(item.before)} tokens before, ${count(item.after)} after`), h("div.origin", {}, bar([{ name: "after", value: item.after, kind: "c-history" }, { name: "freed", value: Math.max(0, item.before - item.after), kind: "c-free" }], `${count(item.after)} tokens stay, ${count(Math.max(0, item.before - item.after))} are freed`, "18px")), h("p.dim", {}, `From message ${item.range[0]} on, the vendor's cache cannot be used at the next call. The log keeps all messages.`)],
  };
  return [
    heads[item.k]?.() ?? null,
    item.k === "wait" ? item.asks.map((ask) => section(ask.question, h("dl.args2", {}, Object.entries({ "asked by": ask.by.join(", "), "may answer": ask.approvers?.join(", ") ?? "anybody", answers: ask.allow?.join(", "), digest: ask.digest, expires: ask.expires ? `${moment(ask.expires)}, then ${ask.default}` : "never", about: ask.id }).filter(([, value]) => value).map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])))) : null,
    item.answers?.length ? section("Answers", h("ol.chain", {}, item.answers.map((one) => h("li", {}, mark(tone(one.v)), h("div", {}, h("div.nh", {}, h("b", {}, one.by), " ", verdict(one.v), h("span.at", {}, `at ${offset(one.at - turn.began)}`)), one.why ? h("div.nb", {}, one.why) : null))))) : null,
    item.text ? section("Text", h("pre.text", {}, item.text)) : null,
    item.options ? section("Options of this turn", h("pre.text", {}, JSON.stringify(item.options, null, 1))) : null,
    item.says?.length || item.changes?.length ? section("Who decided", steps.list()) : null,
    (item.changes ?? []).length ? section("What was changed", item.changes.map(changed)) : null,
    section("Facts", table),
  ];
}
function why({ turn, session }) {
  const vote = turn.vote;
  return [
    section("How it ended", h("p", {}, turn.state === "running" ? (session.live ? "It is running." : "Its process ended before the turn did.") : turn.detail)),
    vote ? section("The last vote", h("dl.args2", {}, [h("dt", {}, "verdict"), h("dd", {}, vote.v), vote.by.map(([name, text]) => [h("dt", {}, name), h("dd", {}, text)])])) : null,
    turn.answer ? section("Answer", h("pre.text", {}, turn.answer)) : null,
    contexts(turn, session),
    ledger(turn, session),
    section("Pipeline", h("p", {}, h("code", {}, turn.pipeline || "not known"))),
  ];
}

// ---- the contexts of all model calls of a turn, fetched once
let drawn = { id: "", el: null };
function contexts(turn, session) {
  if (!turn.rows.some((row) => row.k === "model" && row.paid)) return null;
  const id = `${session.session} ${turn.n} ${turn.rows.length}`;
  if (drawn.id !== id) {
    const el = h("div", {}, h("p.dim", {}, "…"));
    drawn = { id, el };
    contextOf({ session: session.session, turn: turn.n }).then(({ calls, problem }) => el.replaceChildren(...(calls.length ? [...columns(session.session, calls), h("p", {}, h("a", { href: `#/pipeline/context/session/${encodeURIComponent(session.session)}/${turn.n}` }, "Every call, with its prefix"))] : [h("p.dim", {}, problem || "No request is in this log.")])), (error) => el.replaceChildren(h("p.dim", {}, error.message)));
  }
  return section("Context by origin, call by call", drawn.el);
}

// ---- effects: what would happen to each call if the process were killed now
function ledger(turn, session) {
  const calls = turn.rows.filter((row) => row.k === "tool" && row.status !== "not made").slice(-200);
  if (!calls.length) return null;
  const fate = (row) => {
    const effect = session.tools?.[row.name]?.effect;
    if (row.status === "interrupted") return ["outcome unknown", true];
    if (row.status) return ["nothing: it is in the log", false];
    if (!row.called) return [row.asked && !row.answered ? "still waits for an answer" : "would be decided again", false];
    if (!effect) return ["not known without --agent", false];
    return effect === "unsafe" ? ["outcome unknown: never repeated by itself", true] : effect === "idempotent" ? ["would re-run, with the same key" , false] : ["would re-run", false];
  };
  return section("If it were killed now", h("table.ledger", {}, h("thead", {}, h("tr", {}, ["Call", "Effect", "So far", "Then"].map((name) => h("th", { scope: "col" }, name)))), h("tbody", {}, calls.map((row) => { const [text, risk] = fate(row); return h("tr", {}, h("td", {}, h("code", {}, row.name)), h("td", {}, session.tools?.[row.name]?.effect || "–"), h("td", {}, row.status || (row.called ? "started, no receipt" : "not started")), h("td", { class: risk ? "risk" : "" }, text)); }))));
}

// ---- raw records, fetched when they are looked at; long ones come in slices
function records(item, { session }) {
  const numbers = [...new Set([item.n, ...(item.more ?? [])])].sort((a, b) => a - b), first = numbers.slice(0, 8);
  const rest = numbers.slice(8);
  return [first.map((number) => record(session.session, number)), rest.length ? section("More records", h("p.dim", {}, rest.join(", "))) : null];
}
function record(session, number) {
  return section(`Record ${number}`, slices(at(session, "records", number), `Record ${number}`));
}
