// The controls: each change asks once, and is a POST with the token of this page.

import { byId, clientName, clientPlace, duration, el, plural, printable } from "./dom.js";

const { token } = document.body.dataset;
const name = new URLSearchParams(location.search).get("name"); // as it is: markup loses line ends
const allowed = new Set(document.body.dataset.allowed.split(" "));

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
    const { ok, text } = known ? await response.json() : { ok: false, text: `The server answers with ${response.status}: nothing was changed, as far as it says.` };
    toast(printable(text), ok ? "good" : "bad");
  } catch {
    toast("The server of this page does not answer: whether it was done is unknown.", "bad");
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
      el("button", { type: "submit", class: danger ? "danger" : "primary" }, button),
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
  const of = key === null ? "" : ` of the key “${printable(key.key)}”`;
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
    fields.push(el("label", { class: "check", for: "remove" }, box, "Remove the set limit: the clients' own applies again"));
  }
  ask({
    title: `Set the limit${of}`,
    text: [
      "It overrides the limit that the clients declare, until it is removed. A higher limit serves waiting requests at once; a lower one takes no permit away. 0 pauses.",
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
    title: "Pause?",
    text: [
      `No permit is granted until it is resumed. ${plural(view.held, "permit stays", "permits stay")} held until their holders release them; waiting requests stay in line, up to their timeouts.`,
      "A pause is no safety lock: it is lost if Redis loses its state.",
    ],
    button: "Pause",
    change: () => ({ action: "pause" }),
  });
}

function askResume() {
  ask({
    title: "Resume?",
    text: ["The limit that the pause found applies again, and waiting requests are served at once."],
    button: "Resume",
    change: () => ({ action: "resume" }),
  });
}

function askClear(view) {
  ask({
    title: "Delete the semaphore?",
    text: [
      `Holders lose ${plural(view.held, "permit", "permits")}, and their work is cancelled; ${plural(view.waiting, "request queues", "requests queue")} again. A set limit is lost.`,
    ],
    button: "Delete it",
    danger: true,
    change: () => ({ action: "clear" }),
  });
}

export function askKick(holder) {
  ask({
    title: "Revoke the permit?",
    text: [
      `${clientName(holder.client)} (${clientPlace(holder.client)}) has held ${plural(holder.permits, "permit", "permits")} for ${duration(holder.age)}. Its work is cancelled, and the next request gets the permit.`,
      "A holder that is cut off from Redis is not notified: it goes on until its lease ends.",
    ],
    button: "Revoke it",
    danger: true,
    change: () => ({ action: "kick", permit: holder.id }),
  });
}

const BUTTONS = [
  { action: "set_limit", text: "Set limit…", run: askLimit },
  { action: "pause", text: "Pause…", run: askPause, when: (view) => view.setLimit !== 0 },
  { action: "resume", text: "Resume…", run: askResume, when: (view) => view.setLimit === 0, primary: true },
  { action: "clear", text: "Delete…", run: askClear, danger: true },
];

let current = null;

/** The buttons that fit *view*, in the element with the id ``actions``. */
export function showActions(view) {
  current = view;
  const parent = byId("actions");
  const wanted = BUTTONS.filter(({ action, when }) => may(action) && (!when || when(view)));
  const same = wanted.map((button) => button.action).join(" ");
  if (parent.dataset.shown === same) return;
  parent.dataset.shown = same;
  const focused = [...parent.children].indexOf(document.activeElement);
  parent.replaceChildren(
    ...wanted.map(({ text, run, danger, primary }) =>
      el("button", { type: "button", class: danger ? "danger" : primary ? "primary" : null, onclick: () => run(current) }, text),
    ),
  );
  parent.children[focused]?.focus(); // Resume stands where Pause was
}
