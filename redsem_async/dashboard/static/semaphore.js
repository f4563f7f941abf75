// One semaphore in full.

import { askLimit, askRevoke, may, showActions } from "./changes.js";
import { Chart } from "./chart.js";
import { byId, clientName, clientPlace, clock, duration, el, headline, number, plural, printable, reconcile, say, setAttribute, setText } from "./dom.js";
import { announce, connect } from "./live.js";
import { balance, meter, updateBalance, updateMeter } from "./meter.js";

const { title } = document.body.dataset;
const name = new URLSearchParams(location.search).get("name"); // as it is: markup loses line ends
const MOST_CELLS = 120;
const DOTS = 24;
const ROWS = 12; // of a table, until all are asked for

const places = new Map(); // permit -> its cells
let state = "";
let last = null; // reading
let ids = false; // whether tables show the ids of permits and requests
let told = Infinity; // time of the last event that was announced

for (const [id, what] of [["use-chart", "Permits in use"], ["wait-chart", "Requests that wait"]]) {
  byId(id).dataset.what = what;
}
const charts = [
  new Chart(byId("use-chart"), byId("use-readout"), (point) => point.held, (point) => point.limit),
  new Chart(byId("wait-chart"), byId("wait-readout"), (point) => point.waiting, null),
];

let pages = [{}]; // of keys, up to the one that is shown: where each begins

function start() {
  connect(`events?${new URLSearchParams({ name, ...pages.at(-1) })}`, receive);
}

setText(byId("name"), printable(name));
start();

function receive(view) {
  showHistory(view.history);
  const unreadable = view.found && view.held === undefined;
  document.body.classList.toggle("unknown", view.found === false || unreadable);
  if (view.found === false) {
    missing(view.lost);
    return;
  }
  if (view.found === null && last) return; // other keys are read
  if (!view.found || view.held === undefined) {
    setText(byId("words"), printable(view.words ?? "Reading …"));
    setText(byId("label"), view.state ?? "reading");
    byId("stage").dataset.state = view.state ?? "";
    return;
  }
  last = view;
  show(view);
}

function show(view) {
  showStage(view);
  showCells(view);
  showActions(view);
  showRates(view);
  showKeys(view);
  showHolders(view);
  showWaiters(view);
  showClients(view);
}

function missing(lost) {
  byId("stage").dataset.state = lost ? "state lost" : "";
  setText(byId("label"), lost ? "state lost" : "not in use");
  setText(byId("words"), `${printable(lost ?? "")} No process holds a permit of this semaphore or waits for one, and no limit is set.`);
  if (byId("limits").children.length) return;
  byId("limits").replaceChildren(
    "This page shows the semaphore as soon as a process uses it. Names are case-sensitive: ",
    el("a", { href: `./#${encodeURIComponent(name)}` }, "search the list for this name"),
    ". If it should be in use, check that its processes use the Redis, database and prefix above.",
  );
}

/** The charts, and what happened, the latest first; a screen reader is told of what is new. */
function showHistory({ points, events }) {
  for (const chart of charts) chart.show(points, events);
  byId("charts").hidden = !points.length;
  for (const kind of ["limit", "bad", "good"]) byId(`mark-${kind}`).hidden = !events.some((event) => event[1] === kind);
  byId("mark-in-force").hidden = points.every((point) => point[4] === null);
  if (points.length) setText(byId("since"), `Last 15 minutes, data since ${clock(points[0][0])}.`);
  byId("happened-empty").hidden = events.length > 0;
  const keyOf = ([at, , text]) => `${at} ${text}`;
  const make = ([at, kind]) => el("li", { class: kind }, el("time", { datetime: new Date(at * 1000).toISOString() }, clock(at)), el("span"));
  reconcile(byId("happened"), [...events].reverse(), keyOf, make, (item, [, , text]) => say(item.lastElementChild, text));
  for (const [at, , text] of events) if (at > told) announce(printable(text));
  told = events.at(-1)?.[0] ?? 0;
}

