import { get, takeToken, Refused } from "./api.js";
import { h, say } from "./dom.js";
import * as approvals from "./views/approvals.js";
import * as breakpoints from "./views/breakpoints.js";
import * as evals from "./views/evals.js";
import * as diff from "./views/diff.js";
import * as pipeline from "./views/pipeline.js";
import * as sessions from "./views/sessions.js";
import * as tree from "./views/tree.js";
import * as turn from "./views/turn.js";
import * as whatif from "./views/whatif.js";

const VIEWS = [
  { id: "sessions", name: "Sessions", view: sessions },
  { id: "turn", name: "Turn", view: turn },
  { id: "pipeline", name: "Pipeline", view: pipeline },
  { id: "approvals", name: "Approvals", view: approvals },
  { id: "whatif", name: "What-if", view: whatif },
  { id: "evals", name: "Evals", view: evals },
];
// Views that other views lead to: they have an address, but no tab.
const OTHERS = [
  { id: "diff", name: "Diff", view: diff },
  { id: "tree", name: "Delegation", view: tree },
  { id: "breakpoints", name: "Breakpoints", view: breakpoints },
];
const KEYS = [
  [`1 to ${VIEWS.length}`, "go to a view"], ["/", "search; in a turn: find"], ["j  k", "next, previous row"], ["Enter", "open, or show the details"], ["[  ]", "previous, next step"],
  ["x", "next exception: denied, asked, changed, failed"], ["d  r  w", "details: decisions, request, raw record"], ["a  e  n", "approvals: approve, edit, say no"], ["m", "approvals: make this a rule"], ["c", "sessions: mark one, compare it with another one"], ["→  ←", "delegation: open, close the steps of an agent"], ["g", "what-if: replay"], ["x  [  ]", "evals: next case that did not pass, other runs"], ["c  e  i  n", "breakpoints: go on, change, add text, refuse"], ["End  Home", "last, first row"],
  ["t", "colours: auto, light, dark"], ["?", "this map"], ["Esc", "close the details, leave a field"],
];
const root = document.getElementById("view"), tabs = document.getElementById("tabs"), help = document.getElementById("help");
let current = null, route = 0, latest = "";

for (const { id, name } of VIEWS) addTab(id, name);
function addTab(id, name) {
  tabs.append(h("a", { href: `#/${id}`, data: { id }, title: `${name} (${VIEWS.findIndex((one) => one.id === id) + 1})` }, h("span", {}, name)));
}
// A process that runs agents has breakpoints, too: a tab for them, and a watch in every view.
function addBreakpoints() {
  VIEWS.push(...OTHERS.splice(OTHERS.findIndex((one) => one.id === "breakpoints"), 1));
  addTab("breakpoints", "Breakpoints");
  addEventListener("paused", ({ detail }) => {
    const link = tabs.querySelector('[data-id="breakpoints"]');
    link.querySelector(".n")?.remove();
    if (detail) link.append(h("b.n", { "aria-label": `${detail} paused` }, detail));
  });
  breakpoints.watch();
  if (location.hash.startsWith("#/breakpoints")) show();
}

let waiting = null;
async function countQuestions() {
  const found = await get("/api/questions").catch(() => null), link = tabs.querySelector('[data-id="approvals"]');
  const fresh = found && waiting ? found.questions.filter((one) => !waiting.has(`${one.session} ${one.asked.id}`)) : [];
  if (fresh.length && current !== approvals) say(fresh.length > 1 ? `${fresh.length} new questions wait for an answer` : `A new question waits: ${fresh[0].asked.question}`);
  if (found) waiting = new Set(found.questions.map((one) => `${one.session} ${one.asked.id}`));
  if (found?.inspect && OTHERS.some((one) => one.id === "breakpoints")) addBreakpoints();
  link.querySelector(".n")?.remove();
  if (found?.questions.length) link.append(h("b.n", { "aria-label": `${found.questions.length} waiting` }, found.questions.length));
  if (!document.getElementById("store").textContent) get("/api/sessions?limit=1").then((one) => setStore(one.store), () => {});
}
addEventListener("questions", countQuestions);
setInterval(() => { if (!document.hidden) countQuestions(); }, 10_000);

