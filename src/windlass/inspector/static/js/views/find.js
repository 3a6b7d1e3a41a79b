// Find in a turn: the server looks into all rows and whole texts; what is drawn of the matches is marked.
import { h } from "../dom.js";

export class Find {
  // `search` gives the ids of rows with a text, in order; `go` selects one; `box` holds the rows that are drawn.
  constructor({ search, go, box, leave }) {
    Object.assign(this, { search, go, box, leave, found: [], at: -1, timer: 0, asked: 0 });
    this.field = h("input", { type: "search", placeholder: "Find in this turn", "aria-label": "Find in this turn", spellcheck: false, on: { input: () => this.later(), keydown: (event) => this.key(event) } });
    this.told = h("span.dim.num", { role: "status" });
    const button = (text, label, run) => h("button.quiet", { type: "button", "aria-label": label, title: label, on: { click: run } }, text);
    this.el = h("div.find", { role: "search", "aria-label": "In this turn" }, this.field, this.told, button("↑", "Previous match", () => this.step(-1)), button("↓", "Next match", () => this.step(1)), button("✕", "Close", () => this.close()));
    this.el.hidden = true;
  }
  open() { this.el.hidden = false; this.field.focus(); this.field.select(); }
  close() { clearTimeout(this.timer); this.el.hidden = true; this.found = []; this.at = -1; this.asked += 1; this.field.value = ""; this.told.textContent = ""; this.paint(); this.leave(); }
  key(event) {
    if (event.key === "Enter") { event.preventDefault(); if (this.timer) this.look(); else this.step(event.shiftKey ? -1 : 1); }
    else if (event.key === "Escape") { event.preventDefault(); event.stopPropagation(); this.close(); }
  }
  later() { clearTimeout(this.timer); this.timer = setTimeout(() => this.look(), 200); }
  async look() {
    clearTimeout(this.timer);
    this.timer = 0;
    const mine = ++this.asked, text = this.field.value.trim();
    const found = text ? await this.search(text).catch(() => []) : [];
    if (mine !== this.asked) return;
    this.found = found; this.at = -1;
    this.told.textContent = !text ? "" : found.length ? "" : "no match";
    if (found.length) this.step(1); else this.paint();
  }
  step(by) {
    if (!this.found.length) return;
    this.at = (this.at + by + this.found.length) % this.found.length;
    this.told.textContent = `${this.at + 1} of ${this.found.length}`;
    this.go(this.found[this.at]);
    this.paint();
  }
  has(id) { return this.found.includes(id); }
  // Marks the text itself, without changing the page; browsers that cannot do this still lead to the rows.
  paint() {
    if (!globalThis.CSS?.highlights) return;
    CSS.highlights.delete("found");
    const text = this.field.value.trim().toLowerCase();
    if (this.el.hidden || !text || !this.found.length) return;
    const ranges = [], walk = document.createTreeWalker(this.box, NodeFilter.SHOW_TEXT);
    for (let node = walk.nextNode(); node && ranges.length < 500; node = walk.nextNode()) {
      const words = node.data.toLowerCase();
      for (let from = words.indexOf(text); from >= 0; from = words.indexOf(text, from + text.length)) {
        const range = new Range();
        range.setStart(node, from);
        range.setEnd(node, Math.min(from + text.length, node.length));
        ranges.push(range);
      }
    }
    CSS.highlights.set("found", new Highlight(...ranges));
  }
}
