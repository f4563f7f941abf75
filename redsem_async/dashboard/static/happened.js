// What changed between two readings, in words: limits, pauses, permits that nobody refreshes, outages.

import { clientName, number, plural } from "./dom.js";

const NOT_REFRESHED = 0.5; // of the longest rest of a lease that a process has had
const figure = (limit) => (limit === null || limit === undefined ? "?" : number(limit));
const SHORTEST = 0.8; // seconds: shorter leases end between two readings

export class Happened {
  #before = null;
  #processes = new Map(); // client id -> {longest, silent, permits, name}
  #away = false;

  /** What is new in *view*: a list of {kind, text}. */
  read(view) {
    const found = [];
    this.#outage(view, found);
    if (view.outage || !view.found) return found;
    if (this.#before) this.#limits(this.#before, view, found);
    this.#permits(view, found);
    this.#before = view;
    return found;
  }

  #outage(view, found) {
    if (Boolean(view.outage) === this.#away) return;
    this.#away = Boolean(view.outage);
    if (this.#away) found.push({ kind: "bad", text: `Redis does not answer: ${view.outage.text}` });
    else found.push({ kind: "good", text: "Redis answers again." });
    this.#processes.clear();
  }

  #limits(before, view, found) {
    if (before.setLimit === view.setLimit) {
      if (before.limit !== view.limit) {
        found.push({ kind: "limit", text: `The clients declare a limit of ${figure(view.limit)}; it was ${figure(before.limit)}.` });
      }
    } else if (view.setLimit === 0) {
      found.push({ kind: "limit", text: "Paused: no permit is granted until it is resumed." });
    } else if (view.setLimit === null) {
      const back = view.limit === null ? "the clients' own limits apply" : `the clients' own limit of ${number(view.limit)} applies`;
      found.push({ kind: "limit", text: before.setLimit === 0 ? `Resumed: ${back}.` : `The set limit was removed: ${back}.` });
    } else if (before.setLimit === 0) {
      found.push({ kind: "limit", text: `Resumed: the set limit of ${number(view.setLimit)} applies.` });
    } else {
      found.push({ kind: "limit", text: `The limit was set to ${number(view.setLimit)}; it was ${figure(before.limit)}.` });
    }
  }

  #permits(view, found) {
    const now = new Map();
    for (const holder of view.holders ?? []) {
      const one = now.get(holder.client.id) ?? { client: holder.client, left: 0, permits: 0 };
      one.left = Math.max(one.left, holder.left);
      one.permits += holder.permits;
      now.set(holder.client.id, one);
    }
    for (const [id, { client, left, permits }] of now) {
      const known = this.#processes.get(id) ?? { longest: 0, silent: false };
      known.longest = Math.max(known.longest, left);
      const late = known.longest > SHORTEST && left < NOT_REFRESHED * known.longest;
      const what = plural(permits, "permit", "permits");
      if (late && !known.silent) {
        const end = permits === 1 ? "it ends" : "they end";
        found.push({
          kind: "bad",
          text: `${clientName(client)} does not refresh ${what}: ${end} in ${left.toFixed(1)} s unless it does.`,
        });
      } else if (known.silent && !late) {
        found.push({ kind: "good", text: `${clientName(client)} refreshes its permits again.` });
      }
      this.#processes.set(id, { ...known, silent: late, permits, name: clientName(client) });
    }
    for (const [id, known] of this.#processes) {
      if (now.has(id)) continue;
      if (known.silent) {
        const what = plural(known.permits, "permit", "permits");
        const went = known.permits === 1 ? "has ended; it goes" : "have ended; they go";
        found.push({ kind: "good", text: `${what} of ${known.name} ${went} to the next requests.` });
      }
      this.#processes.delete(id);
    }
  }

  /** Whether the permits of the process *id* are not refreshed. */
  silent(id) {
    return this.#processes.get(id)?.silent ?? false;
  }

  /** The longest rest of a lease that the process *id* has had. */
  longest(id) {
    return this.#processes.get(id)?.longest ?? 1;
  }
}
