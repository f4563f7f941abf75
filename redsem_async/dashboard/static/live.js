// The stream of readings from the server, and what the page says when it does not come.

import { byId, clock, duration, setText } from "./dom.js";

const SILENCE = 6000; // ms without a reading until the page says so
const AGAIN = 3000; // ms until a refused stream is tried again

let source = null;
let address = null;
let receive = null;
let heard = performance.now();
let lastOutage = null;
let retry = 0;

/** Read from *path* and give each reading to *callback*; a second call replaces the first. */
export function connect(path, callback) {
  address = path;
  receive = callback;
  open();
}

function open() {
  clearTimeout(retry);
  source?.close();
  source = new EventSource(address);
  source.onmessage = (event) => {
    heard = performance.now();
    const reading = JSON.parse(event.data);
    lastOutage = reading.outage;
    show(reading);
    receive(reading);
  };
  source.onerror = () => {
    if (source.readyState === EventSource.CLOSED) retry = setTimeout(open, AGAIN);
  };
}

function show(reading) {
  const live = byId("live");
  if (reading.outage) {
    live.dataset.state = "away";
    setText(byId("live-text"), "Redis does not answer");
    banner(
      `Redis cannot be read since ${clock(reading.outage.since)}: ${reading.outage.text}. ` +
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
  if (silent < SILENCE) return;
  byId("live").dataset.state = "away";
  setText(byId("live-text"), "no connection");
  banner(`The server of this page does not answer for ${duration(silent / 1000)}. Trying again.`);
  document.body.classList.add("stale");
}, 1000);

/** Let a screen reader say *text*. */
export function announce(text) {
  setText(byId("announce"), text);
}
