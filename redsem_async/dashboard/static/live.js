// The stream of readings from the server, and what the page says when it does not come.

import { byId, clock, duration, setText } from "./dom.js";

const SILENCE = 6000; // ms without a reading until the page says so
const AGAIN = 3000; // ms until a refused stream is tried again

const SEATS = 2; // hidden tabs that go on reading: a browser has six connections to a server over HTTP/1.1

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
    show(reading);
    receive(reading);
  };
  source.onerror = () => {
    if (source?.readyState === EventSource.CLOSED) retry = setTimeout(again, AGAIN);
  };
}

function show(reading) {
  const live = byId("live");
  if (reading.outage) {
    live.dataset.state = "away";
    setText(byId("live-text"), "Redis does not answer");
    banner(
      `Redis cannot be read since ${clock(reading.outage.since)}: ${reading.outage.text.replace(/\.+$/, "")}. ` +
        "The numbers are the last ones. The page goes on by itself when Redis is back.",
    );
  } else {
    live.dataset.state = "live";
    setText(byId("live-text"), "live");
    banner(reading.refusal ? `Redis does not list the names: ${reading.refusal}` : "");
  }
}

function banner(text) {
  const element = byId("banner");
  setText(element, text);
  element.hidden = !text;
  document.body.classList.toggle("stale", Boolean(lastOutage));
}

setInterval(() => {
  const silent = performance.now() - heard;
  if (!source || silent < SILENCE) return;
  byId("live").dataset.state = "away";
  setText(byId("live-text"), "no connection");
  banner(`The server of this page does not answer for ${duration(silent / 1000)}. Trying again.`);
  document.body.classList.add("stale");
}, 1000);

/** Let a screen reader say *text*. */
export function announce(text) {
  setText(byId("announce"), text);
}
