// A list of many rows of which only those near the window exist. The page scrolls; heights are measured when rows are drawn.
const MORE = 600;

export class VirtualList {
  constructor(box, { key, estimate, render }) {
    Object.assign(this, { box, key, estimate, render, items: [], heights: new Map(), nodes: new Map(), tops: new Float64Array(1), stale: true, asked: 0 });
    this.onScroll = () => this.ask();
    addEventListener("scroll", this.onScroll, { passive: true });
    addEventListener("resize", this.onScroll);
    this.observer = new ResizeObserver(() => { if (this.width !== this.box.clientWidth) { this.width = this.box.clientWidth; this.heights.clear(); this.stale = true; this.ask(); } });
    this.observer.observe(box);
  }
  close() { removeEventListener("scroll", this.onScroll); removeEventListener("resize", this.onScroll); this.observer.disconnect(); cancelAnimationFrame(this.asked); }
  ask() { if (!this.asked) this.asked = requestAnimationFrame(() => { this.asked = 0; this.draw(); }); }
  set(items) { this.items = items; this.stale = true; this.draw(); }
  refresh(keys) { for (const key of keys) { this.nodes.get(key)?.remove(); this.nodes.delete(key); this.heights.delete(key); } this.stale = true; this.draw(); }
  redraw() { for (const node of this.nodes.values()) node.remove(); this.nodes.clear(); this.stale = true; this.draw(); }

  place() {
    const tops = new Float64Array(this.items.length + 1);
    for (let i = 0; i < this.items.length; i += 1) tops[i + 1] = tops[i] + (this.heights.get(this.key(this.items[i])) ?? this.estimate(this.items[i]));
    this.tops = tops; this.stale = false;
  }
  index(y) {
    let low = 0, high = this.items.length;
    while (low < high) { const middle = (low + high) >> 1; if (this.tops[middle + 1] <= y) low = middle + 1; else high = middle; }
    return Math.min(low, Math.max(0, this.items.length - 1));
  }
  draw(again = 0) {
    if (!this.box.isConnected) return;
    if (this.stale) this.place();
    const y = -this.box.getBoundingClientRect().top, first = this.index(Math.max(0, y - MORE)), last = this.index(Math.max(0, y + innerHeight + MORE));
    const anchor = this.index(Math.max(0, y)), before = this.tops[anchor];
    const wanted = new Set(), nodes = [];
    for (let i = first; i <= last && i < this.items.length; i += 1) {
      const key = this.key(this.items[i]);
      wanted.add(key);
      let node = this.nodes.get(key);
      if (!node) { node = this.render(this.items[i], i); this.nodes.set(key, node); }
      nodes.push(node);
    }
    for (const [key, node] of this.nodes) if (!wanted.has(key)) { node.remove(); this.nodes.delete(key); }
    let next = this.box.firstChild;
    for (const node of nodes) { if (node === next) next = next.nextSibling; else this.box.insertBefore(node, next); }
    this.box.style.paddingTop = `${this.tops[first]}px`;
    this.box.style.paddingBottom = `${Math.max(0, this.tops[this.items.length] - this.tops[Math.min(last + 1, this.items.length)])}px`;
    let changed = false;
    nodes.forEach((node, i) => { const key = this.key(this.items[first + i]), height = node.getBoundingClientRect().height; if (Math.abs((this.heights.get(key) ?? -1) - height) > 0.4) { this.heights.set(key, height); changed = true; } });
    if (changed && again >= 6) { this.stale = true; this.ask(); }
    else if (changed) {
      this.place();
      const moved = this.tops[anchor] - before;
      if (y > 0 && Math.abs(moved) > 0.5) scrollBy(0, moved);
      this.draw(again + 1);
    }
    this.onDraw?.(this.index(Math.max(0, y + 90)), this.index(Math.max(0, y + innerHeight)));
  }
  node(item) { return this.nodes.get(this.key(item)); }
  show(index, { center = false } = {}) {
    if (index < 0 || index >= this.items.length) return;
    for (let round = 0; round < 5; round += 1) { // heights above become known on the way
      if (this.stale) this.place();
      const top = this.box.getBoundingClientRect().top + scrollY + this.tops[index], height = this.tops[index + 1] - this.tops[index], room = innerHeight - 110;
      const to = center ? top - innerHeight / 3 : top < scrollY + 90 ? top - 90 : top + height > scrollY + innerHeight - 20 ? Math.min(top - 90, top + Math.min(height, room) - innerHeight + 20) : scrollY;
      const before = scrollY;
      if (Math.abs(to - scrollY) > 1) scrollTo(0, to);
      this.draw();
      center &&= round < 2;
      if (round && scrollY === before && this.node(this.items[index])) return;
    }
  }
}
