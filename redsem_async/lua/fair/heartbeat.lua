-- heartbeat (fair): keep the hub alive, ask about its waiters, serve the line.
--
-- KEYS     as in the head
-- ARGV     lease_ms  the longest lease among the hub's waiters
--          hub_info  facts about the caller's hub, '' when sent before
--          no_push   '1' when no push message reaches the hub
--          requests  from here on: 'number:lease_ms:limit:permits'
-- RETURNS  {tag, next_ms, waiting, own_grants, answer...}, an answer being 0 (waits),
--          {token, ms left} (holds) or -1 (gone)

local lease, hub_info, no_push = tonumber(ARGV[5]), ARGV[6], ARGV[7]
local REQUESTS = 8

load_state()
if unknown_hub and hub_info == '' then return unknown_hub_error() end
call('ZREM', holders, '')  -- a removal first: what follows is let through at maxmemory
record_hub(hub_info, no_push, lease)
keep_hub_alive(lease)
if waiting > 0 then keep(line, liveness_timeout(lease)) end
detect_lost_holders(lease)
purge()
serve()

local reply = reply_head()
for i = REQUESTS, #ARGV do
  local number = string.match(ARGV[i], '^%d+')
  local answer = call('ZSCORE', line, hub .. '.' .. ARGV[i]) and 0
  reply[#reply + 1] = answer or current_grant(hub .. '.' .. number) or -1
end
return reply
