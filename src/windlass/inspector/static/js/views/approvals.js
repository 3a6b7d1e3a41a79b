// What waits for a person: the whole call, what led to it, earlier answers, and a rule instead of the next question.
import { get, post, Tail } from "../api.js";
import { h, mark, say, tag, tone, verdict } from "../dom.js";
import { ago, oneLine, plural, short, span, valueOf } from "../format.js";

let all = [], current = null, mode = "see", page, list, detail, tail, info, skew, timer, wanted, tried = null, done = new Map();

export async function show(view, [id], context) {
  page = context; mode = "see"; tried = null; wanted = id ?? null; done = new Map();
  await load();
  if (!context.isCurrent()) return;
  view.append(h("section.head", {}, h("h1", {}, "Approvals"), h("p.lede", {}, all.length ? `${plural(all.length, "question")} ${all.length === 1 ? "waits" : "wait"}. Nothing runs meanwhile and no process is needed; an answer counts for exactly the bytes you see.` : ""), info.damaged.length ? h("p.unmed", {}, mark("error"), "Questions of sessions whose logs are damaged are not shown: ", info.damaged.slice(0, 5).join(", "), info.damaged.length > 5 ? " …" : "") : null),
    h("div.split.inbox", {}, (list = h("nav.asks", { "aria-label": "Questions" })), (detail = h("section.askbox", { "aria-label": "Question" }))));
  current = all.find((one) => one.asked.id === wanted) ?? all[0] ?? null;
  draw();
  tail = new Tail("/api/events", refresh, (info.now - 5).toFixed(6));
  timer = setInterval(() => { for (const el of list.querySelectorAll("[data-since]")) el.textContent = `waits ${span(now() - Number(el.dataset.since))}`; }, 5000);
}
export function leave() { tail?.close(); clearInterval(timer); }
const now = () => Date.now() / 1000 + skew;
const idOf = (one) => `${one.session} ${one.asked.id}`;

async function load() {
  info = await get("/api/questions");
  skew = info.now - Date.now() / 1000;
  const answered = all.filter((one) => done.has(idOf(one)));
  all = [...info.questions, ...answered.filter((one) => !info.questions.some((other) => idOf(other) === idOf(one)))];
}
async function refresh(type, data) {
  if (type !== "sessions" || !data.sessions.length) return;
  const before = all.length, editing = mode !== "see", known = all, same = JSON.stringify(all);
  await load();
  if (JSON.stringify(all) === same) { all = known; return; }
  if (!page.isCurrent()) return;
  current = all.find((one) => current && idOf(one) === idOf(current)) ?? (editing ? current : all[0] ?? null);
  if (all.length > before) say(`New question: ${all.at(-1).asked.question}`);
  drawList();
  if (!editing) drawDetail();
}

