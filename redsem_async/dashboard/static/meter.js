// Use and line in one small picture: a cell for each permit, a dot for each waiting request. And what is left of a rate.

import { el, number, plural, setAttribute } from "./dom.js";

const CELLS = 40; // a higher limit is drawn as one bar
const DOTS = 12;

export function meter() {
  return el("div", { class: "meter", role: "img" }, el("span", { class: "track" }), el("span", { class: "dots" }));
}

export function updateMeter(element, { held, limit, waiting }) {
  const drawn = [held, limit, waiting].join();
  if (element.dataset.drawn === drawn) return;
  element.dataset.drawn = drawn;
  const [track, dots] = element.children;
  const size = Math.max(limit ?? 0, held);
  track.className = size === 0 ? "track none" : size <= CELLS ? "track" : "track bar";
  if (size <= CELLS) {
    track.style.setProperty("--n", size);
    cells(track, size, (cell, place) => {
      cell.className = place >= held ? "" : limit !== null && place >= limit ? "on beyond" : "on";
    });
  } else {
    cells(track, 1, (cell) => {
      cell.className = "on";
      cell.style.setProperty("--share", held / size);
    });
  }
  dots.style.setProperty("--w", Math.min(waiting, DOTS));
  dots.classList.toggle("many", waiting > DOTS);
  const line = waiting ? `, ${plural(waiting, "request waits", "requests wait")}` : "";
  const of = limit === null ? "" : ` of ${limit}`;
  setAttribute(element, "aria-label", `${held}${of} permits in use${line}`);
}

export function balance() {
  return el("div", { class: "meter", role: "img" }, el("span", { class: "balance" }, el("i")));
}

/** What is left of the burst, or a debt, which begins in the middle: it fills the left half if it is beyond measure. */
export function updateBalance(element, { name, available, burst }) {
  const [bar] = element.children;
  const size = burst + Math.max(0, -available);
  bar.classList.toggle("debt", available < 0);
  bar.style.setProperty("--zero", available < 0 ? 0.5 : 0);
  bar.style.setProperty("--share", available < 0 ? -available / size / 2 : available / size);
  const left = available < 0 ? `in debt by ${number(-available)}` : `${number(available)} of ${number(burst)} available`;
  setAttribute(element, "aria-label", `${name}: ${left}`);
}

function cells(track, count, update) {
  while (track.children.length > count) track.lastElementChild.remove();
  while (track.children.length < count) track.append(el("i"));
  for (let place = 0; place < count; place += 1) update(track.children[place], place);
}
