-- heartbeat (zset): keep the hub alive, announce how many of its requests wait, pass hints on.
--
-- KEYS     as in the head
-- ARGV     lease_ms  the longest lease among the hub's waiters
--          hub_info  facts about the caller's hub, '' when sent before
--          no_push   '1' when no push message reaches the hub
--          declared  the caller's highest limit, ruled out by a set limit
--          waits     how many requests of this hub wait
--          hinted    permits that a hint told of and that nobody here wants
--          number    of this call: a later one of the hub's says better what waits here
-- RETURNS  {tag, next_ms, waiting, own_grants, room}, room being how many permits are left

local lease, hub_info, no_push = tonumber(ARGV[5]), ARGV[6], ARGV[7]
local declared, waits, hinted = tonumber(ARGV[8]), tonumber(ARGV[9]), tonumber(ARGV[10])
local number = tonumber(ARGV[11])

load_state()
if unknown_hub and hub_info == '' then return unknown_hub_error() end
call('ZREM', holders, '')  -- a removal first: what follows is let through at maxmemory
record_hub(hub_info, no_push, lease)
keep_hub_alive(lease)
detect_lost_holders(lease)
purge()
local passes_hint = freed == 0
if number > mark then
  raise_mark(number)
  freed = freed + hinted
  announce(waits, declared, lease)
end
serve(false, true, passes_hint)

local reply = reply_head()
reply[5] = grace <= now and (set_limit or declared) - used or 0
return reply
