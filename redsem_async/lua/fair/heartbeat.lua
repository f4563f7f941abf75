-- heartbeat (fair): keep the hub alive, ask about its waiters, serve the line.
--
-- KEYS     as in the head
-- ARGV     lease_ms  the longest lease among the hub's waiters
--          who       who the hub is, '' when told before
--          deaf      '1' when the hub cannot be told anything
--          requests  from here on: 'number:lease_ms:limit:permits'
-- RETURNS  {tag, next_ms, waiting, mine, answer...}, an answer being 0 (waits),
--          {token, ms left} (holds) or -1 (gone)

local lease, who, deaf = tonumber(ARGV[5]), ARGV[6], ARGV[7]
local REQUESTS = 8

survey()
if stranger and who == '' then return who_are_you() end
call('ZREM', holders, '')  -- a removal first: what follows is let through at maxmemory
introduce(who, deaf, lease)
touch(lease)
if waiting > 0 then keep(line, alive_for(lease)) end
look_for_holders(lease)
purge()
serve()

local reply = standing()
for i = REQUESTS, #ARGV do
  local number = string.match(ARGV[i], '^%d+')
  local answer = call('ZSCORE', line, hub .. '.' .. ARGV[i]) and 0
  reply[#reply + 1] = answer or found(hub .. '.' .. number) or -1
end
return reply
