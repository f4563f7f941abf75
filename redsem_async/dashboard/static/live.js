// The stream of readings from the server, and what the page says when it does not come.

import { byId, clock, duration, printable, setText } from "./dom.js";

const SILENCE = 6000; // ms without a reading until the page says so
const AGAIN = 3000; // ms until a refused stream is tried again

const AWAY = `The page reconnects automatically.${document.body.dataset.allowed && " Changes are disabled until then."}`;

const SEATS = 2; // hidden tabs that continue to read: a browser has six connections to a server over HTTP/1.1

let source = null;
let address = null;
let receive = null;
let heard = performance.now();
let lastOutage = null;
let retry = 0;
let seat = null; // gives it back; held by a tab that reads although it is hidden
let sitting = null; // while a seat is looked for
let unread = false; // nothing was read since the tab was hidden

/** Read from *path* and give each reading to *callback*; a second call replaces the first. */
export function connect(path, callback) {
  address = path;
  receive = callback;
  again();
}

function again() {
  close();
  look();
}

function close() {
  clearTimeout(retry);
  source?.close();
  source = null;
}

/** Read if the tab is seen, or has a seat. */
async function look() {
  if (document.hidden && !seat) await (sitting ??= sit().finally(() => (sitting = null)));
  if (!document.hidden) {
    seat?.();
    seat = null;
  }
  if (document.hidden && !seat) {
    close();
    unread = true;
  } else if (!source) {
    if (unread) heard = performance.now();
    unread = false;
    open();
  }
}

/** Take a seat, if one is free; there are none where the page came over http from another machine. */
async function sit() {
  for (let number = 0; navigator.locks && !seat && number < SEATS; number += 1) {
    await new Promise((done) => {
      navigator.locks.request(`redsem hidden tab ${number}`, { ifAvailable: true }, (lock) => {
        const left = lock && new Promise((leave) => (seat = leave));
        done();
        return left;
      });
    });
  }
}

document.addEventListener("visibilitychange", look);

function open() {
  source = new EventSource(address);
  source.onmessage = (event) => {
    heard = performance.now();
    const reading = JSON.parse(event.data);
    lastOutage = reading.outage;
    receive(reading);
    show(reading);
  };
  source.onerror = () => {
    if (source?.readyState === EventSource.CLOSED) retry = setTimeout(again, AGAIN);
  };
}

function show(reading) {
  const live = byId("live");
  if (reading.outage) {
    live.dataset.state = "away";
    const { since, text, read_at } = reading.outage;
    const values = read_at ? `The values are from ${clock(read_at)}` : "Nothing has been read yet";
    setText(byId("live-text"), read_at ? `stale: last read at ${clock(read_at)}` : "Redis is unreachable");
    banner(`Redis has been unreachable since ${clock(since)} (${printable(text)}). ${values}. ${AWAY}`);
  } else {
    live.dataset.state = "live";
    setText(byId("live-text"), "live");
    banner(reading.refusal ? `Redis refuses to list the names: ${printable(reading.refusal)}` : "");
  }
}

function banner(text, stale = Boolean(lastOutage)) {
  const element = byId("banner");
  setText(element, text);
  element.hidden = !text;
  document.body.classList.toggle("stale", stale);
  for (const button of document.querySelectorAll("button.change")) button.disabled = stale;
}

setInterval(() => {
  const silent = performance.now() - heard;
  if (!source || silent < SILENCE) return;
  byId("live").dataset.state = "away";
  const last = clock((Date.now() - silent) / 1000);
  setText(byId("live-text"), `stale: last read at ${last}`);
  banner(`The dashboard's server has not answered for ${duration(silent / 1000)}. The values are from ${last}. ${AWAY}`, true);
}, 1000);

/** Let a screen reader say *text*. */
export function announce(text) {
  setText(byId("announce"), text);
}