// -- now

function showStage(view) {
  byId("stage").dataset.state = view.state;
  setText(byId("held"), headline(view.held));
  setText(byId("limit"), view.limit === null ? "?" : headline(view.limit));
  setText(byId("waiting"), headline(view.waiting));
  const oldest = view.oldest ? `, the first for ${duration(view.oldest)}` : "";
  setText(byId("waiting-under"), `${view.waiting === 1 ? "request waits" : "requests wait"}${oldest}`);
  setText(byId("label"), view.state);
  say(byId("words"), view.words);
  const declared = view.declared.map(number).join(" or ") || "no limit";
  const origin = (view.setOrigin || "by an operator").trim();
  const set = view.setLimit ? `The limit of ${number(view.setLimit)} was set ${origin}. ` : "";
  say(byId("limits"), `${set}Declared limit: ${declared}.`);
  document.title = `${view.held}/${view.limit ?? "?"}${view.waiting ? ` +${view.waiting}` : ""} · ${printable(name)} · ${title}`;
  if (state && state !== view.state) announce(printable(view.words));
  state = view.state;
  reconcile(byId("chips"), chips(view), (chip) => chip, (chip) => el("span", {}, chip), () => {});
}

function chips(view) {
  const found = [view.class ?? "no client yet"];
  if (view.mode?.includes("+share")) found.push("keys share the limit");
  else if (view.keyed) found.push("a limit for each key");
  if (view.mode?.endsWith("+slots")) found.push("slots");
  if (view.clock === "local") found.push("local clocks");
  return found;
}

function processOf(client) {
  return client.label ? `${client.label}\0${client.host}\0${client.pid}` : client.id;
}

/** A cell for each permit, in the colour of its process, as full as its lease. */
function showCells(view) {
  const cells = byId("cells");
  const size = Math.max(view.limit ?? 0, view.held);
  cells.hidden = size + view.waiting === 0 || size > MOST_CELLS || view.moreHolders > 0;
  const line = view.waiting ? `, ${plural(view.waiting, "request waits", "requests wait")}` : "";
  setAttribute(cells, "aria-label", `${view.held} of ${view.limit ?? "?"} permits in use${line}`);
  showLegend(view);
  if (cells.hidden) return;
  const items = placed(view.holders, size).map((holder, place) => ({
    key: place,
    holder,
    beyond: view.limit !== null && place >= view.limit,
    barred: view.backOff !== null && !holder && place >= view.backOff,
  }));
  if (view.waiting) items.push({ key: "queue", waiting: view.waiting });
  reconcile(cells, items, (item) => item.key, makeCell, updateCell);
}

/** The holder of each cell. A permit keeps its cells for as long as it is held. */
function placed(holders, size) {
  const live = new Set(holders.map((holder) => holder.short));
  for (const id of places.keys()) if (!live.has(id)) places.delete(id);
  const cells = new Array(size).fill(null);
  const take = (holder, wanted) => {
    const got = [];
    for (const place of wanted) {
      if (got.length < holder.permits && place < size && cells[place] === null) {
        cells[place] = holder;
        got.push(place);
      }
    }
    return got;
  };
  const late = [];
  for (const holder of holders) {
    const had = places.get(holder.short);
    if (!had || take(holder, had).length < holder.permits) late.push(holder);
  }
  for (const holder of late) {
    const own = [...cells.keys()].filter((place) => cells[place] === holder);
    const rest = { ...holder, permits: holder.permits - own.length };
    const more = take(rest, cells.keys()).map((place) => {
      cells[place] = holder;
      return place;
    });
    places.set(holder.short, [...own, ...more]);
  }
  return cells;
}

function makeCell(item) {
  if (item.waiting) return el("span", { class: "queue" });
  return el("span", { class: "cell" }, el("span", { class: "lease" }));
}