export function setStore(name) { document.getElementById("store").textContent = name; }

async function show() {
  const mine = ++route;
  const [, id = "sessions", ...rest] = location.hash.split("/").map((part) => { try { return decodeURIComponent(part); } catch { return part; } });
  const found = [...VIEWS, ...OTHERS].find((one) => one.id === id) ?? VIEWS[0];
  for (const link of tabs.children) if (link.dataset.id === found.id) { link.setAttribute("aria-current", "page"); link.scrollIntoView({ block: "nearest", inline: "nearest" }); } else link.removeAttribute("aria-current");
  current?.leave?.();
  current = found.view;
  document.body.dataset.view = found.id;
  document.body.classList.remove("sheet");
  document.title = `${found.name} · Windlass Inspector`;
  if (found.id === "turn" && rest[0]) { latest = location.hash; tabs.children[1].href = latest; }
  root.replaceChildren();
  scrollTo(0, 0);
  try {
    await found.view.show(root, rest, { setStore, isCurrent: () => mine === route });
  } catch (error) {
    if (mine === route) root.replaceChildren(problem(error));
  }
}

function problem(error) {
  if (error instanceof Refused && error.status === 401) return noToken();
  console.warn(error);
  return h("section.empty", {}, h("h1", {}, "This cannot be shown"), h("p", {}, error.message), h("p", {}, h("a", { href: "#/sessions" }, "All sessions")));
}
function noToken() {
  return h("section.empty", {}, h("h1", {}, "This address lacks its token"), h("p", {}, "Open the address that ", h("code", {}, "windlass ui"), " printed: it ends with ", h("code", {}, "#token=…"), "."), h("p.dim", {}, "The token belongs to one start of the command. After a restart, take the new address."));
}

// ---- colours
const THEMES = ["auto", "light", "dark"], button = document.getElementById("theme");
let theme = "auto";
try { theme = localStorage.getItem("theme") ?? "auto"; } catch { /* a private window */ }
function colours(name) {
  theme = THEMES.includes(name) ? name : "auto";
  if (theme === "auto") delete document.documentElement.dataset.theme; else document.documentElement.dataset.theme = theme;
  button.textContent = { auto: "Auto", light: "Light", dark: "Dark" }[theme];
  button.setAttribute("aria-label", `Colours: ${theme}`);
  try { localStorage.setItem("theme", theme); } catch { /* a private window */ }
}
const nextColours = () => colours(THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length]);
button.addEventListener("click", nextColours);
colours(theme);

// ---- keyboard
help.append(h("h2", { id: "help-title" }, "Keyboard"),
  h("dl.keys", {}, KEYS.map(([keys, what]) => [h("dt", {}, keys.split("  ").map((one) => h("kbd", {}, one))), h("dd", {}, what)])),
  h("form", { method: "dialog" }, h("button.btn", {}, "Close")));
document.getElementById("keys").addEventListener("click", () => help.showModal());
addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || help.open) return;
  if (event.target.closest?.("input:not([type=checkbox], [type=radio]), textarea, select")) { if (event.key === "Escape") event.target.blur(); return; }
  const view = VIEWS[Number(event.key) - 1];
  if (view) { location.hash = view.id === "turn" && latest ? latest : `#/${view.id}`; return; }
  if (event.key === "?") { help.showModal(); return; }
  if (event.key === "t") { nextColours(); return; }
  if (event.key === "/") { const field = root.querySelector("input[type=search]"); event.preventDefault(); if (current?.find) current.find(); else field?.focus(); return; }
  current?.key?.(event);
});

addEventListener("hashchange", () => { takeToken(); show(); });
if (takeToken()) {
  show();
  countQuestions();
} else {
  get("/api/sessions?limit=1").then(show, () => root.replaceChildren(noToken()));
}
export { say };
