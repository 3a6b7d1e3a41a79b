// Which gate looks at which tool: as the agent is set up, and as it happened. An effect that nobody looks at says so.
import { by, h, mark } from "../dom.js";
import { count, plural } from "../format.js";

const risky = (row) => row.bare && !row.agent;
const WORDS = { always: "asked about every call", maybe: "asked about some calls, by a condition", no: "not asked", unknown: "not known from the log" };
const SAYS = { deny: "refused", error: "failed", ask: "asked a person", changed: "changed it", inject: "added something", allow: "allowed", shadow: "recorded only" };

// The short form, beside the rail.
export function seen(data) {
  const { gates, tools, vendor } = data.coverage;
  if (!tools.length && !vendor.length) return h("p.dim", {}, "This agent has no tools, and none was called.");
  return h("table.cov", {}, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "tool"), h("th", { scope: "col" }, "effect"), h("th.num", { scope: "col" }, "calls"), h("th", { scope: "col" }, "seen by"))),
    h("tbody", {}, tools.slice(0, 40).map((row) => {
      const looks = gates.map((gate, at) => ({ gate, cell: row.cells[at] })).filter(({ cell }) => cell.planned === "always" || cell.planned === "maybe" || cell.spoke);
      return h("tr", { class: risky(row) ? "bare" : "" }, h("td", {}, h("code", {}, row.name)), h("td.dim", {}, row.agent ? "agent" : row.effect || "–"), h("td.num", {}, count(row.calls)),
        h("td", {}, looks.map(({ gate, cell }) => by(gate.verb === "rewrite" ? "changed" : gate.verb === "shadow gate" ? "silent" : "ask", `${gate.name}${cell.planned === "maybe" ? " (some)" : ""}`, gate.verb === "shadow gate")), row.gated ? null : nobody(row, data)));
    }), vendor.map((one) => h("tr.bare", {}, h("td", {}, h("code", {}, one.name)), h("td.dim", {}, "vendor"), h("td.num", {}, count(one.calls)), h("td", {}, h("span.nogate", {}, mark("error"), "not mediated"))))));
}
function nobody(row, data) {
  if (!data.coverage.static && !data.coverage.gates.length && !row.bare) return h("span.nogate", {}, "not known");
  return h("span.nogate", {}, risky(row) ? mark("error") : null, data.unmatched && data.unmatched !== "allow" ? `unmatched: ${data.unmatched}` : "no gate");
}

export function coverage(data) {
  const { gates, tools, others, vendor } = data.coverage, bare = tools.filter(risky);
  if (!tools.length && !vendor.length) return h("section.empty", {}, h("h2", {}, "No tools"), h("p", {}, "This agent has no tools, and none was called. As soon as it has some, this matrix says which gate looks at which of them."));
  return [
    h("p.lede.first", {}, bare.length ? [h("span.nogate.v-error", {}, mark("error"), h("b", {}, bare.map((row) => row.name).join(", "))), bare.length > 1 ? " are unsafe, and no gate looks at them." : " is unsafe, and no gate looks at it."] : "Every unsafe tool has a gate that looks at it.", vendor.length ? h("span.v-error", {}, ` ${plural(vendor.reduce((all, one) => all + one.calls, 0), "call")} of a vendor's own tools passed no gate.`) : ""),
    h("div.scroll.card", { tabIndex: 0, role: "region", "aria-label": "Tools and gates" }, h("table.matrix", {},
      h("caption.vh", {}, "For each tool and gate: whether the gate is asked about it, and what it said"),
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "tool"), h("th", { scope: "col" }, "effect"), h("th.num", { scope: "col" }, "calls"), h("th.num", { scope: "col" }, "refused"), gates.map((gate) => h("th.gate", { scope: "col" }, h("span", {}, gate.name), h("small", {}, gate.gone ? "other version" : gate.verb))), h("th", { scope: "col" }, "mediation"))),
      h("tbody", {}, tools.map((row) => h("tr", { class: risky(row) ? "bare" : "" }, h("th", { scope: "row" }, h("code", {}, row.name), row.offered || !data.known ? null : h("small", {}, "not in this version")), h("td.dim", {}, row.agent ? "agent" : row.effect || "not known"), h("td.num", {}, count(row.calls)), h("td.num", {}, row.refused ? h("span.v-deny", {}, count(row.refused)) : h("span.dim", {}, "0")),
        row.cells.map((cell, at) => h("td.cell", { class: `p-${cell.planned}` }, matrixCell(cell, gates[at]))),
        h("td", {}, row.gated ? h("span.dim", {}, row.ran ? (row.unanswered ? `${row.unanswered} of ${row.ran} ran unanswered` : "every call was answered") : row.calls ? "none ran" : "not called") : nobody(row, data)))),
      vendor.map((one) => h("tr.bare", {}, h("th", { scope: "row" }, h("code", {}, one.name)), h("td.dim", {}, "vendor"), h("td.num", {}, count(one.calls)), h("td.num", {}, h("span.dim", {}, "0")), gates.map(() => h("td.cell.p-no", {}, h("i.slot.p-no", {}), h("span.vh", {}, "cannot see it"))), h("td", {}, h("span.nogate", {}, mark("error"), "not mediated"))))))),
    h("p.legend", {}, h("span", {}, h("i.slot.p-always", {}), "asked about every call"), h("span", {}, h("i.slot.p-maybe", {}), "about some, by a condition"), h("span", {}, h("i.slot.p-no", {}), "not asked"), h("span.dim", {}, "A number is how often it answered. A gate that is asked and stays silent lets the call pass.")),
    h("section.card.two", {}, h("h2", {}, "Other ways out"), h("table.plain-table", {}, h("thead", {}, h("tr", {}, ["what leaves", "times", "seen at ModelCalling by"].map((name, at) => h(at === 1 ? "th.num" : "th", { scope: "col" }, name)))), h("tbody", {}, others.map((one) => h("tr", {}, h("th", { scope: "row" }, one.name), h("td.num", {}, count(one.calls)), h("td", {}, one.seen.length ? one.seen.map((name) => by("changed", name)) : data.known ? h("span.dim", {}, "no hook") : h("span.dim", {}, "not known"))))))),
  ];
}
function matrixCell(cell, gate) {
  const icon = cell.tone ? mark({ inject: "inject" }[cell.tone] ?? cell.tone, SAYS[cell.tone]) : null;
  return [h("span.vh", {}, `${gate.name}: ${WORDS[cell.planned]}. `), cell.spoke ? h("span", { class: `v-${{ inject: "changed", shadow: "silent" }[cell.tone] ?? cell.tone}` }, icon, count(cell.spoke)) : h("i.slot", { class: `p-${cell.planned}` })];
}