/** The queue, which stays together: a dot for each of the first requests, and how many more wait. */
function updateQueue(element, waiting) {
  const dots = [...Array(Math.min(waiting, DOTS)).keys(), "more"];
  const make = (dot) => el("span", { class: dot === "more" ? "more-dots" : "dot" });
  reconcile(element, dots, (dot) => dot, make, () => {});
  setText(element.lastElementChild, waiting > DOTS ? `+${number(waiting - DOTS)}` : "");
}

function updateCell(element, { holder, waiting, beyond, barred }) {
  if (waiting) {
    updateQueue(element, waiting);
    return;
  }
  element.classList.toggle("free", !holder);
  element.classList.toggle("beyond", beyond);
  element.classList.toggle("barred", barred);
  element.classList.toggle("stalled", Boolean(holder?.stalled));
  const left = holder ? Math.min(1, holder.left / (holder.client.lease ?? holder.left)) : 0;
  const lease = element.firstElementChild;
  const permit = holder?.short ?? "";
  lease.style.transition = lease.dataset.permit === permit ? "" : "none"; // another permit's lease
  lease.dataset.permit = permit;
  lease.style.setProperty("--left", left.toFixed(2));
  if (holder) element.dataset.hue = holder.client.hue;
  else delete element.dataset.hue;
  element.title = holder ? `${clientName(holder.client)}, held for ${duration(holder.age)}, lease ends in ${duration(holder.left)}` : barred ? "not granted until the limit in force rises" : beyond ? "" : "free";
}

function showLegend(view) {
  const processes = new Map();
  for (const holder of view.holders) {
    const process = processOf(holder.client);
    const one = processes.get(process) ?? { client: holder.client, permits: 0 };
    one.permits += holder.permits;
    one.stalled ||= holder.stalled;
    processes.set(process, one);
  }
  const items = [...processes].map(([key, one]) => ({ key, ...one })).slice(0, 12);
  byId("legend").hidden = !items.length;
  items.sort((one, other) => one.client.hue - other.client.hue);
  reconcile(
    byId("legend"),
    items,
    (item) => item.key,
    (item) => el("li", {}, el("span", { class: "swatch", "data-hue": item.client.hue, "aria-hidden": "true" }), el("span")),
    (element, item) => {
      element.classList.toggle("stalled", Boolean(item.stalled));
      setText(element.lastElementChild, `${clientName(item.client)}: ${number(item.permits)}${item.stalled ? ", stalled" : ""}`);
    },
  );
}

// -- tables

/** A table in the element with *id*; *columns* are {label, num, cell(item, td)}. */
function table(id, caption, columns, items, keyOf, empty, rest = "") {
  const parent = byId(id);
  const shown = parent.dataset.all ? items : items.slice(0, ROWS);
  if (!items.length) {
    if (!parent.querySelector(".empty")) parent.replaceChildren(el("p", { class: "empty" }));
    setText(parent.firstElementChild, empty);
    return;
  }
  const labels = columns.map((column) => column.label).join("|");
  if (parent.dataset.labels !== labels || !parent.querySelector("table")) {
    parent.dataset.labels = labels;
    const heads = columns.map(({ label, num, quiet }) =>
      el("th", { role: "columnheader", scope: "col", class: num ? "num" : null }, quiet ? el("span", { class: "hidden" }, label) : label),
    );
    parent.replaceChildren(
      el(
        "table",
        { class: "data", role: "table", "aria-label": caption },
        el("thead", { role: "rowgroup" }, el("tr", { role: "row" }, ...heads)),
        el("tbody", { role: "rowgroup" }),
      ),
      el("button", { type: "button", class: "small all", onclick: () => showAll(parent) }),
      el("p", { class: "rest" }),
    );
  }
  reconcile(
    parent.querySelector("tbody"),
    shown,
    keyOf,
    () => el("tr", { role: "row" }, ...columns.map(({ label, num }) => el("td", { role: "cell", "data-label": label, class: num ? "num" : null }))),
    (row, item) => columns.forEach((column, at) => column.cell(item, row.children[at])),
  );
  const button = parent.querySelector("button.all");
  button.hidden = shown.length === items.length;
  setText(button, `Show all ${number(items.length)}`);
  setText(parent.lastElementChild, rest);
}

