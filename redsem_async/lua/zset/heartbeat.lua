-- heartbeat (zset): keep the hub alive, announce how many of its requests wait, pass hints on.
--
-- KEYS     as in the head
-- ARGV     lease_ms  the longest lease among the hub's waiters
--          who       who the hub is, '' when told before
--          deaf      '1' when the hub cannot be told anything
--          declared  the caller's highest limit, ruled out by a set limit
--          waits     how many requests of this hub wait
--          hinted    permits that a hint told of and that nobody here wants
--          number    of this call: a later one of the hub's says better what waits here
-- RETURNS  {tag, next_ms, waiting, mine, room}, room being how many permits are left

local lease, who, deaf = tonumber(ARGV[5]), ARGV[6], ARGV[7]
local declared, waits, hinted = tonumber(ARGV[8]), tonumber(ARGV[9]), tonumber(ARGV[10])
local number = tonumber(ARGV[11])

survey()
if stranger and who == '' then return who_are_you() end
call('ZREM', holders, '')  -- a removal first: what follows is let through at maxmemory
introduce(who, deaf, lease)
touch(lease)
look_for_holders(lease)
purge()
local passes = freed == 0
if number > mark then
  raise_mark(number)
  freed = freed + hinted
  announce(waits, declared, lease)
end
serve(false, true, passes)

local reply = standing()
reply[5] = grace <= now and (cap or declared) - used or 0
return reply
