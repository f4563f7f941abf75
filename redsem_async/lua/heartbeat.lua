-- heartbeat: keep the hub alive, report on its waiters, serve the queue.
--
-- ARGV     lease_ms  the longest lease among the hub's waiters
--          hub_info  facts about the caller's hub, '' when sent before
--          no_push   '1' when no push message reaches the hub, '2' when nobody counts it
--          requests  from here on: 'number:lease_ms:limit:permits'
-- RETURNS  {tag, next_ms, waiting, own_grants, set_limit, hold, answer...}, and before the answers
--          keyed.queues_of() where there are keys, and rated.backlog() where there are rates;
--          set_limit and hold as for an acquire, and an answer 0 or -4 (queued), {token, ms left}
--          (holds a permit) or -1 (gone)
--
-- uses: holders (allow_writes_at_maxmemory append holding_of load_state parse_ids purge), hubs
--       (record_hub unknown_hub_error), queue (ticket_of), order (keep_queue queue_answer), serve
--       (reply_with_limit serve)

local lease, hub_info, no_push = tonumber(ARGV[5]), ARGV[6], ARGV[7]
local REQUESTS = 8

load_state()
if not known and hub_info == '' then return unknown_hub_error() end
allow_writes_at_maxmemory()
record_hub(hub_info, no_push, lease)
if state.waiting > 0 then keep_queue(liveness_timeout(lease)) end
purge()
if keyed then keyed.look_again(REQUESTS) end
serve()

local answers, served = {}, true
for i, id in ipairs(parse_ids(hub, REQUESTS)) do
  local request = hub .. '.' .. ARGV[REQUESTS + i - 1]
  local waits = ticket_of(request) and queue_answer(request)
  answers[i] = waits or holding_of(id) or -1
  served = served and not waits
end
return append(reply_with_limit(served, keyed and keyed.queues_of(REQUESTS, answers)), answers)