function showAll(parent) {
  parent.dataset.all = "yes";
  if (last) show(last);
}

const keyText = (key) => (key === null ? "–" : printable(key));

const text = (label, value, num = false) => ({
  label,
  num,
  cell: (item, td) => {
    setText(td, value(item));
    td.classList.toggle("none", td.textContent === "–");
  },
});

/** A column with a process: its colour, its label, its host and pid. */
const processColumn = (label, clientOf) => ({
  label,
  cell: (item, td) => {
    const client = clientOf(item);
    if (!td.firstElementChild) {
      td.append(el("span", { class: "swatch", "aria-hidden": "true" }), el("span", { class: "who" }), el("span", { class: "where" }), el("span", { class: "pill bad" }, "stalled"));
    }
    const [swatch, who, where, pill] = td.children;
    pill.hidden = !item.stalled;
    swatch.dataset.hue = client.hue;
    setText(who, clientName(client));
    setText(where, client.label ? clientPlace(client) : "");
  },
});

/** A column with one button for each item. */
const buttonColumn = (textOf, labelOf, run) => ({
  label: "change",
  quiet: true,
  cell: (item, td) => {
    if (!td.firstElementChild) td.append(el("button", { type: "button", class: "change small", onclick: () => run(td.item) }));
    td.item = item;
    setText(td.firstElementChild, textOf(item));
    setAttribute(td.firstElementChild, "aria-label", labelOf(item));
  },
});

function showHolders(view) {
  const columns = [
    processColumn("process", (holder) => holder.client),
    text("held for", (holder) => duration(holder.age), true),
    text("lease ends in", (holder) => duration(holder.left), true),
    text("permits", (holder) => number(holder.permits), true),
    ...(view.keyed ? [text("key", (holder) => keyText(holder.key))] : []),
    ...(view.slotted ? [text("slots", (holder) => (holder.slots ? printable(holder.slots) : "–"))] : []),
    ...(ids ? [text("fencing token", (holder) => holder.token, true), text("id", (holder) => holder.id ?? holder.short)] : []),
  ];
  if (may("revoke")) {
    columns.push(buttonColumn(() => "Revoke…", (holder) => `Revoke the permit ${holder.short} of ${clientName(holder.client)}`, askRevoke));
  }
  const rest = view.moreHolders ? `and ${plural(view.moreHolders, "more permit", "more permits")}: the first to expire are listed` : "";
  const holders = [...view.holders].sort((one, other) => other.stalled - one.stalled || other.age - one.age);
  table("holders", "Holders, stalled ones first, then the oldest", columns, holders, (holder) => holder.short, "No permit is held.", rest);
}

function showWaiters(view) {
  const rest = view.moreWaiters ? `and ${plural(view.moreWaiters, "more request", "more requests")} behind them` : "";
  const columns = [
    text("place", (waiter) => number(waiter.position), true),
    processColumn("process", (waiter) => waiter.client),
    text("waits for", (waiter) => duration(waiter.age), true),
    text("permits", (waiter) => number(waiter.permits), true),
    ...(view.keyed ? [text("key", (waiter) => keyText(waiter.key))] : []),
    ...(ids ? [text("id", (waiter) => waiter.short)] : []),
  ];
  table("waiters", "Waiting requests, in their order", columns, view.waiters, (waiter) => waiter.short, "No request waits.", rest);
}

