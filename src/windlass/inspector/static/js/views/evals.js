// Evaluations: saved runs on one scale of pass rates, the cases of one run with all their trials, and what another run changed.
import { get } from "../api.js";
import { h, mark, say, tag } from "../dom.js";
import { ago, count, moment, money, plural, short, span } from "../format.js";
import { VirtualList } from "../virtual.js";

const SHOW = [["all", "All", () => true], ["failed", "Not passed", (one) => one.rate < 1], ["error", "Not judged", (one) => one.trials.some((trial) => !trial.judged)], ["worse", "Worse", (one, by) => by.get(one.case)?.kind === "worse"], ["better", "Better", (one, by) => by.get(one.case)?.kind === "better"]];
let data, page, list, parts, filter = "all", open = new Set(), changed = new Map();

const place = (run, before = "") => `#/evals/${encodeURIComponent(run)}${before ? `/${encodeURIComponent(before)}` : ""}`;
const percent = (rate) => `${(rate * 100).toFixed(rate > 0 && rate < 1 ? 1 : 0)} %`;

export async function show(view, [run = "", before = ""], context) {
  page = context;
  open = new Set();
  if (!document.getElementById("store").textContent) get("/api/sessions?limit=1").then((found) => context.setStore(found.store), () => {});
  data = await get(`/api/evals?${new URLSearchParams({ run, before })}`);
  if (!context.isCurrent()) return;
  view.append(h("section.head", {}, h("h1", {}, "Evals"), h("p.lede", {}, data.runs.length ? `${plural(data.runs.length, "run")}: how often the agent did the right thing, with the interval in which its true rate lies.` : "How often does an agent do the right thing?")));
  if (!data.run) { view.append(nothing()); return; }
  changed = new Map(["worse", "better", "only"].flatMap((kind) => (data.before?.[kind] ?? []).map((one) => [one.case, { ...one, kind }])));
  if (!SHOW.find(([id]) => id === filter)[2] || (!data.before && ["worse", "better"].includes(filter))) filter = "all";
  parts = { chips: h("div.chips", { role: "group", "aria-label": "Show" }), body: h("div.body", { role: "presentation" }) };
  view.append(h("div.split.runs", {}, h("nav.runlist", { "aria-label": "Runs" }, data.runs.map(item)), h("section", { "aria-label": "Run" }, head(), facts(), versus(), h("div.tools", {}, parts.chips),
    h("div.table.cases", { role: "table", "aria-label": "Cases" }, h("div", { role: "rowgroup" }, h("div.tr.th", { role: "row" }, ["State", "Case", "Trials", "Passed", "Steps", "Tokens", "Cost", "Took"].map((text, i) => h("span", { role: "columnheader", class: i > 2 ? "num" : "" }, i ? text : h("span.vh", {}, text))))), parts.body))));
  list = new VirtualList(parts.body, { key: (one) => one.case, estimate: () => 43, render: row });
  fill();
}
export function leave() { list?.close(); list = null; data = null; }

