// A line over the last minutes, from the readings that the server has kept.

import { duration, number, short, svg } from "./dom.js";

const SHORTEST = 30; // seconds that a chart spans at least
const PAD = { left: 46, right: 8, top: 10, bottom: 20 };

/** Draws one value of a history. A limit comes with the limit in force of back-offs. */
export class Chart {
  constructor(element, readout, value, limit) {
    Object.assign(this, { element, readout, value, limit, points: [], events: [], pointer: null });
    new ResizeObserver(() => this.draw()).observe(element);
    element.addEventListener("pointermove", (event) => {
      this.pointer = event.offsetX;
      this.draw();
    });
    element.addEventListener("pointerleave", () => {
      this.pointer = null;
      this.draw();
    });
  }

  /** Points are [time, held, limit, waiting, in force], with only a time where a gap begins. */
  show(points, events) {
    this.points = points.map(([at, held, limit, waiting, inForce]) => ({ at, held, limit, waiting, inForce }));
    this.events = events;
    this.draw();
  }

  get read() {
    return this.points.filter((point) => point.held !== null);
  }

  draw() {
    const { points } = this;
    const width = this.element.clientWidth;
    const height = this.element.clientHeight;
    if (!points.length || width < 50) return;
    const end = points.at(-1).at;
    const covered = end - points[0].at;
    const span = Math.max(SHORTEST, covered);
    const values = points.map(this.value);
    const known = this.read.map(this.value);
    const limits = this.limit ? points.map(this.limit) : [];
    const scale = ceiling(Math.max(1, ...known, ...limits.filter((limit) => limit !== null)));
    const x = (at) => PAD.left + (1 - (end - at) / span) * (width - PAD.left - PAD.right);
    const y = (value) => PAD.top + (1 - value / scale.top) * (height - PAD.top - PAD.bottom);
    const parts = [grid(scale, y, width), ...axis(span, x, end, width, height)];
    for (const [at, kind] of this.events) {
      if (at < end - span) continue;
      const place = x(Math.min(at, end)); // an outage begins after the last reading
      parts.push(svg("line", { class: `mark ${kind}`, x1: place, x2: place, y1: PAD.top - 4, y2: y(0) }));
    }
    const times = points.map((point) => point.at);
    for (const path of steps(times, limits, x, y)) {
      parts.push(svg("path", { class: "limit", d: path.line }));
    }
    for (const path of steps(times, values, x, y)) {
      parts.push(svg("path", { class: "area", d: `${path.line} L${path.end} ${y(0)} L${path.start} ${y(0)} Z` }));
      parts.push(svg("path", { class: "line", d: path.line }));
    }
    for (const path of this.limit ? steps(times, points.map((point) => point.inForce), x, y) : []) {
      parts.push(svg("path", { class: "in-force", d: path.line }));
    }
    parts.push(svg("circle", { class: "now", cx: x(end), cy: y(values.at(-1)), r: 3.5 }));
    this.readout.textContent = this.readAt(x, parts, y);
    this.element.replaceChildren(
      svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, "aria-hidden": "true" }, ...parts),
    );
    const low = Math.min(...known);
    const high = Math.max(...known);
    const what = `now ${number(values.at(-1))}, lowest ${number(low)}, highest ${number(high)} in ${duration(covered)}`;
    this.element.setAttribute("aria-label", `${this.element.dataset.what}: ${what}`);
  }

  /** The numbers under the pointer, or the highest. */
  readAt(x, parts, y) {
    const points = this.read;
    if (this.pointer === null) {
      return `highest ${number(Math.max(...points.map(this.value)))}`;
    }
    let nearest = points[0];
    for (const point of points) {
      if (Math.abs(x(point.at) - this.pointer) < Math.abs(x(nearest.at) - this.pointer)) nearest = point;
    }
    const at = x(nearest.at);
    parts.push(svg("line", { class: "cursor", x1: at, x2: at, y1: PAD.top, y2: y(0) }));
    parts.push(svg("circle", { class: "now", cx: at, cy: y(this.value(nearest)), r: 3.5 }));
    const limit = this.limit?.(nearest);
    const most = limit === null || limit === undefined ? "" : ` of ${number(limit)}`;
    const of = limit !== undefined && nearest.inForce !== null ? ` of ${number(nearest.inForce)} in force${most}` : most;
    return `${number(this.value(nearest))}${of}, ${duration(points.at(-1).at - nearest.at)} ago`;
  }
}

/** The paths of a stepped line, with gaps where there is no value. */
function steps(times, values, x, y) {
  const paths = [];
  let path = null;
  for (const [at, value] of values.entries()) {
    if (value === null) path = null;
    if (value === null) continue;
    const here = x(times[at]).toFixed(1);
    const level = y(value).toFixed(1);
    if (path === null) {
      path = { start: here, end: here, line: `M${here} ${level}` };
      paths.push(path);
    } else {
      path.line += ` H${here} V${level}`;
      path.end = here;
    }
  }
  return paths;
}

/** A round number above *value*, or at it, and into how many whole parts a grid divides it. */
function ceiling(value) {
  for (let power = 1; ; power *= 10) {
    for (const [step, parts] of [[1, 1], [2, 2], [3, 3], [4, 2], [5, 1], [6, 3], [8, 4], [10, 2]]) {
      const top = step * power;
      if (top >= value * 1.05 || (top === value && value <= 2)) {
        return { top, parts: power > 1 && step === 1 ? 2 : power > 1 && step === 5 ? 5 : parts };
      }
    }
  }
}

function grid({ top, parts }, y, width) {
  const group = svg("g", { class: "grid" });
  for (let part = 0; part <= parts; part += 1) {
    const value = (top * part) / parts;
    group.append(
      svg("line", { x1: PAD.left, x2: width - PAD.right, y1: y(value), y2: y(value) }),
      svg("text", { x: PAD.left - 6, y: y(value) + 4, "text-anchor": "end" }, short(value)),
    );
  }
  return group;
}

function axis(span, x, end, width, height) {
  const minutes = span >= 90; // then no tick is in seconds
  const every = [10, 15, 30, 60, 120, 300].find((step) => span / step <= Math.max(2, width / 110) && (!minutes || step >= 30)) ?? 300;
  const parts = [];
  for (let ago = 0; ago <= span; ago += every) {
    const at = x(end - ago);
    if (at < PAD.left + 18) break;
    const text = ago === 0 ? "now" : minutes ? `−${ago / 60} min` : `−${ago} s`;
    const anchor = ago === 0 ? "end" : "middle";
    parts.push(svg("text", { class: "tick", x: at, y: height - 5, "text-anchor": anchor }, text));
  }
  return parts;
}