function showRates(view) {
  byId("rates-card").hidden = !view.rates.length;
  const columns = [
    text("rate", (rate) => rate.name),
    { label: "left of its burst", cell: (rate, td) => {
      if (!td.firstElementChild) td.append(balance());
      updateBalance(td.firstElementChild, rate);
    } },
    { label: "available", num: true, cell: (rate, td) => {
      setText(td, rate.available < 0 ? `${number(-rate.available)} in debt` : number(rate.available));
      td.classList.toggle("debt", rate.available < 0);
    } },
    text("burst", (rate) => number(rate.burst), true),
    text("allows", (rate) => `${number(rate.amount)} per ${number(rate.per)} s`, true),
    text("full in", (rate) => (rate.full_in ? duration(rate.full_in) : "–"), true),
  ];
  table("rates", "Rates, and what is left of each", columns, view.rates, (rate) => rate.name, "No rate is declared.");
}

function showKeys(view) {
  byId("keys-card").hidden = !view.keyed;
  if (!view.keyed) return;
  const limit = (key) => {
    if (key.setLimit !== null) return `${number(key.setLimit)} (${key.setLimit ? "set" : "paused"})`;
    return key.limit === null ? "as clients declare" : number(key.limit);
  };
  const changed = (key) => {
    const set = key.setLimit === null ? [] : [`${key.setLimit ? "limit set" : "paused"}${key.setOrigin}`];
    return [...set, ...(key.backOff ? [`backing off: ${key.backOff}, started${key.backOffOrigin}`] : [])].join("; ");
  };
  const columns = [
    text("key", (key) => keyText(key.key)),
    { label: "use of its limit", cell: (key, td) => {
      if (!td.firstElementChild) td.append(meter());
      updateMeter(td.firstElementChild, { held: key.held, limit: key.limit ?? view.limit, waiting: key.waiting });
    } },
    text("in use", (key) => number(key.held), true),
    text("limit of the key", limit, true),
    text("waiting", (key) => (key.waiting ? number(key.waiting) : "–"), true),
    ...(view.keys.some(changed) ? [text("changed", (key) => printable(changed(key)) || "–")] : []),
  ];
  if (may("set_limit")) {
    columns.push(buttonColumn(() => "Set limit…", (key) => `Set the limit of the key ${printable(key.key)}`, (key) => askLimit(view, key)));
  }
  const shown = plural(view.keys.length, "key is", "keys are");
  const rest = view.moreKeys ? `${shown} listed, the ones with the most permits first. There may be more. Type the beginning of a key, or continue with “Next keys”.` : "";
  const none = view.keysAfter ? "No other such key holds a permit or waits." : "No key holds a permit or waits.";
  table("keys", "Keys that hold permits or wait", columns, view.keys, (key) => key.key, none, rest);
  byId("key-pages").hidden = !view.moreKeys && !view.keysAfter && !byId("key-start").value;
  byId("keys-back").disabled = pages.length === 1;
  byId("keys-next").disabled = !view.moreKeys;
}

byId("ids").addEventListener("click", () => {
  ids = !ids;
  setAttribute(byId("ids"), "aria-pressed", String(ids));
  if (last) show(last);
});

let typed = 0;
byId("key-start").addEventListener("input", (event) => {
  clearTimeout(typed);
  typed = setTimeout(() => {
    pages = [event.target.value ? { keys: event.target.value } : {}];
    start();
  }, 200);
});
byId("keys-next").addEventListener("click", () => {
  pages.push({ ...pages.at(-1), keys_after: last.keys.at(-1).key });
  start();
});
byId("keys-back").addEventListener("click", () => {
  pages.pop();
  start();
});

function showClients(view) {
  const columns = [
    processColumn("process", (client) => client),
    text("declares a limit of", (client) => (client.limit === null ? "–" : number(client.limit)), true),
    text("holds", (client) => (client.held ? number(client.held) : "–"), true),
    text("waits", (client) => (client.waiting ? number(client.waiting) : "–"), true),
  ];
  if (new Set(view.clients.map((client) => client.version)).size > 1) {
    columns.push(text("version", (client) => printable(client.version ?? "unknown")));
  }
  const rest = view.moreClients ? `and ${plural(view.moreClients, "more process", "more processes")}` : "";
  table("clients", "Processes that use it", columns, view.clients, (client) => client.id, "No process uses it now.", rest);
}