function nothing() {
  return h("section.empty", {}, h("h2", {}, data.given ? "No run yet" : "No runs were given"), h("p", {}, "Write cases with checks, run them, keep the result, and open it beside the sessions of its trials:"),
    h("pre.raw", {}, "$ windlass eval cases.yaml --agent my_agents:support --repeat 5 --save runs/new.json\n$ windlass ui agent.db --evals runs"), h("p.dim", {}, "Each trial leads to its session, so you see why it failed; two runs show which cases became better or worse."));
}
// A rate with its interval on a scale from 0 to 100 %.
function whisker(one) {
  return h("span.whisker", { role: "img", "aria-label": `${percent(one.rate)}, interval ${percent(one.low)} to ${percent(one.high)}` }, h("i", { vars: { x: `${one.low * 100}%`, w: `${(one.high - one.low) * 100}%` } }), h("u", { vars: { x: `${one.rate * 100}%` } }));
}
function item(one) {
  const now = Date.now() / 1000;
  return h("a.runitem", { href: place(one.name, data.before && one.name !== data.before.name ? data.before.name : ""), "aria-current": one.name === data.run.name ? "true" : null }, h("b", {}, one.name.replace(/\.json$/, "")), h("span", {}, percent(one.rate)), whisker(one),
    h("span.m", {}, h("span", {}, one.agent), h("span", {}, `${one.passed} of ${one.trials}`), one.errors ? h("span.v-error", {}, `${one.errors} not judged`) : null, one.started ? h("span", { title: moment(one.started) }, ago(one.started, now)) : null));
}
function head() {
  const others = data.runs.filter((one) => one.name !== data.run.name);
  const choose = h("select", { "aria-label": "Compared with", on: { change: (event) => { location.hash = place(data.run.name, event.target.value); } } }, h("option", { value: "" }, "no other run"), others.map((one) => h("option", { value: one.name }, one.name.replace(/\.json$/, ""))));
  choose.value = data.before?.name ?? "";
  return h("div.runhead", {}, h("h2", {}, data.run.name.replace(/\.json$/, "")), h("span.dim", {}, [data.run.agent, plural(data.run.of, "case"), data.run.repeat > 1 ? `${data.run.repeat} times each` : "", data.run.started ? moment(data.run.started) : ""].filter(Boolean).join(", ")), others.length ? h("label", {}, "compared with ", choose) : null);
}
function fact(name, value, ...more) { return h("div.fact", {}, h("h3", {}, name), h("b", {}, value), more); }
function facts() {
  const { run } = data, note = (text) => h("p.dim", {}, text);
  return h("div.facts", {}, fact("pass rate", percent(run.rate), whisker(run), note(`${percent(run.low)} to ${percent(run.high)}`)), fact("trials passed", `${run.passed} of ${run.trials}`, run.errors ? h("p.v-error", {}, `${run.errors} could not be run or judged`) : note("all were judged")),
    fact("spent", run.spent.cost == null ? "–" : money(run.spent.cost), note(`${count(run.spent.tokens)} tokens${run.judging.calls ? `; judges ${run.judging.cost == null ? `${count(run.judging.tokens)} tokens` : money(run.judging.cost)}` : ""}`)), fact("took", span(run.seconds), note(`${span(run.seconds / Math.max(1, run.trials))} a trial`)));
}
function versus() {
  const { before, run } = data;
  if (!before) return null;
  const n = (kind, word, tone) => (before[kind].length ? h("span", { class: `v-${tone}` }, mark(tone), ` ${plural(before[kind].length, "case")} ${word}`) : null);
  return h("p.versus", { role: "status" }, `${percent(before.rate)} → ${percent(run.rate)}`, n("worse", "worse", "deny"), n("better", "better", "allow"), h("span", {}, `${before.same} the same`), before.only.length ? h("span", {}, `${before.only.length} only in one run`) : null,
    before.worse.length + before.better.length ? h("span.dim", {}, `Chance of such a difference without a real one: ${before.chance.toFixed(before.chance < 0.1 ? 3 : 2)}`) : null);
}

