// The controls: each change asks once, and is a POST with the token of this page.

import { byId, clientName, clientPlace, duration, el, plural, printable } from "./dom.js";

const { token } = document.body.dataset;
const name = new URLSearchParams(location.search).get("name"); // as it is: markup loses line ends
const allowed = new Set(document.body.dataset.allowed.split(" "));

const named = `“${printable(name)}”`;

export const may = (action) => allowed.has(action);

/** Say what happened, for some seconds. */
export function toast(text, kind = "good") {
  const element = el("p", { class: `toast ${kind}` }, text);
  byId("toasts").append(element);
  setTimeout(() => element.remove(), kind === "good" ? 6000 : 12000);
}

async function send(change) {
  try {
    const response = await fetch("change", {
      method: "POST",
      headers: { "Content-Type": "application/json", "X-CSRF-Token": token },
      body: JSON.stringify({ name, ...change }),
    });
    const known = response.headers.get("content-type")?.startsWith("application/json");
    const { ok, text } = known ? await response.json() : { ok: false, text: `The dashboard's server answered with status ${response.status}. The change was probably not applied.` };
    toast(printable(text), ok ? "good" : "bad");
  } catch {
    toast("No response from the dashboard's server. The change may or may not have been applied.", "bad");
  }
}

/** Ask once. *fields* stand in the form; *change* makes the request from the form's data. */
function ask({ title, text, button, danger = false, fields = [], change }) {
  const dialog = byId("dialog");
  const form = el(
    "form",
    {},
    el("h2", { id: "dialog-title" }, title),
    ...text.map((part) => el("p", {}, part)),
    ...fields,
    el(
      "div",
      { class: "buttons" },
      el("button", { type: "button", value: "cancel", onclick: () => dialog.close() }, "Cancel"),
      el("button", { type: "submit", class: `change ${danger ? "danger" : "primary"}` }, button),
    ),
  );
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const data = new FormData(form);
    dialog.close();
    send(change(data));
  });
  dialog.replaceChildren(form);
  dialog.showModal();
  const input = form.querySelector("input");
  (input ?? form.querySelector("[type=submit]")).focus();
  input?.select();
}

export function askLimit(view, key = null) {
  const of = key === null ? named : `the key “${printable(key.key)}” of ${named}`;
  const set = key === null ? view.setLimit : key.setLimit;
  const current = key === null ? view.limit : key.limit;
  const input = el("input", {
    id: "new-limit",
    name: "limit",
    type: "number",
    min: 0,
    max: 1e15,
    step: 1,
    required: true,
    value: current,
    inputmode: "numeric",
  });
  const fields = [el("label", { for: "new-limit" }, "New limit"), input];
  if (set !== null) {
    const box = el("input", { id: "remove", name: "remove", type: "checkbox" });
    box.addEventListener("change", () => {
      input.disabled = box.checked;
    });
    fields.push(el("label", { class: "check", for: "remove" }, box, "Remove the set limit, so that the clients' own limit applies again"));
  }
  ask({
    title: `Set the limit of ${of}`,
    text: [
      "A set limit overrides the limits that the clients declare until you remove it. A higher limit serves waiting requests immediately. A lower limit revokes no permit. 0 pauses.",
    ],
    button: "Set the limit",
    fields,
    change: (data) => ({
      action: "set_limit",
      limit: data.get("remove") ? null : Number(data.get("limit")),
      key: key?.key ?? null,
    }),
  });
}

function askPause(view) {
  ask({
    title: `Pause ${named}?`,
    text: [
      `No permit is granted until you resume it. ${plural(view.held, "permit stays", "permits stay")} held, and waiting requests stay queued up to their timeouts.`,
      "A pause is not a safety lock. Redis forgets it if it loses its data.",
    ],
    button: "Pause",
    change: () => ({ action: "pause" }),
  });
}

function askResume() {
  ask({
    title: `Resume ${named}?`,
    text: ["The limit from before the pause applies again, and waiting requests are served immediately."],
    button: "Resume",
    change: () => ({ action: "resume" }),
  });
}

function askBackOff() {
  const input = el("input", { id: "seconds", name: "seconds", type: "number", min: 1, max: 86400, required: true, value: 30, inputmode: "numeric" });
  ask({
    title: `Start a back-off of ${named}?`,
    text: ["No permit is granted for this many seconds. Then the limit in force rises gradually to the limit. Held permits stay, and waiting requests keep their places."],
    button: "Back off",
    fields: [el("label", { for: "seconds" }, "Seconds"), input],
    change: (data) => ({ action: "back_off", seconds: Number(data.get("seconds")) }),
  });
}

function askEndBackOff() {
  ask({
    title: `End the back-off of ${named}?`,
    text: ["Waiting requests are served immediately, up to the limit. The upstream may still be overloaded."],
    button: "End it",
    change: () => ({ action: "back_off", seconds: 0 }),
  });
}

function askDelete(view) {
  ask({
    title: `Delete ${named}?`,
    text: [
      `It is deleted from Redis: holders lose ${plural(view.held, "permit", "permits")} and their work is cancelled, ${plural(view.waiting, "request queues", "requests queue")} again, and a set limit is lost.`,
    ],
    button: "Delete",
    danger: true,
    change: () => ({ action: "delete" }),
  });
}

export function askRevoke(holder) {
  ask({
    title: `Revoke a permit of ${named}?`,
    text: [
      `${clientName(holder.client)} (${clientPlace(holder.client)}) has held ${plural(holder.permits, "permit", "permits")} for ${duration(holder.age)}. Its work is cancelled, and the next request gets the permit.`,
      "A holder that is disconnected from Redis is not notified and continues until its lease ends.",
    ],
    button: "Revoke",
    danger: true,
    change: () => ({ action: "revoke", permit: holder.id }),
  });
}

const BUTTONS = [
  { action: "set_limit", text: "Set limit…", run: askLimit },
  { action: "pause", text: "Pause…", run: askPause, when: (view) => view.setLimit !== 0 },
  { action: "resume", text: "Resume…", run: askResume, when: (view) => view.setLimit === 0, primary: true },
  { action: "back_off", text: "Back off…", run: askBackOff, when: (view) => view.backOff !== 0 },
  { action: "back_off", text: "End back-off…", run: askEndBackOff, when: (view) => view.backOff !== null },
  { action: "delete", text: "Delete…", run: askDelete, danger: true },
];

let current = null;

/** The buttons that fit *view*, in the element with the id ``actions``. */
export function showActions(view) {
  current = view;
  const parent = byId("actions");
  const wanted = BUTTONS.filter(({ action, when }) => may(action) && (!when || when(view)));
  const same = wanted.map((button) => button.text).join(" ");
  if (parent.dataset.shown === same) return;
  parent.dataset.shown = same;
  const focused = [...parent.children].indexOf(document.activeElement);
  parent.replaceChildren(
    ...wanted.map(({ text, run, danger, primary }) =>
      el("button", { type: "button", class: `change ${danger ? "danger" : primary ? "primary" : ""}`, onclick: () => run(current) }, text),
    ),
  );
  parent.children[focused]?.focus(); // Resume stands where Pause was
}
