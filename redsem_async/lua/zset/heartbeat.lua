-- heartbeat (zset): keep the hub alive, announce how many of its requests wait, pass hints on.
--
-- KEYS     as in the head
-- ARGV     lease_ms  the longest lease among the hub's waiters
--          hub_info  facts about the caller's hub, '' when sent before
--          no_push   '1' when no push message reaches the hub, '2' when nobody counts it
--          right     'ms:limit' to ask for the right to reuse leases, '' not to
--          declared  the caller's highest limit, which a set limit overrides
--          waits     how many requests of this hub wait
--          hinted    permits of hints that no request of this hub can use
--          number    of this heartbeat: a late one does not overwrite what a newer one announced
-- RETURNS  {tag, next_ms, waiting, own_grants, set_limit, hold, room}, hold being the usual hold in
--          ms times permits or -1, as for an acquire, and room how many permits are left; and where the right was asked for, 1 or 0 after these
-- USES     load_state, unknown_hub, unknown_hub_error, allow_writes_at_maxmemory, record_hub,
--          detect_lost_holders, purge, mark, raise_mark, announce, serve, recall_rights,
--          answer_right, others_wait, append, reply_with_room, limit_for, liveness_timeout, slotted
--          sets freed

local lease, hub_info, no_push = tonumber(ARGV[5]), ARGV[6], ARGV[7]
local right, declared, waits = ARGV[8], tonumber(ARGV[9]), tonumber(ARGV[10])
local hinted, number = tonumber(ARGV[11]), tonumber(ARGV[12])

load_state()
if unknown_hub and hub_info == '' then return unknown_hub_error() end
allow_writes_at_maxmemory()
record_hub(hub_info, no_push, lease)
if slotted then slotted.keep(liveness_timeout(lease)) end
detect_lost_holders(lease)
purge()
local passes_hint = freed == 0
if number > mark then
  raise_mark(number)
  freed = freed + hinted
  announce(waits, declared, lease)
end
serve(false, true, passes_hint)
if waits > 0 then recall_rights() end
local answers = {}
if right ~= '' then answers[1] = answer_right(right, others_wait()) end
return append(reply_with_room(limit_for(declared), waits == 0), answers)
