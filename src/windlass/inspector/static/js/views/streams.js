// How replies were streamed: what came from the model, what went out, what was held back or taken back.
import { h, mark, tag } from "../dom.js";
import { count, plural, span } from "../format.js";
import { behind } from "../tabs.js";

export function streams(data) {
  const found = data.streams;
  if (!found.length) return h("section.empty", {}, h("h2", {}, "No streams were measured"), h("p", {}, "What came from the model and what went out is only counted for turns that are streamed by an agent that measures:"), h("pre.raw", {}, "agent = Agent(model, measure_hooks=True)\n\nasync with agent.stream(\"…\") as stream: …"), h("p.dim", {}, "windlass run, chat, serve and worker switch it on. Without it, the log knows the replies and which were rejected, but not their chunks."));
  const most = Math.max(...found.map((one) => Math.max(one.last_chunk ?? 0, one.last_sent ?? 0)), 1e-6), held = found.filter((one) => one.held).length, taken = found.filter((one) => one.retracted).length;
  const delays = found.filter((one) => one.first_chunk != null && one.first_sent != null).map((one) => one.first_sent - one.first_chunk).sort((a, b) => a - b);
  const x = (t) => `${((t ?? 0) / most) * 100}%`, wide = (a, b) => `${(Math.max(0, (b ?? 0) - (a ?? 0)) / most) * 100}%`;
  return [
    h("p.lede.first", {}, `${plural(found.length, "attempt")}: `, held ? h("span.v-ask", {}, mark("hold"), `${held} waited for a hook`) : "none waited for a hook", ", ", taken ? h("span.v-deny", {}, mark("deny"), `${taken} taken back`) : "none was taken back", delays.length ? `. In the median, the first word went out ${delays[Math.floor(delays.length / 2)] < 0.0005 ? "at once" : `${span(delays[Math.floor(delays.length / 2)])} after it came`}.` : ".", data.streams_of > found.length ? ` The last ${found.length} of ${data.streams_of} are shown.` : ""),
    h("section.card.streams", { "aria-label": "Streams" }, h("div.strm.sth", { "aria-hidden": "true" }, h("span", {}, "reply"), h("span.lanehead", {}, h("span", {}, "0"), h("span", {}, span(most))), h("span", {}, "chunks"), h("span", {}, "what happened")),
      found.map((one) => h("div.strm", {},
        h("span.which", {}, `${data.scope.session ? "" : `turn ${one.turn}, `}step ${one.step}`, one.round > 1 ? tag(`round ${one.round}`) : null, one.attempt > 1 ? tag(`attempt ${one.attempt}`) : null),
        h("span.stlane", { role: "img", "aria-label": `came from ${span(one.first_chunk)} to ${span(one.last_chunk)}, went out from ${span(one.first_sent)} to ${span(one.last_sent)}` },
          one.first_chunk != null ? h("i.came", { vars: { x: x(one.first_chunk), w: wide(one.first_chunk, one.last_chunk) } }) : null,
          one.first_sent != null && one.first_chunk != null && one.first_sent - one.first_chunk > most / 400 ? h("i.gap", { vars: { x: x(one.first_chunk), w: wide(one.first_chunk, one.first_sent) } }) : null,
          one.first_sent != null ? h("i.went", { class: one.retracted ? "void" : "", vars: { x: x(one.first_sent), w: wide(one.first_sent, one.last_sent) } }) : null),
        h("span.num", {}, count(one.chunks), h("span.dim", {}, ` in, ${count(one.sent)} out`)),
        h("span.what", {}, one.held ? h("span.v-ask", {}, mark("hold"), "held until judged") : null, one.retracted ? h("span.v-deny", {}, mark("deny"), `taken back: ${one.retracted}`) : null, one.sent ? null : h("span.dim", {}, "nothing went out"),
          (one.transforms ?? []).map((link) => h("span", {}, h("code", {}, link.name), h("span.dim", {}, link.chunks ? ` held at most ${plural(link.held, "character")}, took ${span(link.seconds)}` : " saw nothing"))))))),
    h("p.legend", {}, h("span", {}, h("i.came", {}), "came from the model"), h("span", {}, h("i.gap", {}), "held back"), h("span", {}, h("i.went", {}), "went out"), h("span", {}, h("i.went.void", {}), "went out, taken back")),
    behind("Streams", ["Turn", "Step", "Round", "Attempt", "Chunks in", "Characters", "Pieces out", "First chunk", "Last chunk", "First out", "Last out", "Held", "Taken back"], found.map((one) => [one.turn, one.step, one.round, one.attempt, one.chunks, one.characters, one.sent, span(one.first_chunk), span(one.last_chunk), span(one.first_sent), span(one.last_sent), one.held ? "yes" : "no", one.retracted || "no"])),
  ];
}