function draw() { drawList(); drawDetail(); }
function drawList() {
  list.hidden = !all.length;
  list.replaceChildren(...all.map((one) => {
    const answer = done.get(idOf(one)), left = one.asked.expires_at ? one.asked.expires_at - now() : null;
    return h("button.askitem", { type: "button", "aria-current": one === current ? "true" : null, class: answer ? "is-done" : "", on: { click: () => choose(one, true) } }, mark(answer ? tone(answer) : "ask"), h("span.q2", {}, one.asked.question),
      h("span.m", {}, h("code", {}, one.session), answer ? h("span", {}, answer) : h("span", { data: { since: one.at } }, `waits ${span(now() - one.at)}`), left !== null && !answer ? h("span", { class: left < 4 * 3600 ? "soon" : "" }, `${span(left)} left`) : null));
  }));
}
function choose(one, user) {
  current = one; mode = "see"; tried = null;
  draw();
  if (user && innerWidth < 1100) detail.scrollIntoView({ block: "start" });
}
function empty() {
  return h("div.empty", {}, h("h2", {}, "Nobody waits"), h("p", {}, "When a gate answers ", h("code", {}, "Ask(…)"), ", the turn is suspended and its question appears here. It stays until somebody answers, or until it expires."), h("pre.raw", {}, '@agent.gate(ToolCalling, tool="refund")\ndef limit(event):\n    if event.call.arguments["amount"] > 100:\n        return Ask("Refund more than 100?")'));
}
function drawDetail() {
  const one = current;
  if (!one) { detail.replaceChildren(empty()); return; }
  const { asked, call } = one, answer = done.get(idOf(one)), may = (name) => one.control && one.whole && asked.allow?.includes(name);
  const mine = idOf(one);
  const earlier = h("div", {}, h("p.dim", {}, "…"));
  detail.replaceChildren(...[
    h("header.askhead", {}, h("h2", {}, asked.question), h("p.dim", {}, "asked by ", h("b", {}, asked.by.join(", ")), asked.approvers ? `; ${asked.approvers.join(" or ")} may answer` : "; anybody may answer", asked.expires_at ? `; in ${span(asked.expires_at - now())} the default holds: ${asked.default ?? "reject"}` : "", one.standing ? `; ${one.standing}` : "")),
    subject(one),
    one.shadow.map((shadow) => h("p.sidebar", {}, verdict(shadow.v, true), h("span", {}, h("b", {}, shadow.hook), `: ${shadow.why}`))),
    Object.keys(asked.details ?? {}).length ? h("pre.raw", { tabIndex: 0, "aria-label": "Details" }, JSON.stringify(asked.details, null, 1)) : null,
    !one.whole ? h("p.unmed", {}, mark("error"), "This is too long to show whole. Read it with `windlass approve`, and answer there.") : null,
    answer ? h("p.sidebar", { role: "status" }, verdict(answer), "Kept in the session's inbox: it counts at the next resume, or at once if a process is at work.") : h("div.acts", {}, actions(one, may)),
    !one.control && !answer ? h("p.dim.hint", {}, "To answer here, start with ", h("code", {}, "windlass ui --control"), ". In the terminal: ", h("code", {}, `windlass approve ${one.session} ${asked.id}`)) : null,
    mode === "rule" && !answer ? rule(one) : null,
    h("div.cols2", {},
      h("section.ps", {}, h("h3", {}, "What led here"), h("p.who", {}, "user"), h("p.say", {}, one.said.user), h("p.who", {}, "model"), h("p.say", {}, one.said.model || h("span.dim", {}, "no words, only the call")), h("p", {}, h("a", { href: `#/turn/${encodeURIComponent(one.session)}/${one.turn}` }, "Open the turn"))),
      h("section.ps", {}, h("h3", {}, call ? `Earlier answers to ${call.name}` : "Earlier answers"), earlier)),
  ].flat().filter(Boolean));
  if (!call) { earlier.replaceChildren(h("p.dim", {}, "This question is not about a tool.")); return; }
  get(`/api/answers?tool=${encodeURIComponent(call.name)}`).then((found) => {
    if (!current || idOf(current) !== mine) return;
    earlier.replaceChildren(found.length ? h("ul.like", {}, found.map((old) => h("li", {}, verdict(old.v), h("a", { href: `#/turn/${encodeURIComponent(old.session)}/${old.turn}` }, short(oneLine(old.json), 46)), h("span.dim", {}, `${old.by}, ${ago(old.at, now())}`), old.v === "Edit" ? h("span.dim.full", {}, `changed to ${oneLine(old.final)}`) : old.why ? h("span.dim.full", {}, old.why) : null))) : h("p.dim", {}, "Nobody has answered a question about this tool yet."));
  }, () => {});
}
function subject(one) {
  const { asked, call } = one;
  if (!call) return h("pre.raw", { tabIndex: 0, "aria-label": "What is asked about" }, asked.text ?? JSON.stringify(asked.reply ?? asked.request ?? {}, null, 1));
  const names = Object.keys(call.arguments);
  return h("div.callbox", {}, h("div.callhead", {}, h("code", {}, h("b", {}, call.name)), tag(asked.event), h("span.sp", {}), h("span.dim", {}, "digest ", h("code", {}, asked.digest))),
    h("form.fields", { on: { submit: (event) => event.preventDefault() } }, names.length ? names.map((name) => field(name, call.arguments[name])) : h("p.dim", {}, "no arguments")));
}
function field(name, json) {
  const value = valueOf(json), text = typeof value === "string", shown = text ? value : json;
  if (mode !== "edit") return h("div.f", {}, h("span", {}, name), h("output", {}, shown));
  const changed = (event) => event.target.parentNode.classList.toggle("chg", event.target.value !== shown);
  const props = { name, value: shown, spellcheck: false, data: { text: text ? "1" : "" }, on: { input: changed, keydown: (event) => { if (event.key === "Enter" && (event.target.tagName === "INPUT" || event.ctrlKey || event.metaKey)) { event.preventDefault(); edit(current); } } } };
  return h("label.f", {}, h("span", {}, name), shown.length > 60 || shown.includes("\n") ? h("textarea", { ...props, rows: 4 }) : h("input", props));
}
const button = (name, kind, run, key) => h("button.btn", { type: "button", class: kind, on: { click: run } }, name, key ? h("kbd", { "aria-hidden": "true" }, key) : null);
function actions(one, may) {
  const back = button("Back", "", () => { mode = "see"; drawDetail(); });
  if (mode === "edit") return [button("Approve with these changes", "primary", () => edit(one)), back];
  if (mode === "no" || mode === "respond") {
    const say = mode === "no" ? "The model reads this" : "The model reads this as the result; the tool is not called";
    return [h("label.no", {}, h("span", {}, say), h("input", { id: "words", placeholder: mode === "no" ? "Why not, and what to do instead" : "The result", on: { keydown: (event) => { if (event.key === "Enter") words(one); } } })), button(mode === "no" ? "Reject" : "Respond", mode === "no" ? "danger" : "primary", () => words(one)), back];
  }
  return [may("approve") ? button("Approve", "primary", () => send(one, { answer: "approve" }), "a") : null, may("edit") && one.call ? button("Edit first", "", () => enter("edit"), "e") : null, may("reject") ? button("Reject", "danger", () => enter("no"), "n") : null, may("respond") ? button("Respond instead", "", () => enter("respond")) : null, h("span.sp", {}), may("approve") && one.call ? button("Make this a rule", "", () => enter(mode === "rule" ? "see" : "rule"), "m") : null];
}
function enter(next) { mode = next; tried = null; drawDetail(); detail.querySelector(".fields input, .fields textarea, #words, #rule")?.focus(); }
function edit(one) {
  const args = {};
  for (const el of detail.querySelectorAll(".fields [name]")) {
    try { args[el.name] = el.dataset.text ? el.value : JSON.parse(el.value); } catch { say(`${el.name} is not valid JSON`); el.focus(); return; }
  }
  send(one, { answer: "edit", arguments: args });
}
function words(one) { send(one, { answer: mode === "no" ? "reject" : "respond", text: document.getElementById("words").value }); }
async function send(one, answer) {
  try {
    const result = await post("/api/answer", { session: one.session, question: one.asked.id, digest: one.asked.digest, ...answer });
    done.set(idOf(one), { approve: "Approve", edit: "Edit", reject: "Reject", respond: "Respond" }[answer.answer]);
    mode = "see";
    say(result.rules ? `Approved, and the rule is in ${result.rules}` : `Saved for the next resume of ${result.top}`);
    dispatchEvent(new Event("questions"));
    draw();
  } catch (error) { say(error.message); }
}
function rule(one) {
  const values = Object.entries(one.call.arguments).map(([name, json]) => [name, valueOf(json)]).filter(([, value]) => typeof value !== "object");
  const guess = `${one.call.name}${values.length ? `(${values.slice(0, 2).map(([name, value]) => `${name}=${String(value).replace(/[*?[\](),=]/g, "?").slice(0, 60)}`).join(", ")})` : ""}`;
  const out = h("p", { role: "status" });
  const field = h("input", { id: "rule", value: tried ?? guess, spellcheck: false, "aria-label": "Rule", on: { input: () => { tried = field.value; clearTimeout(rule.timer); rule.timer = setTimeout(check, 250); } } });
  const save = button("Save the rule and approve", "primary", () => send(one, { answer: "approve", rule: field.value }));
  const check = async () => {
    try {
      const found = await get(`/api/rules?rule=${encodeURIComponent(field.value)}`);
      out.replaceChildren("It would have matched ", h("b", {}, `${found.matched} of ${found.calls}`), ` recorded calls of ${one.call.name}`, found.refused ? h("span.v-deny", {}, `; ${found.refused} of them were refused`) : "; none of them was refused", ".");
      save.disabled = false;
    } catch (error) { out.replaceChildren(h("span.v-deny", {}, error.message)); save.disabled = true; }
  };
  check();
  return h("div.rule", {}, h("h3", {}, "A rule instead of a question"), field, out, h("p.dim", {}, "It goes to ", h("code", {}, info.rules), ". Agents use it if they have the capability ", h("code", {}, "remembered_rules"), " or name the file as a policy."), h("div.acts", {}, save, button("Back", "", () => enter("see"))));
}
export function key(event) {
  const one = current, at = all.indexOf(one), open = one && !done.has(idOf(one)) && one.control && one.whole;
  const may = (name) => open && one.asked.allow?.includes(name);
  if (event.key === "j" || event.key === "ArrowDown") { event.preventDefault(); if (all[at + 1]) choose(all[at + 1]); }
  else if (event.key === "k" || event.key === "ArrowUp") { event.preventDefault(); if (all[at - 1]) choose(all[at - 1]); }
  else if (event.key === "a" && may("approve")) send(one, { answer: "approve" });
  else if (event.key === "e" && may("edit") && one.call) { event.preventDefault(); enter("edit"); }
  else if (event.key === "n" && may("reject")) { event.preventDefault(); enter("no"); }
  else if (event.key === "m" && may("approve") && one.call) { event.preventDefault(); enter(mode === "rule" ? "see" : "rule"); }
  else if (event.key === "Enter" && one) location.hash = `#/turn/${encodeURIComponent(one.session)}/${one.turn}`;
  else if (event.key === "Escape" && mode !== "see") enter("see");
}

