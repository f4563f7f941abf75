// Runs loads on semaphores of redis-semaphore with ioredis, for the Python benchmarks.
//
// stdin   one line per turn: {"name", "tasks", "limit", "work_ms", "seconds"}
// stdout  one line per turn: {"pairs", "seconds", "waits", "most", "held"}; waits in seconds

import { createInterface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";
import Redis from "ioredis";
import { Semaphore } from "redis-semaphore";

// Exit if the server is gone, so that the Python side does not wait for ever.
const redis = new Redis(process.argv[2], { retryStrategy: null });
redis.on("error", (error) => {
  console.error(String(error));
  process.exit(1);
});
const seconds = () => performance.now() / 1000;

async function turn({ name, tasks, limit, work_ms: work, seconds: duration }) {
  const waits = [];
  let inside = 0;
  let most = 0;
  const start = seconds();
  const until = start + duration;

  async function pairs() {
    // Default settings except for acquireTimeout, which is 10 s by default.
    const semaphore = new Semaphore(redis, name, limit, { acquireTimeout: 60_000 });
    for (let asked = seconds(); asked < until; asked = seconds()) {
      await semaphore.acquire();
      waits.push(seconds() - asked);
      most = Math.max(most, ++inside);
      if (work) await sleep(work);
      inside--;
      await semaphore.release();
    }
  }

  await Promise.all(Array.from({ length: tasks }, pairs));
  const took = seconds() - start;
  const held = await redis.zcard(`semaphore:${name}`);
  return { pairs: waits.length, seconds: took, waits, most, held };
}

for await (const line of createInterface({ input: process.stdin })) {
  process.stdout.write(JSON.stringify(await turn(JSON.parse(line))) + "\n");
}
redis.disconnect();
