// The effect ledger of the whole store: calls whose outcome no log has, and what would happen to each of them now.
import { h, mark, tag } from "../dom.js";
import { ago, plural, short } from "../format.js";

export function effects(data) {
  const found = data.more;
  if (!found) return h("p.dim", {}, "…");
  const risky = found.rows.filter((row) => row.risk).length;
  if (!found.rows.length) return h("section.empty", {}, mark("allow"), h("h2", {}, "Nothing is in doubt"), h("p", {}, `In ${plural(found.sessions, "session")} every call that began has an outcome in the log. If a process were killed now, nothing would run twice.`), found.missing ? h("p.dim", {}, `${plural(found.missing, "session")} still to be read`) : null);
  return [
    h("p.lede.first", {}, `${plural(found.of, "call")} of all sessions without an outcome: `, risky ? h("span.v-error", {}, mark("error"), h("b", {}, `${risky} in doubt`)) : "none is in doubt", ", the others wait or would run again safely.", found.missing ? h("span.dim", {}, ` ${plural(found.missing, "session")} still to be read.`) : ""),
    h("div.scroll.card", { tabIndex: 0, role: "region", "aria-label": "Calls without an outcome" }, h("table.plain-table.fates", {}, h("thead", {}, h("tr", {}, ["call", "session", "effect", "so far", "if it were killed now, or is resumed"].map((name) => h("th", { scope: "col" }, name)))),
      h("tbody", {}, found.rows.map((row) => h("tr", { class: row.risk ? "bare" : "" },
        h("th", { scope: "row" }, h("code", {}, row.name), row.attempts > 1 ? tag(`attempt ${row.attempts}`) : null, h("small", {}, short(row.arguments, 90))),
        h("td", {}, h("a", { href: `#/turn/${encodeURIComponent(row.session)}/${row.turn}` }, h("code", {}, row.session)), h("small", {}, row.agent)),
        h("td", {}, row.child ? "agent" : row.effect || "not known"),
        h("td", {}, row.status === "interrupted" ? "interrupted" : row.called ? (row.live ? h("span.on", {}, "running now") : "started, no receipt") : row.waits ? h("span.v-ask", {}, mark("ask"), " waits for a person") : "not started", row.t0 ? h("small", {}, ago(row.t0, found.now)) : null),
        h("td", { class: row.risk ? "risk" : "" }, row.risk ? mark("error") : null, " ", row.fate)))))),
    found.of > found.rows.length ? h("p.dim", {}, `${found.of - found.rows.length} more are not shown`) : null,
    h("p.legend", {}, h("span.dim", {}, "An intent is recorded before a tool runs, and its result after. A call with the one and not the other is in doubt: an unsafe one is never repeated by itself, and its agent reads that the outcome is unknown.")),
  ];
}
