// A list of tabs: arrow keys, Home and End move, and the chosen tab says which panel it belongs to.
import { h } from "./dom.js";

export function tabs(names, current, label, choose, panel = "tab-panel") {
  const buttons = names.map(([id, name, count]) => h("button", { type: "button", role: "tab", id: `tab-${id}`, "aria-controls": panel, "aria-selected": String(id === current), tabIndex: id === current ? 0 : -1, on: { click: () => choose(id) } }, name, count ? h("span.c", {}, count) : null));
  const move = (event) => {
    const at = buttons.indexOf(document.activeElement), last = buttons.length - 1;
    const to = { ArrowRight: at === last ? 0 : at + 1, ArrowLeft: at <= 0 ? last : at - 1, Home: 0, End: last }[event.key];
    if (to === undefined || at < 0) return;
    event.preventDefault();
    event.stopPropagation();
    choose(names[to][0]);
    document.getElementById(`tab-${names[to][0]}`)?.focus();
  };
  return h("div.subtabs", { role: "tablist", "aria-label": label, on: { keydown: move } }, buttons);
}

// The same as a chart, as a table: for those who cannot see the chart, and for exact figures.
export function behind(what, heads, rows) {
  if (!rows.length) return null;
  return h("details.behind", {}, h("summary", {}, `${what} as a table`), h("div.scroll", { tabIndex: 0, role: "region", "aria-label": `${what} as a table` }, h("table.plain-table", {}, h("thead", {}, h("tr", {}, heads.map((name) => h("th", { scope: "col" }, name)))), h("tbody", {}, rows.map((row) => h("tr", {}, row.map((cell, at) => (at ? h("td", {}, cell ?? "–") : h("th", { scope: "row" }, cell ?? "–")))))))));
}
