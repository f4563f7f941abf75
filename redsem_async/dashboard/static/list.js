// The list of all semaphores.

import { byId, duration, el, number, plural, printable, reconcile, say, setText } from "./dom.js";
import { connect } from "./live.js";
import { meter, updateMeter } from "./meter.js";

const STEP = 50;
const MOST = 500; // as the server has it
const filter = byId("filter");
const body = byId("rows");
let rows = STEP;
let held = false; // the pointer or the focus is in the table: rows keep their places
let order = [];

function start() {
  const query = new URLSearchParams({ filter: filter.value, rows });
  connect(`events?${query}`, show);
}

function show(view) {
  setText(byId("total"), number(view.total));
  setText(byId("held"), number(view.held));
  setText(byId("waiting"), number(view.waiting));
  const kinds = Object.entries(view.attention);
  const attention = kinds.reduce((sum, [, count]) => sum + count, 0);
  setText(byId("attention"), number(attention));
  const why = kinds.map(([kind, count]) => plural(count, kind, kind === "long wait" ? "long waits" : kind).replaceAll(" ", "\u00a0"));
  setText(byId("attention-what"), `${attention === 1 ? "needs" : "need"} attention${attention ? `: ${why.join(", ")}` : ""}`);
  document.body.classList.toggle("troubled", attention > 0);
  document.body.classList.toggle("contended", view.waiting > 0);
  say(byId("note"), note(view));
  byId("unused").hidden = !view.complete || view.total > 0 || Boolean(view.refusal);
  byId("unmatched").hidden = !view.complete || view.total === 0 || view.matched > 0;
  byId("list").hidden = view.matched === 0;
  reconcile(body, ordered(view.rows), (row) => row.name, makeRow, updateRow);
  byId("more").hidden = view.matched <= view.rows.length || rows >= MOST;
}

function note(view) {
  if (!view.complete && !view.outage) return `reading … ${plural(view.total, "name", "names")} so far`;
  if (view.matched === 0) return "";
  const shown = view.rows.length;
  const which = plural(view.matched, filter.value ? "name matches" : "semaphore in use", filter.value ? "names match" : "semaphores in use");
  const others = shown >= MOST ? " (the filter finds the others)" : "";
  const part = shown < view.matched ? `, the first ${number(shown)} are shown${others}` : "";
  const round = view.round > 3 ? `. Names that are not shown are read every ${duration(view.round)}` : "";
  return `${which}${part}, problems and long waits first${round}.`;
}

function ordered(fresh) {
  if (!held) {
    order = fresh.map((row) => row.name);
    return fresh;
  }
  const places = new Map(order.map((name, place) => [name, place]));
  const place = (row) => places.get(row.name) ?? order.length;
  return [...fresh].sort((one, other) => place(one) - place(other));
}

function cell(label, ...children) {
  return el("td", { role: "cell", "data-label": label }, ...children);
}

function makeRow(row) {
  const link = el("a", { href: `semaphore?${new URLSearchParams({ name: row.name })}` }, printable(row.name));
  return el(
    "tr",
    { role: "row" },
    el("th", { role: "rowheader", scope: "row" }, link, el("span", { class: "kind" })),
    cell("", meter()),
    cell("in use"),
    cell("waiting"),
    cell("oldest wait"),
    el("td", { role: "cell" }, el("span", { class: "pill" }), el("span", { class: "kind" })),
  );
}

function updateRow(element, row) {
  const [name, use, inUse, waiting, oldest, state] = element.children;
  element.dataset.state = row.state;
  element.dataset.attention = row.attention ?? "";
  setText(name.lastElementChild, row.class ?? "");
  const pill = state.firstElementChild;
  setText(pill, row.state);
  setText(state.lastElementChild, printable(row.who));
  state.title = printable(row.words);
  if (row.held === undefined) {
    for (const empty of [inUse, waiting, oldest]) {
      setText(empty, "?");
      empty.classList.add("none");
    }
    return;
  }
  updateMeter(use.firstElementChild, row);
  const declared = row.declared.map(number).join(" or ");
  const limit = row.setLimit === null ? declared || "?" : number(row.setLimit);
  setText(inUse, `${number(row.held)} / ${limit}`);
  inUse.classList.toggle("set", row.setLimit !== null);
  inUse.title = row.setLimit === null ? "" : `set limit; clients declare ${declared || "none"}`;
  inUse.classList.remove("none");
  for (const td of [waiting, oldest]) td.classList.toggle("none", !row.waiting);
  setText(waiting, row.waiting ? number(row.waiting) : "–");
  setText(oldest, row.oldest === null ? "–" : duration(row.oldest));
}

// -- the filter, and keys

let timer = 0;
filter.addEventListener("input", () => {
  clearTimeout(timer);
  timer = setTimeout(() => {
    rows = STEP;
    history.replaceState(null, "", filter.value ? `#${encodeURIComponent(filter.value)}` : "./");
    start();
  }, 120);
});

document.addEventListener("keydown", (event) => {
  if (event.key === "/" && document.activeElement !== filter) {
    event.preventDefault();
    filter.focus();
    filter.select();
  } else if (event.key === "Escape" && document.activeElement === filter && filter.value) {
    filter.value = "";
    filter.dispatchEvent(new Event("input"));
  }
});

byId("unfilter").addEventListener("click", () => {
  filter.value = "";
  filter.dispatchEvent(new Event("input"));
  filter.focus();
});

byId("more").addEventListener("click", () => {
  rows += STEP;
  start();
});

const keep = () => {
  held = body.matches(":hover") || body.contains(document.activeElement);
};
for (const event of ["pointerenter", "pointerleave", "focusin", "focusout"]) {
  body.addEventListener(event, () => setTimeout(keep));
}

try {
  filter.value = decodeURIComponent(location.hash.slice(1));
} catch {
  filter.value = "";
}
start();
