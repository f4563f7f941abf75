-- heartbeat: keep the hub alive, report on its waiters, serve the queue.
--
-- KEYS     as in the head
-- ARGV     lease_ms  the longest lease among the hub's waiters
--          hub_info  facts about the caller's hub, '' when sent before
--          no_push   '1' when no push message reaches the hub, '2' when nobody counts it
--          requests  from here on: 'number:lease_ms:limit:permits'
-- RETURNS  {tag, next_ms, waiting, own_grants, set_limit, hold, answer...}, and where there are keys
--          keyed.queues_of() before the answers; hold being the usual hold in ms times permits or
--          -1, as for an acquire, and an answer 0 (queued),
--          {token, ms left} (holds a permit) or -1 (gone)
-- USES     load_state, unknown_hub, unknown_hub_error, allow_writes_at_maxmemory, record_hub,
--          waiting, liveness_timeout, purge, serve, parse_ids, is_queued,
--          current_grant, append, reply_with_limit, keep_queue, keyed, queue_answer, slotted

local lease, hub_info, no_push = tonumber(ARGV[5]), ARGV[6], ARGV[7]
local REQUESTS = 8

load_state()
if unknown_hub and hub_info == '' then return unknown_hub_error() end
allow_writes_at_maxmemory()
record_hub(hub_info, no_push, lease)
if waiting > 0 then keep_queue(liveness_timeout(lease)) end
if slotted then slotted.keep(liveness_timeout(lease)) end
purge()
if keyed then keyed.look_at_heads(REQUESTS) end
serve()

local answers, served = {}, true
for i, id in ipairs(parse_ids(hub, REQUESTS)) do
  local request = hub .. '.' .. ARGV[REQUESTS + i - 1]
  local answer = is_queued(request) and queue_answer(request)
  answers[i] = answer or current_grant(id) or -1
  served = served and not answer
end
return append(reply_with_limit(served, keyed and keyed.queues_of(REQUESTS, answers)), answers)
