// Runs jobs on a limiter of Bottleneck, clustered by Redis, for the Python benchmark of rates.
//
// stdin   a line for each turn: {"name", "tasks", "options", "hold_ms", "begin", "end"}; the clock is
//         the monotonic one of the machine, in seconds, and the options are those of Bottleneck
// stdout  a line for each turn: when each job was asked for, and when it began: [[asked, entered], ...]

import { createInterface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";
import Bottleneck from "bottleneck";
import Redis from "ioredis";

const url = new URL(process.argv[2]);
const clientOptions = { host: url.hostname, port: Number(url.port), retryStrategy: null };
const seconds = () => Number(process.hrtime.bigint()) / 1e9;

async function turn({ name, tasks, options, hold_ms: hold, begin, end }) {
  const limiter = new Bottleneck({ ...options, id: name, datastore: "ioredis", Redis, clientOptions });
  let done = false; // after which its heartbeat finds a closed connection
  limiter.on("error", (error) => {
    if (done) return;
    console.error(String(error));
    process.exit(1);
  });
  await limiter.ready();
  const uses = [];

  async function jobs() {
    for (let asked = seconds(); asked < end; asked = seconds()) {
      await limiter.schedule(async () => {
        uses.push([asked, seconds()]);
        await sleep(hold);
      });
    }
  }

  await sleep(1000 * (begin - seconds()));
  await Promise.all(Array.from({ length: tasks }, jobs));
  done = true;
  await limiter.disconnect();
  return uses;
}

for await (const line of createInterface({ input: process.stdin })) {
  process.stdout.write(JSON.stringify(await turn(JSON.parse(line))) + "\n");
}
