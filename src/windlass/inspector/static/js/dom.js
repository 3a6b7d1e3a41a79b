// Elements are made, never parsed: text goes in as text nodes, so that what a transcript says stays inert.
const SVG = "http://www.w3.org/2000/svg";

// Characters that a reader cannot see or that turn the direction of a text. The server escapes them, too.
const HIDDEN = /[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Cn}\u2028\u2029\u115f\u1160\u3164\uffa0]/gu;
const escape = (c) => (c === "\n" || c === "\t" ? c : `\\u${c.codePointAt(0).toString(16).padStart(4, "0")}`);
export const inert = (text) => String(text).replace(HIDDEN, escape);

export function h(tag, props, ...kids) {
  const [name, ...classes] = tag.split(".");
  const el = document.createElement(name || "div");
  if (classes.length) el.className = classes.join(" ");
  for (const [key, value] of Object.entries(props ?? {})) put(el, key, value);
  add(el, kids);
  return el;
}

export function s(tag, props, ...kids) {
  const el = document.createElementNS(SVG, tag);
  for (const [key, value] of Object.entries(props ?? {})) if (value != null && value !== false) el.setAttribute(key, value);
  add(el, kids);
  return el;
}

const PROPERTIES = new Set(["value", "checked", "disabled", "tabIndex", "type", "id", "open", "placeholder", "rows", "spellcheck"]);

function put(el, key, value) {
  if (value == null || value === false) return;
  if (key === "on") for (const [type, listener] of Object.entries(value)) el.addEventListener(type, listener);
  else if (key === "vars") for (const [name, of] of Object.entries(value)) el.style.setProperty(`--${name}`, of);
  else if (key === "class") el.className = `${el.className} ${value}`.trim();
  else if (key === "data") Object.assign(el.dataset, value);
  else if (PROPERTIES.has(key)) el[key] = value;
  else el.setAttribute(key, value === true ? "" : inert(value));
}

function add(el, kids) {
  for (const kid of kids.flat(9)) if (kid != null && kid !== false && kid !== "") el.append(kid instanceof Node ? kid : inert(kid));
}

// The marks: every verdict has a shape as well as a colour.
const circle = (r, more = {}) => ["circle", { cx: 8, cy: 8, r, ...more }];
const stroke = (d, kind = "stroke") => ["path", { d, class: kind }];
const CROSS = stroke("M3.4 3.4l9.2 9.2M12.6 3.4l-9.2 9.2");
const DIAMOND = ["path", { d: "M8 1.6 14.4 8 8 14.4 1.6 8z" }];
const SHAPES = {
  allow: [stroke("M3 8.4 6.6 12 13 4.4")],
  deny: [["rect", { x: 2.5, y: 2.5, width: 11, height: 11, rx: 1.5 }], stroke("M5.2 8h5.6", "cut")],
  ask: [DIAMOND],
  waiting: [DIAMOND],
  changed: [["path", { d: "M8 2.4 14.2 13.4H1.8z" }]],
  inject: [stroke("M8 2.4v11.2M2.4 8h11.2")],
  error: [CROSS],
  failed: [CROSS],
  done: [circle(4)],
  live: [circle(4), circle(6.6, { class: "ring" })],
  interrupted: [circle(5, { class: "stroke thin dash" }), circle(1.6)],
  stopped: [["rect", { x: 3.4, y: 3.4, width: 9.2, height: 9.2 }]],
  cancelled: [circle(5, { class: "stroke thin" }), stroke("M4.6 11.4l6.8-6.8", "stroke thin")],
  silent: [circle(2)],
  shadow: [["rect", { x: 3, y: 3, width: 10, height: 10, class: "stroke thin dash" }]],
  hold: [stroke("M5 3v10M11 3v10")],
};

export function mark(kind, label) {
  const el = s("svg", { viewBox: "0 0 16 16", class: `mk mk-${kind}`, role: label ? "img" : null, "aria-label": label, "aria-hidden": label ? null : "true" });
  for (const [tag, props] of SHAPES[kind] ?? SHAPES.silent) el.append(s(tag, props));
  return el;
}

const TONES = {
  Allow: "allow", Approve: "allow", Deny: "deny", Regenerate: "deny", Veto: "deny", Halt: "deny", Reject: "deny", FORBID: "deny",
  Ask: "ask", Answer: "changed", Finish: "changed", Rewind: "changed", Edit: "changed", Respond: "changed",
};
export const tone = (verdict) => TONES[verdict] ?? "silent";

export function verdict(name, shadow = false) {
  return h("span.verdict", { class: `v-${tone(name)}${shadow ? " v-shadow" : ""}` }, mark(shadow ? "shadow" : tone(name)), name, shadow ? h("span.vs", {}, "recorded only") : null);
}
export const by = (kind, text, shadow = false) => h("span.by", { class: `v-${kind}${shadow ? " v-shadow" : ""}` }, mark(shadow ? "shadow" : kind), text);
export const tag = (text, kind = "") => h("span.tag", { class: kind }, text);

export function bar(parts, label, height) {
  const shown = parts.filter((part) => part.value > 0), sum = shown.reduce((total, part) => total + part.value, 0) || 1;
  return h("div.stack", { role: "img", "aria-label": label, vars: height ? { h: height } : {} },
    shown.map((part) => h("i", { class: part.kind, title: `${part.name}: ${part.text ?? part.value}`, vars: { w: `${(part.value / sum) * 100}%` } })));
}

let timer = 0;
// Says something to people who listen; unless it is on the page already, also to those who look.
export function say(text, shown = true) {
  const el = document.getElementById("said");
  el.textContent = inert(text);
  el.classList.toggle("on", shown);
  clearTimeout(timer);
  timer = setTimeout(() => el.classList.remove("on"), 3600);
}
