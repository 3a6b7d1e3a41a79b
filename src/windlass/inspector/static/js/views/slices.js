// A long text that comes in slices: the first at once, the others on demand.
import { get } from "../api.js";
import { h } from "../dom.js";
import { count } from "../format.js";

export function slices(path, label) {
  const text = h("pre.raw", { tabIndex: 0, "aria-label": label }, "…"), more = h("button.btn", { type: "button", on: { click: () => load() } }, "Show more");
  const size = h("span.dim", {});
  more.hidden = true;
  let next = 0;
  const load = async () => {
    const from = next, part = await get(`${path}?offset=${from}`).catch((error) => ({ text: error.message, next: null, total: 0 }));
    if (!from) text.replaceChildren();
    text.append(part.text);
    next = part.next;
    more.hidden = next === null;
    size.textContent = next === null ? "" : ` ${count(next)} of ${count(part.total)} characters`;
  };
  load();
  return [text, h("p.more", {}, more, size)];
}
