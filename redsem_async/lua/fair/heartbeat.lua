-- heartbeat (fair): keep the hub alive, report on its waiters, serve the line.
--
-- KEYS     as in the head
-- ARGV     lease_ms  the longest lease among the hub's waiters
--          hub_info  facts about the caller's hub, '' when sent before
--          no_push   '1' when no push message reaches the hub
--          requests  from here on: 'number:lease_ms:limit:permits'
-- RETURNS  {tag, next_ms, waiting, own_grants, answer...}, an answer being 0 (in line),
--          {token, ms left} (holds a permit) or -1 (gone)
-- USES     load_state, unknown_hub, unknown_hub_error, allow_writes_at_maxmemory, record_hub,
--          waiting, keep, liveness_timeout, detect_lost_holders, purge, serve, reply_head,
--          parse_ids, in_line, current_grant

local lease, hub_info, no_push = tonumber(ARGV[5]), ARGV[6], ARGV[7]
local REQUESTS = 8

load_state()
if unknown_hub and hub_info == '' then return unknown_hub_error() end
allow_writes_at_maxmemory()
record_hub(hub_info, no_push, lease)
if waiting > 0 then keep(line, liveness_timeout(lease)) end
detect_lost_holders(lease)
purge()
serve()

local reply = reply_head()
for i, id in ipairs(parse_ids(hub, REQUESTS)) do
  local answer = in_line(hub .. '.' .. ARGV[REQUESTS + i - 1]) and 0
  reply[#reply + 1] = answer or current_grant(id) or -1
end
return reply
