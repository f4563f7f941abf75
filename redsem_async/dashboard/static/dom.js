// Elements and text. Text from outside becomes text nodes, never markup.

const LONG = 24; // characters that are kept together on a phone, too
const SVG = "http://www.w3.org/2000/svg";

export const byId = (id) => document.getElementById(id);

/** An element with attributes, and with children that are elements or text. */
export function el(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "onclick") element.addEventListener("click", value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

/** Set text without touching the page where it is the same. */
export function setText(element, text) {
  const wanted = String(text);
  if (element.textContent !== wanted) element.textContent = wanted;
}

export function setAttribute(element, name, value) {
  if (element.getAttribute(name) !== value) element.setAttribute(name, value);
}

/**
 * Make the children of *parent* those of *items*, in order. Elements that stay are updated and not
 * made anew, so focus, selection and a pointer over them stay too.
 */
export function reconcile(parent, items, keyOf, make, update) {
  const before = new Map();
  for (const child of parent.children) before.set(child.dataset.key, child);
  let place = parent.firstElementChild;
  for (const item of items) {
    const key = String(keyOf(item));
    let child = before.get(key);
    if (child) before.delete(key);
    else {
      child = make(item);
      child.dataset.key = key;
    }
    update(child, item);
    if (child === place) place = place.nextElementSibling;
    else parent.insertBefore(child, place);
  }
  for (const gone of before.values()) gone.remove();
}

/** *text* from outside as it can be read: what cannot be seen, or turns the order of others round, is written as a code. */
export function printable(text) {
  const seen = text.replace(/[\p{Cc}\p{Cf}\p{Co}\p{Cn}\p{Zl}\p{Zp}]/gu, (character) => `\\u{${character.codePointAt(0).toString(16)}}`);
  return seen.trim() === seen ? seen : `“${seen}”`;
}

/** A sentence in which the name of a process, and a number and its unit, stay on one line. */
export function say(element, sentence) {
  const shown = printable(sentence);
  if (element.textContent === shown) return;
  const parts = shown.split(/(\S*-\S*|[\d.,]+ (?:s|min|h|d)\b\S*)/);
  element.replaceChildren(...parts.map((part, place) => (place % 2 ? el("span", { class: part.length > LONG ? "whole long" : "whole" }, part) : part)));
}

export const number = (value) => value.toLocaleString("en-US", { maximumFractionDigits: Math.abs(value) < 100 ? 1 : 0 });

const compact = new Intl.NumberFormat("en-US", { notation: "compact", maximumFractionDigits: 1 });

/** A round number in few characters: 1.5K. */
export const short = (value) => compact.format(value);

/** A number in figures, unless those are too many for a heading. */
export const headline = (value) => (value < 1e6 ? number(value) : short(value));

export function plural(count, one, many) {
  return `${number(count)} ${count === 1 ? one : many}`;
}

/** Seconds in a suitable unit. */
export function duration(seconds) {
  if (seconds < 0.05) return "0 s";
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 90) return `${Math.round(seconds)} s`;
  const minutes = Math.round(seconds / 60);
  if (minutes < 90) return `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return `${hours} h ${minutes % 60} min`;
  return `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

export function clock(time) {
  return new Date(time * 1000).toLocaleTimeString("en-GB");
}

/** A process as people call it. */
export function clientName(client) {
  if (client.label) return printable(client.label);
  if (client.host) return clientPlace(client);
  return `unknown process ${client.id}…`;
}

export function clientPlace(client) {
  return client.host ? `${printable(client.host)}, pid ${client.pid ?? "?"}` : `process ${client.id}…`;
}
