// Blame down to the sentence: click one, and see who put it there, when, and what stood there before.
import { h, mark, say } from "../dom.js";
import { short } from "../format.js";
import { words } from "./panel.js";

const MOST = 400;
// Sentences and lines; what is between them stays with the one before it, so that together they are the text.
export function split(text) {
  const found = text.split(/(?<=[.!?])(?=\s)|(?<=\n)/);
  return found.length <= MOST ? found : [text];
}
// The sources of a part come latest first: a rewrite, what it changed, and so on to the one who wrote it first.
export function sourceOf(sources, sentence) {
  const bare = sentence.trim();
  let found = 0;
  for (let at = 0; at < sources.length; at += 1) if (sources[at].text.includes(bare)) found = at;
  return found;
}

let open = null, picked = null;  // one sentence at a time

export function sentences(part) {
  const box = h("div.x", {}), sources = part.source;
  const close = () => { open?.remove(); open = null; picked?.setAttribute("aria-pressed", "false"); picked = null; };
  const pick = (el, sentence, at) => {
    const same = picked === el;
    close();
    if (same) return;
    picked = el;
    el.setAttribute("aria-pressed", "true");
    open = guilt(sources, at, sentence);
    el.after(open);
    say(open.querySelector("p").textContent, false);
  };
  for (const piece of split(part.text)) {
    const sentence = piece.trimStart(), before = piece.slice(0, piece.length - sentence.length);
    if (before) box.append(before);
    if (!sentence) continue;
    const at = sourceOf(sources, sentence), kind = sources[at].rewrote ? " by-hook" : "";
    const el = h(`span.sent${kind ? ".by-hook" : ""}`, { role: "button", tabIndex: 0, "aria-pressed": "false", on: { click: () => pick(el, sentence, at), keydown: (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); event.stopPropagation(); pick(el, sentence, at); } } } }, sentence);
    box.append(el);
  }
  return box;
}

function guilt(sources, at, sentence) {
  const one = sources[at], base = one.rewrote ? sources[at + 1] : null;
  return h("div.guilt", {},
    h("p", {}, one.hook ? [mark(one.rewrote ? "changed" : "inject"), " ", h("b", {}, one.hook), one.rewrote ? ` changed this at ${one.event}` : ` put this here${one.event ? ` at ${one.event}` : ""}`] : [h("b", {}, one.by || "the agent"), ` ${one.what}`], one.number ? h("span.dim", {}, `, record ${one.number}`) : h("span.dim", {}, ", when the agent was made")),
    base ? h("p.diffed", {}, words(base.text, one.text)) : one.rewrote ? h("p.dim", {}, "What stood there before is not in the log.") : null,
    at < sources.length - 1 && !base ? h("p.dim", {}, "Hooks changed other sentences of this text later.") : null,
    !one.rewrote && at === sources.length - 1 && sources.length === 1 ? h("p.dim", {}, `No hook changed it since: “${short(sentence.trim(), 80)}”`) : null);
}