function fill() {
  const test = SHOW.find(([id]) => id === filter)[2], rank = (one) => (changed.get(one.case)?.kind === "worse" ? 0 : one.trials.some((trial) => !trial.judged) ? 1 : one.rate < 1 ? 2 : 3);
  const ordered = data.run.cases.map((one, at) => [one, at]).filter(([one]) => test(one, changed)).sort((a, b) => rank(a[0]) - rank(b[0]) || a[1] - b[1]).map(([one]) => one);
  parts.chips.replaceChildren(...SHOW.filter(([id, , of]) => id === "all" || id === filter || data.run.cases.some((one) => of(one, changed))).map(([id, name, of]) => h("button.chip", { type: "button", "aria-pressed": String(filter === id), on: { click: () => { filter = id; fill(); } } }, name, h("span.c", {}, data.run.cases.filter((one) => of(one, changed)).length))), data.run.of > data.run.cases.length ? h("span.dim", {}, `the first ${data.run.cases.length} of ${data.run.of}`) : "");
  list.set(ordered);
}
const sum = (one, of) => one.trials.reduce((all, trial) => all + (of(trial) ?? 0), 0);
const mean = (one, of) => sum(one, of) / one.trials.length;
const reason = (trial) => { const failed = trial.verdicts.find((one) => !one.passed); return trial.error || (failed ? `${failed.check}: ${failed.why || "failed"}` : "not passed"); };
function row(one, index) {
  const error = one.trials.some((trial) => !trial.judged), bad = one.rate < 1, diff = changed.get(one.case), first = one.trials.find((trial) => !trial.passed), isOpen = open.has(one.case);
  const cost = one.trials.some((trial) => trial.spent.cost != null) ? sum(one, (trial) => trial.spent.cost) : null;
  return h("div", { role: "rowgroup", data: { id: one.case } }, h("div.tr", { role: "row", "aria-rowindex": index + 2, class: error ? "s-error" : bad ? "s-failed" : "" },
    h("span.c-state", { role: "cell" }, mark(error ? "error" : bad ? "deny" : "done", error ? "not judged" : bad ? "not passed" : "passed")),
    h("span.c-what", { role: "cell" }, h("button.name", { type: "button", "aria-expanded": String(isOpen), on: { click: () => toggle(one) } }, one.case), h("span.sub", {}, one.tags.map((name) => h("span", {}, name)), first ? h("span.why", {}, short(reason(first), 140)) : null)),
    h("span.c-dots", { role: "cell" }, h("span.vh", {}, `${one.passed} of ${one.of} passed`), one.trials.slice(0, 60).map((trial) => h("i.dot", { class: !trial.judged ? "err" : trial.passed ? "" : "bad", title: `trial ${trial.n}: ${trial.passed ? "passed" : reason(trial)}` }))),
    h("span.c-rate.num", { role: "cell" }, diff && diff.before != null ? [h("span", { class: diff.kind === "worse" ? "v-deny" : "v-allow" }, mark(diff.kind === "worse" ? "deny" : "allow", diff.kind)), h("span.dim", {}, `${percent(diff.before)} → `)] : diff ? h("span.dim", {}, "new ") : null, percent(one.rate)),
    h("span.c-steps.num", { role: "cell" }, mean(one, (trial) => trial.steps).toFixed(one.trials.length > 1 ? 1 : 0)), h("span.c-tokens.num", { role: "cell" }, count(sum(one, (trial) => trial.spent.tokens))), h("span.c-cost.num", { role: "cell" }, money(cost)), h("span.c-took.num", { role: "cell" }, span(mean(one, (trial) => trial.seconds)))),
  isOpen ? h("div.trials", { role: "row" }, h("div", { role: "cell" }, one.trials.map(trialOf), one.of > one.trials.length ? h("p.dim", {}, `${one.of - one.trials.length} more trials are in the file`) : null)) : null);
}
function trialOf(trial) {
  return h("article.trial", {}, h("header", {}, mark(!trial.judged ? "error" : trial.passed ? "allow" : "deny", trial.passed ? "passed" : "not passed"), h("b", {}, `trial ${trial.n}`), trial.outcome ? h("span", {}, trial.outcome) : null, h("span", {}, plural(trial.steps, "step")), h("span", {}, span(trial.seconds)), h("span", {}, `${count(trial.spent.tokens)} tokens`), trial.spent.cost != null ? h("span", {}, money(trial.spent.cost)) : null, trial.tools.slice(0, 12).map((name) => tag(name)),
    trial.known ? h("a", { href: `#/turn/${encodeURIComponent(trial.session)}` }, "Open its session") : trial.session ? h("span.dim", {}, "its session is not in this store") : null),
  trial.error ? h("p.unmed", {}, mark("error"), trial.error) : null,
  h("ul.checks", {}, trial.verdicts.map((one) => h("li", {}, mark(one.failed ? "error" : one.passed ? "allow" : "deny", one.passed ? "passed" : "failed"), h("code", {}, one.check), h("span", {}, [one.why, one.score != null ? `score ${one.score}` : ""].filter(Boolean).join(", "))))),
  trial.text ? h("p.say", { tabIndex: 0, "aria-label": "Answer" }, trial.text) : null);
}
const button = (id) => list.nodes.get(id)?.querySelector("button.name");
function toggle(one) {
  if (open.has(one.case)) open.delete(one.case); else open.add(one.case);
  list.refresh([one.case]);
  button(one.case)?.focus({ preventScroll: true });
}
export function key(event) {
  if (!list || !data?.run) return;
  if (event.key === "[" || event.key === "]") {
    const at = data.runs.findIndex((one) => one.name === data.run.name) + (event.key === "]" ? 1 : -1), to = data.runs[at];
    if (to) location.hash = place(to.name, data.before && to.name !== data.before.name ? data.before.name : "");
    return;
  }
  const id = document.activeElement?.closest?.(".cases [data-id]")?.dataset.id, at = list.items.findIndex((one) => one.case === id);
  const next = list.items.findIndex((one, i) => i > at && one.rate < 1);
  if (event.key === "x" && next < 0) { say("No further case that did not pass"); return; }
  const to = { j: at + 1, ArrowDown: at + 1, k: at - 1, ArrowUp: at - 1, Home: 0, End: list.items.length - 1, x: next }[event.key];
  if (to === undefined || !list.items.length) return;
  event.preventDefault();
  const index = Math.max(0, Math.min(list.items.length - 1, to));
  list.show(index);
  button(list.items[index].case)?.focus({ preventScroll: true });
}
